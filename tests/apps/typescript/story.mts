// An app on the TypeScript client: every promise of the package, against a daemon that is restarted in between.
//
// Says what it has seen, a JSON object a line, and goes on when it is told to on its input.
import { once } from "node:events";
import { createInterface } from "node:readline";

import {
  Client, ConnectError, fromModelCall, listModelTools, parseJson, runModelCall, SidecarError, SignInError, stringifyJson,
  structuredOf, textOf,
} from "mcp-sidecar-client";
import { ToolServiceClient } from "mcp-sidecar-client/proto";

const say = (line: Record<string, unknown>) => process.stdout.write(`${stringifyJson(line)}\n`);
const input = createInterface({ input: process.stdin });
const heard: string[] = [];
input.on("line", (line) => heard.push(line));
const told = async (word: string) => {
  while (!heard.includes(word)) await once(input, "line");
};
const failure = async (made: Promise<unknown>): Promise<unknown> => {
  try {
    await made;
  } catch (error) {
    return error;
  }
  throw new Error("it did not fail");
};

const client = await Client.connect();

// Numbers go through with all their digits.
const exact = '{"big":9223372036854775807,"small":7,"text":"123456789012345678901"}';
const long = parseJson(`{"text":"${"line\\n".repeat(8_000_000)}","big":98765432109876543210}`) as { big: bigint };
const echoed = await client.callTool({ serverId: "demo-http", toolName: "echo", argumentsJson: exact });
say({
  long: String(long.big),
  raw: echoed.structuredContentJson,
  parsed: structuredOf(echoed),
  digits: structuredOf(echoed, "string"),
  written: stringifyJson(parseJson(exact)) === exact,
});

// Errors say what is wrong.
const unknown = await failure(client.getServer("nobody"));
const wrong = await failure(client.callTool({ serverId: "demo-http", toolName: "add", argumentsJson: "{" }));
const nowhere = await failure(Client.connect({ socket: "/nowhere/app.sock", connectTimeoutMs: 100 }));
const late = await failure(
  client.callTool({ serverId: "demo-http", toolName: "slow", arguments: { steps: 100 } }, { deadlineMs: 200 }),
);
const facts = (error: unknown) => {
  if (!(error instanceof SidecarError)) throw error;
  const { reason, codeName, metadata, fieldViolations } = error;
  return { reason, codeName, metadata, fields: fieldViolations.map(({ field }) => field) };
};
say({ unknown: facts(unknown), wrong: facts(wrong), late: facts(late), nowhere: nowhere instanceof ConnectError });

// Leaving the loop, and a signal, cancel the call at the server.
for await (const event of client.callToolStream({ serverId: "asker", toolName: "hang" })) {
  if (event.$case === "started") break;
}
say({ left: true });
await told("cancelled");
const leave = new AbortController();
const hanging = client.callTool({ serverId: "asker", toolName: "hang" }, { signal: leave.signal });
say({ hanging: true });
await told("abort");
leave.abort(new Error("enough"));
say({ aborted: String(await failure(hanging)) });
await told("cancelled again");

// The shapes of model APIs, and back.
const filter = { serverIds: ["demo-http"], names: ["add"] };
const [responses, chat, anthropic, gemini] = await Promise.all([
  listModelTools(client, "openai-responses", filter),
  listModelTools(client, "openai-chat", filter),
  listModelTools(client, "anthropic", filter),
  listModelTools(client, "gemini", filter),
]);
const name = anthropic.tools[0]?.name ?? "";
const text = '{"a":9007199254740993,"b":0}';
say({
  shapes: {
    responses: responses.tools[0]?.parameters["type"],
    chat: chat.tools[0]?.function.name === name,
    anthropic: Object.keys(anthropic.tools[0]?.input_schema["properties"] as object),
    gemini: gemini.tools[0]?.functionDeclarations[0]?.name === name,
  },
  answers: [
    await runModelCall(client, "openai-responses", { type: "function_call", call_id: "c1", name, arguments: text }),
    await runModelCall(client, "openai-chat", { id: "c2", function: { name, arguments: text } }),
    await runModelCall(client, "anthropic", { type: "tool_use", id: "c3", name: "tool_no_such", input: {} }),
    await runModelCall(client, "gemini", { id: "c4", name, args: { a: 1, b: 2 } }),
  ],
  call: fromModelCall("gemini", { name, args: { a: 1 } }),
});

// A question whose handler throws stays pending; one that is answered with what the form refuses, too.
let attempt = 0;
const problems: string[] = [];
const session = client.answerQuestions(
  {
    form: async () => {
      attempt += 1;
      if (attempt === 1) throw new Error("nobody is at home");
      return { content: { name: 7 } };
    },
  },
  { onError: (error) => problems.push(error instanceof SidecarError ? `${error.reason} ${error.fieldViolations[0]?.field}` : String(error)) },
);
await session.ready;
const first = client.callTool({ serverId: "asker", toolName: "ask" });
const second = client.callTool({ serverId: "asker", toolName: "ask" });
while (problems.length < 2) await new Promise((resolve) => setTimeout(resolve, 20));
const pending = await client.listElicitations();
await session.close();
say({ problems, pending: pending.length });
const answering = client.answerQuestions({ form: async ({ message }) => ({ content: `{"name":${JSON.stringify(message)}}` }) });
say({ asked: [textOf(await first), textOf(await second)] });
await answering.close();

// The sign-in helper ends with the sign-in.
const cancelled = await failure(
  client.signIn("s", {
    show: async (url, { id }) => {
      say({ auth_url: url });
      await client.cancelSignIn(id);
    },
  }),
);
say({ sign_in: cancelled instanceof SignInError && cancelled.signIn.state });

// The generated clients are there too.
const names = await new Promise((resolve, reject) => {
  client.generated(ToolServiceClient).listTools(
    { namespace: "", serverIds: ["demo-http"], names: [], states: [], modelNameStyle: "MODEL_NAME_STYLE_MCP" as never, pageSize: 0, pageToken: "" },
    (error, answer) => (error ? reject(error) : resolve(answer.tools.map((tool) => tool.modelName))),
  );
});
say({ names });

// Updates go on over a restart of the daemon, in this stream and from its token in another one.
let token = "";
const seen: string[] = [];
for await (const update of client.updates({ serverIds: ["demo-http", "later"] })) {
  if (update.type === "snapshotEnd") {
    token = update.resumeToken;
    say({ following: true });
  }
  seen.push(update.type === "server" ? update.server.id : update.type);
  if (update.type === "deleted") break;
}
const again: string[] = [];
for await (const update of client.updates({ serverIds: ["demo-http", "later"], resumeToken: token })) {
  again.push(update.type === "server" ? update.server.id : update.type);
  if (update.type === "deleted") break;
}
say({ seen, again });
for await (const update of client.updates({ resumeToken: process.env["STRANGE_TOKEN"] ?? "" })) {
  say({ strange: update.type });
  break;
}
client.close();
input.close();
