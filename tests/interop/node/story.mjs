// The story on stubs that are made while it runs, with proto-loader: story.mjs SOCKET URL, with the contract in $PROTOS.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const [socket, url] = process.argv.slice(2);
const protos = process.env.PROTOS;
const files = readdirSync(join(protos, "mcpsidecar/v1")).map((file) => join(protos, "mcpsidecar/v1", file));
const shape = { includeDirs: [protos], longs: String, enums: String, defaults: true, oneofs: true };
const { v1 } = grpc.loadPackageDefinition(loader.loadSync(files, shape)).mcpsidecar;
// grpc-js sends `localhost` as :authority for a unix: address by itself; it takes no message above 4 MiB unless told so.
const options = {
  "grpc.max_receive_message_length": 72 * 1024 * 1024,
  "grpc.max_send_message_length": 72 * 1024 * 1024,
  "grpc.max_reconnect_backoff_ms": 500,
  "grpc.initial_reconnect_backoff_ms": 50,
};
const open = (Service) => new Service(`unix:${socket}`, grpc.credentials.createInsecure(), options);
const [servers, tools, calls, elicitations, updates] = [
  v1.ServerService, v1.ToolService, v1.CallService, v1.ElicitationService, v1.UpdateService,
].map(open);
const ask = (service, method, request) =>
  new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    service[method](request, { deadline: Date.now() + 20_000 }, done);
  });

const spec = { name: "Story", http: { url }, clientCapabilities: { elicitationForm: true } };
const { server } = await ask(servers, "AddServer", { serverId: "story", spec });
console.log("added", server.status.state.replace("CONNECTION_STATE_", ""));
const listed = await ask(tools, "ListTools", { serverIds: ["story"] });
console.log("listed", ...listed.tools.map((tool) => tool.name).sort());

const slow = { serverId: "story", toolName: "slow" };
for await (const event of tools.CallToolStream({ call: slow }, { deadline: Date.now() + 20_000 })) {
  const { progress, result } = event;
  if (progress) console.log(`progress ${progress.progress} of ${progress.total}: ${progress.message}`);
  if (result) console.log("result", result.content[0].text.text);
}
const add = { serverId: "story", toolName: "add", argumentsJson: '{"a": 12345678901234567890, "b": 1}' };
console.log("sum", (await ask(tools, "CallTool", { call: add })).result.structuredContentJson);

// Every update, over lost connections.
async function* follow() {
  let resumeToken = "";
  for (;;) {
    try {
      for await (const update of updates.StreamUpdates({ resumeToken }, { waitForReady: true })) {
        resumeToken = update.resumeToken || resumeToken;
        yield update;
      }
    } catch (lost) {
      if (lost.code !== grpc.status.UNAVAILABLE && lost.code !== grpc.status.INTERNAL) throw lost;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
const following = follow();
const until = async (wanted) => {
  for (;;) {
    const { value } = await following.next();
    if (value.snapshotEnd) console.log(wanted === undefined ? "following" : "snapshot");
    if (wanted === undefined ? value.snapshotEnd : wanted(value)) return value;
  }
};
await until();
await until((update) => update.upsert?.server?.id === "between");
console.log("resumed between");

const call = { serverId: "story", toolName: "ask", detach: true };
const { callId } = await ask(tools, "CallTool", { call });
const asked = await until((update) => update.upsert?.elicitation?.callId === callId);
const question = asked.upsert.elicitation;
console.log("question", question.message);
const action = "ELICITATION_ACTION_ACCEPT";
await ask(elicitations, "RespondElicitation", { elicitationId: question.id, action, contentJson: '{"name":"Ada"}' });
const waited = await ask(calls, "WaitCall", { callId });
console.log("answered", waited.call.toolResult.content[0].text.text);

// The details of a status are a message of google.rpc, whose shape every generator can be given.
const rpc = protobuf.parse(`syntax = "proto3"; package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
  message BadRequest {
    message FieldViolation { string field = 1; string description = 2; }
    repeated FieldViolation field_violations = 1;
  }`).root;
const details = (error) => {
  const found = {};
  const bytes = error.metadata.get("grpc-status-details-bin")[0];
  for (const { type_url: type, typeUrl = type, value } of rpc.lookupType("google.rpc.Status").decode(bytes).details) {
    const name = typeUrl.replace("type.googleapis.com/", "");
    if (rpc.lookup(name)) found[name] = rpc.lookupType(name).decode(value);
  }
  return found;
};
const failure = (made) => made.then(() => { throw new Error("it did not fail"); }, (error) => error);
const unknown = await failure(ask(servers, "GetServer", { serverId: "nowhere" }));
console.log("error", grpc.status[unknown.code], details(unknown)["google.rpc.ErrorInfo"].reason);
const wrong = await failure(ask(servers, "AddServer", { spec: { name: "Wrong", http: { url: "ftp://x" } } }));
const found = details(wrong);
const [violation] = found["google.rpc.BadRequest"].fieldViolations;
console.log("violation", grpc.status[wrong.code], found["google.rpc.ErrorInfo"].reason, violation.field);
await following.return();
console.log("done");
process.exit(0);
