// Prints every change of every server, until Ctrl-C, over restarts of the daemon: node watch.mjs
import { Client } from "mcp-sidecar-client";

const client = await Client.connect();
for await (const update of client.updates()) {
  switch (update.type) {
    case "server":
      console.log(`${update.server.id}: ${update.server.status?.state}`);
      break;
    case "deleted":
      console.log(`${update.id}: gone`);
      break;
    case "reset":
      console.log(`start over: ${update.cause}`);
      break;
    case "snapshotEnd":
      console.log("up to date");
      break;
  }
}
