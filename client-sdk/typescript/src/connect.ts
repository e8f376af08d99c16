/** Finds the daemon's socket, or takes its address and a token, and opens the channel. */

import { readFileSync } from "node:fs";
import { connect as open, type NetConnectOpts } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";

import { type ChannelOptions, Client as Channel, credentials, InterceptingCall, type Interceptor } from "@grpc/grpc-js";

import { type ConnectAttempt, ConnectError } from "./errors.js";
import { pause } from "./wait.js";
import { VERSION } from "./version.js";

/** The environment variable that names the socket. */
export const SOCKET_ENV = "MCP_SIDECAR_SOCKET";

/** The environment variable that names the daemon's address, such as `127.0.0.1:7443`, where its socket cannot be reached. */
export const ADDRESS_ENV = "MCP_SIDECAR_ADDRESS";

/** The environment variable with the token for the address. */
export const TOKEN_ENV = "MCP_SIDECAR_TOKEN";

/** The environment variable that names a file with the token. */
export const TOKEN_FILE_ENV = "MCP_SIDECAR_TOKEN_FILE";

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

/** The address of the environment; none if that names a socket, which needs no token. */
export function addressOf(env: NodeJS.ProcessEnv = process.env): string | undefined {
  return env[SOCKET_ENV] ? undefined : env[ADDRESS_ENV] || undefined;
}

/** The token that is given, or the one of the environment, as an interceptor with which every request brings it. */
export function bearing(token?: string, tokenFile?: string, env: NodeJS.ProcessEnv = process.env): Interceptor {
  const file = tokenFile ?? (env[TOKEN_ENV] ? undefined : env[TOKEN_FILE_ENV] || undefined);
  const given = token ?? (file === undefined ? env[TOKEN_ENV] : readFileSync(file, "utf8"));
  if (given === undefined) {
    throw new TypeError(
      `over TCP the daemon wants a token: give one, or set ${TOKEN_ENV} or ${TOKEN_FILE_ENV}; \`mcp-sidecar tokens create\` makes one`,
    );
  }
  const text = given.replace(/[\r\n]+$/, "");
  if (!/^[!-~]+$/.test(text)) {
    throw new TypeError("the token is none; `mcp-sidecar tokens create` makes one");
  }
  return (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, listener, next) => {
        metadata.set("authorization", `Bearer ${text}`);
        next(metadata, listener);
      },
    });
}

/** How a place is opened: a path, or host and port. */
function opening(place: string, tcp: boolean): NetConnectOpts {
  if (!tcp) {
    return { path: place };
  }
  const parts = /^(\[[0-9a-fA-F:]+\]|[^/:@[\]]+):(\d+)$/.exec(place);
  if (!parts) {
    throw new TypeError(`\`${place}\` is no address of a daemon; write host and port, such as \`127.0.0.1:7443\``);
  }
  return { host: (parts[1] as string).replace(/[[\]]/g, ""), port: Number(parts[2]) };
}

/** Waits until somebody listens at the address, as {@link findSocket} does. */
export async function findAddress(address: string, timeoutMs: number, signal?: AbortSignal): Promise<string> {
  return find([address], true, timeoutMs, signal);
}

/** The first path behind which somebody listens; goes on trying, ever more slowly, until the time is over. */
export async function findSocket(paths: string[], timeoutMs: number, signal?: AbortSignal): Promise<string> {
  return find(paths, false, timeoutMs, signal);
}

async function find(paths: string[], tcp: boolean, timeoutMs: number, signal?: AbortSignal): Promise<string> {
  const end = performance.now() + timeoutMs;
  for (let delay = FIRST_DELAY_MS; ; delay = Math.min(delay * 2, MAX_DELAY_MS)) {
    const tried: ConnectAttempt[] = [];
    for (const path of paths) {
      const error = await probe(opening(path, tcp), Math.max(end - performance.now(), FIRST_DELAY_MS));
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

/** Opens it and closes it again; what was wrong, if anything was. A full backlog makes it wait, so the wait has an end. */
function probe(place: NetConnectOpts, timeoutMs: number): Promise<Error | undefined> {
  return new Promise((resolve) => {
    const socket = open(place);
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

/** A channel to an address, on which every request brings the token. Never through a proxy: the token is for the daemon. */
export function openTcpChannel(address: string, bearer: Interceptor): Channel {
  const { "grpc.default_authority": _, ...options } = CHANNEL_OPTIONS;
  return new Channel(address, credentials.createInsecure(), {
    ...options,
    "grpc.enable_http_proxy": 0,
    interceptors: [bearer],
  });
}
