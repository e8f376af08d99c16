// An app on the TypeScript client that has an address and a token, both in its environment.

import { readFileSync } from "node:fs";
import { inspect } from "node:util";

import { Client, SidecarError, structuredOf } from "mcp-sidecar-client";
import { ListToolsRequest, ToolServiceClient } from "mcp-sidecar-client/proto";

async function toldOf(act: () => Promise<unknown>): Promise<string> {
  try {
    await act();
  } catch (error) {
    if (error instanceof SidecarError) {
      return error.reason;
    }
    if (error instanceof TypeError) {
      return error.message.split(":")[0] as string;
    }
    throw error;
  }
  throw new Error("it is refused");
}

const token = readFileSync(process.env["MCP_SIDECAR_TOKEN_FILE"] as string, "utf8").trim();
const address = process.env["MCP_SIDECAR_ADDRESS"] as string;
const client = await Client.connect();
const add = { serverId: "demo", toolName: "add", arguments: { a: 2, b: 3 } };
console.log(JSON.stringify(structuredOf(await client.callTool(add))));
for await (const event of client.callToolStream({ serverId: "demo", toolName: "slow" })) {
  if (event.$case === "progress") {
    console.log("progress", event.value.message);
  }
}
// Generated clients bring the token as well.
await new Promise<void>((resolve, reject) => {
  const tools = client.generated(ToolServiceClient);
  tools.listTools(ListToolsRequest.fromPartial({}), (error) => (error ? reject(error) : resolve()));
});
if (inspect(client, { depth: 20, showHidden: true }).includes(token)) {
  throw new Error("the token is printed");
}
client.close();
const wrong = await Client.connect({ address, token: "mcps_wrong" });
console.log(await toldOf(() => wrong.listTools()));
wrong.close();
console.log(await toldOf(() => Client.connect({ address: "nowhere", token })));
console.log(await toldOf(() => Client.connect({ token: "" })));

const following = await Client.connect({ address, token });
const ended = await toldOf(async () => {
  for await (const update of following.updates()) {
    if (update.type === "snapshotEnd") {
      console.log("following");
    }
  }
});
console.log("ended", ended);
following.close();
