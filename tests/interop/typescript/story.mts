// The story on the stubs of ts-proto for grpc-js, with its own defaults: story.mts SOCKET URL. The stubs are in ./stubs.
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { credentials, type ServiceError, status } from "@grpc/grpc-js";

import { CallServiceClient } from "./stubs/mcpsidecar/v1/call.js";
import { ElicitationAction, ElicitationServiceClient } from "./stubs/mcpsidecar/v1/elicitation.js";
import { ConnectionState, AddServerRequest, ServerServiceClient } from "./stubs/mcpsidecar/v1/server.js";
import { CallToolRequest, ListToolsRequest, ToolServiceClient } from "./stubs/mcpsidecar/v1/tool.js";
import { StreamUpdatesRequest, type StreamUpdatesResponse, UpdateServiceClient } from "./stubs/mcpsidecar/v1/update.js";

const [socket, url] = process.argv.slice(2) as [string, string];
const options = {
  "grpc.max_receive_message_length": 72 * 1024 * 1024,
  "grpc.max_send_message_length": 72 * 1024 * 1024,
  "grpc.max_reconnect_backoff_ms": 500,
  "grpc.initial_reconnect_backoff_ms": 50,
};
const place = [`unix:${socket}`, credentials.createInsecure(), options] as const;
const servers = new ServerServiceClient(...place);
const tools = new ToolServiceClient(...place);
const calls = new CallServiceClient(...place);
const elicitations = new ElicitationServiceClient(...place);
const updates = new UpdateServiceClient(...place);

const promised = <T,>(make: (done: (error: ServiceError | null, answer: T) => void) => void) =>
  new Promise<T>((resolve, reject) => make((error, answer) => (error ? reject(error) : resolve(answer))));

const spec = { name: "Story", http: { url }, clientCapabilities: { elicitationForm: true } };
const request = AddServerRequest.fromPartial({ serverId: "story", spec });
const added = await promised<{ server?: { status?: { state: ConnectionState } | undefined } | undefined }>((done) => servers.addServer(request, done));
console.log("added", ConnectionState[added.server?.status?.state ?? 0]?.replace("CONNECTION_STATE_", ""));
const listed = await promised<{ tools: { name: string }[] }>((done) =>
  tools.listTools(ListToolsRequest.fromPartial({ serverIds: ["story"] }), done),
);
console.log("listed", ...listed.tools.map((tool) => tool.name).sort());

const slow = CallToolRequest.fromPartial({ call: { serverId: "story", toolName: "slow" } });
for await (const { progress, result } of tools.callToolStream(slow)) {
  if (progress) console.log(`progress ${progress.progress} of ${progress.total}: ${progress.message}`);
  if (result) console.log("result", result.content[0]?.text?.text);
}
const argumentsJson = '{"a": 12345678901234567890, "b": 1}';
const add = CallToolRequest.fromPartial({ call: { serverId: "story", toolName: "add", argumentsJson } });
const sum = await promised<{ result?: { structuredContentJson?: string | undefined } | undefined }>((done) => tools.callTool(add, done));
console.log("sum", sum.result?.structuredContentJson);

// Every update, over lost connections.
async function* follow(): AsyncGenerator<StreamUpdatesResponse, never> {
  let resumeToken = "";
  for (;;) {
    try {
      const request = StreamUpdatesRequest.fromPartial({ resumeToken });
      for await (const update of updates.streamUpdates(request, { waitForReady: true } as object)) {
        const response = update as StreamUpdatesResponse;
        resumeToken = response.resumeToken || resumeToken;
        yield response;
      }
    } catch (lost) {
      const { code } = lost as ServiceError;
      if (code !== status.UNAVAILABLE && code !== status.INTERNAL) throw lost;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
const following = follow();
const until = async (wanted?: (update: StreamUpdatesResponse) => boolean): Promise<StreamUpdatesResponse> => {
  for (;;) {
    const { value } = await following.next();
    if (value.snapshotEnd) console.log(wanted === undefined ? "following" : "snapshot");
    if (wanted === undefined ? value.snapshotEnd : wanted(value)) return value;
  }
};
await until();
await until((update) => update.upsert?.server?.id === "between");
console.log("resumed between");

const detached = CallToolRequest.fromPartial({ call: { serverId: "story", toolName: "ask", detach: true } });
const { callId } = await promised<{ callId: string }>((done) => tools.callTool(detached, done));
const asked = await until((update) => update.upsert?.elicitation?.callId === callId);
const question = asked.upsert?.elicitation;
console.log("question", question?.message);
const answer = {
  namespace: "",
  elicitationId: question?.id ?? "",
  action: ElicitationAction.ELICITATION_ACTION_ACCEPT,
  contentJson: '{"name":"Ada"}',
};
await promised((done) => elicitations.respondElicitation(answer, done));
const waited = await promised<{ call?: { toolResult?: { content: { text?: { text: string } | undefined }[] } | undefined } | undefined }>((done) =>
  calls.waitCall({ namespace: "", callId, requestId: "" }, done),
);
console.log("answered", waited.call?.toolResult?.content[0]?.text?.text);

// The details of a status: google.rpc.Status has an Any (type, value) in each field 3.
const strings = (bytes: Uint8Array, wanted: number): Uint8Array[] => {
  const reader = new BinaryReader(bytes);
  const found: Uint8Array[] = [];
  while (reader.pos < reader.len) {
    const [field, wire] = reader.tag();
    if (field === wanted) found.push(reader.bytes());
    else reader.skip(wire);
  }
  return found;
};
const text = (bytes: Uint8Array | undefined) => new TextDecoder().decode(bytes);
const detail = (error: ServiceError, kind: string): Uint8Array => {
  const bytes = error.metadata.get("grpc-status-details-bin")[0] as Buffer;
  const any = strings(bytes, 3).find((one) => text(strings(one, 1)[0]) === `type.googleapis.com/google.rpc.${kind}`);
  return strings(any ?? new Uint8Array(), 2)[0] ?? new Uint8Array();
};
const failure = (made: Promise<unknown>) => made.then(() => Promise.reject(new Error("it did not fail")), (error) => error as ServiceError);
const unknown = await failure(promised((done) => servers.getServer({ namespace: "", serverId: "nowhere" }, done)));
console.log("error", status[unknown.code], text(strings(detail(unknown, "ErrorInfo"), 1)[0]));
const wrongRequest = AddServerRequest.fromPartial({ spec: { name: "Wrong", http: { url: "ftp://x" } } });
const wrong = await failure(promised((done) => servers.addServer(wrongRequest, done)));
const violation = strings(detail(wrong, "BadRequest"), 1)[0] ?? new Uint8Array();
console.log("violation", status[wrong.code], text(strings(detail(wrong, "ErrorInfo"), 1)[0]), text(strings(violation, 1)[0]));
console.log("done");
process.exit(0);
