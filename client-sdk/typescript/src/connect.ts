/** Finds the daemon's socket and opens the channel. */

import { connect as open } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";

import { type ChannelOptions, Client as Channel, credentials } from "@grpc/grpc-js";

import { type ConnectAttempt, ConnectError } from "./errors.js";
import { pause } from "./wait.js";
import { VERSION } from "./version.js";

/** The environment variable that names the socket. */
export const SOCKET_ENV = "MCP_SIDECAR_SOCKET";

/** The largest message in either direction: 72 MiB, the daemon's own limit (`limits.grpc_message_bytes`). */
export const MAX_MESSAGE_BYTES = 72 * 1024 * 1024;

const FIRST_DELAY_MS = 20;
const MAX_DELAY_MS = 500;

/**
 * Where the daemon's socket may be: `$MCP_SIDECAR_SOCKET` alone if it is set; else `$XDG_RUNTIME_DIR/mcp-sidecar/app.sock` and
 * `~/.local/state/mcp-sidecar/app.sock` (a daemon of this user), then `/run/mcp-sidecar/app.sock` (the host's).
 */
export function socketCandidates(env: NodeJS.ProcessEnv = process.env): string[] {
  const named = env[SOCKET_ENV];
  if (named) {
    return [named];
  }
  const home = env["HOME"] || (env === process.env ? homedir() : "");
  const state = env["XDG_STATE_HOME"] || (home && join(home, ".local/state"));
  const directories = [env["XDG_RUNTIME_DIR"], state, "/run"];
  return directories.filter((directory) => directory).map((directory) => join(directory as string, "mcp-sidecar/app.sock"));
}

/**
 * The options of a channel to the daemon: message sizes, keep-alive, a quick way back after a restart, and the authority.
 * grpc-js sends `localhost` as `:authority` for a `unix:` address by itself; it is set here so that it stays so.
 */
export const CHANNEL_OPTIONS: ChannelOptions = {
  "grpc.default_authority": "localhost",
  "grpc.primary_user_agent": `mcp-sidecar-client-typescript/${VERSION}`,
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 20_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.initial_reconnect_backoff_ms": 50,
  "grpc.max_reconnect_backoff_ms": 1000,
};

/** The first path behind which somebody listens; goes on trying, ever more slowly, until the time is over. */
export async function findSocket(paths: string[], timeoutMs: number, signal?: AbortSignal): Promise<string> {
  const end = performance.now() + timeoutMs;
  for (let delay = FIRST_DELAY_MS; ; delay = Math.min(delay * 2, MAX_DELAY_MS)) {
    const tried: ConnectAttempt[] = [];
    for (const path of paths) {
      const error = await probe(path, Math.max(end - performance.now(), FIRST_DELAY_MS));
      signal?.throwIfAborted();
      if (error === undefined) {
        return path;
      }
      tried.push({ path, error });
    }
    const hopeless = tried.every(({ error }) => (error as NodeJS.ErrnoException).code === "EACCES");
    if (hopeless || performance.now() + delay > end) {
      throw new ConnectError(tried);
    }
    await pause(delay, signal);
  }
}

/** Opens the socket and closes it again; what was wrong, if anything was. A full backlog makes it wait, so the wait has an end. */
function probe(path: string, timeoutMs: number): Promise<Error | undefined> {
  return new Promise((resolve) => {
    const socket = open({ path });
    const finish = (error?: Error) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(error);
    };
    const timer = setTimeout(() => finish(new Error("it does not answer")), timeoutMs);
    socket.once("connect", () => finish());
    socket.once("error", finish);
  });
}

/** A channel that opens the socket whenever it has no connection. */
export function openChannel(path: string): Channel {
  return new Channel(`unix:${path}`, credentials.createInsecure(), CHANNEL_OPTIONS);
}
