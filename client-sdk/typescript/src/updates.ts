/** The update stream that repairs itself. Nothing runs in the background: it works while it is read. */

import { type Client as Channel, status } from "@grpc/grpc-js";

import { SidecarError } from "./errors.js";
import {
  type Call,
  type CanAnswer,
  type DeepPartial,
  type Elicitation,
  type SamplingRequest,
  type Server,
  StreamUpdatesRequest,
  type StreamUpdatesResponse,
  type UpdateKind,
  UpdateServiceService,
} from "./proto.js";
import { serverStream } from "./rpc.js";
import { jittered, pause } from "./wait.js";

const FIRST_DELAY_MS = 100;
const MAX_DELAY_MS = 5000;
/** The daemon's wish for a longer pause is followed up to here. */
const MAX_WISHED_DELAY_MS = 30_000;

/** What to follow. All filters must hold; an empty one lets everything through. */
export interface UpdateFilter {
  /** Only these namespaces. Default: the client's. `*`: all that this process may use. */
  namespaces?: string[];
  /** Only updates about these servers. */
  serverIds?: string[];
  /** Only updates of these kinds. */
  kinds?: UpdateKind[];
  /** `resumeToken` of the last update that was handled, also by an earlier process. Absent: a snapshot. */
  resumeToken?: string;
  /** What this app can answer while it follows: servers are told, also after the stream was repaired. */
  canAnswer?: DeepPartial<CanAnswer>;
  /** Ends the iteration, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** What has happened. */
export type UpdateEvent =
  /** The stream could not go on where it was and starts over: forget everything it said. A snapshot follows. */
  | { type: "reset"; cause: "tokenExpired" | "snapshotInterrupted" }
  /** A server is new or has changed; this is its whole new state. */
  | { type: "server"; server: Server }
  /** A question is new or has changed; this is its whole new state. */
  | { type: "elicitation"; elicitation: Elicitation }
  /** A call that is kept is new or has changed; this is its whole new state, without its outcome. */
  | { type: "call"; call: Call }
  /** A request for an answer of a language model is new or has changed; this is its whole new state. */
  | { type: "sampling"; samplingRequest: SamplingRequest }
  /** Something is gone. */
  | { type: "deleted"; kind: UpdateKind; namespace: string; id: string }
  /** Everything that existed has been sent; what follows are changes. */
  | { type: "snapshotEnd" }
  /** Nothing has happened; only the resume token has moved on. */
  | { type: "bookmark" };

/** One update. */
export type Update = UpdateEvent & {
  /** Where a later stream can continue; keep it once this update is handled. Empty within a snapshot, and with `reset`. */
  resumeToken: string;
  /** Position of the change; grows, with gaps. */
  revision: bigint;
  /** When the change was committed. */
  commitTime: Date | undefined;
};

const FINAL = new Set<number>([
  status.INVALID_ARGUMENT,
  status.NOT_FOUND,
  status.PERMISSION_DENIED,
  status.UNAUTHENTICATED,
  status.UNIMPLEMENTED,
  status.OUT_OF_RANGE,
]);

/** Follows; see `Client.updates`. */
export async function* followUpdates(channel: Channel, filter: UpdateFilter): AsyncGenerator<Update, never, undefined> {
  const { signal, ...wanted } = filter;
  const request = StreamUpdatesRequest.fromPartial(wanted);
  // Updates of an unfinished snapshot were handed out.
  let inSnapshot = false;
  // Failures since the last response.
  let failures = 0;
  for (;;) {
    let wish = 0;
    try {
      for await (const response of serverStream(channel, UpdateServiceService.streamUpdates, request, { signal })) {
        failures = 0;
        const event = eventOf(response);
        if (response.resumeToken === "") {
          inSnapshot ||= event !== undefined;
        } else {
          inSnapshot = false;
          request.resumeToken = response.resumeToken;
        }
        if (event) {
          const { resumeToken, revision, commitTime } = response;
          yield { ...event, resumeToken, revision, commitTime };
        }
      }
      // The daemon ends a stream only when it stops.
    } catch (error) {
      if (!(error instanceof SidecarError)) {
        throw error;
      }
      if (error.reason === "RESUME_TOKEN_EXPIRED" && request.resumeToken !== "") {
        request.resumeToken = "";
        inSnapshot = false;
        yield reset("tokenExpired");
        continue;
      }
      if (FINAL.has(error.code)) {
        throw error;
      }
      wish = Math.min(error.retryDelayMs ?? 0, MAX_WISHED_DELAY_MS);
    }
    if (inSnapshot) {
      // An unfinished snapshot is worthless.
      inSnapshot = false;
      yield reset("snapshotInterrupted");
    }
    const bound = Math.min(FIRST_DELAY_MS * 2 ** Math.min(failures, 16), MAX_DELAY_MS);
    failures += 1;
    await pause(Math.max(wish, jittered(bound)), signal);
  }
}

function reset(cause: "tokenExpired" | "snapshotInterrupted"): Update {
  return { type: "reset", cause, resumeToken: "", revision: 0n, commitTime: undefined };
}

/** `undefined` for an event of a newer contract. */
function eventOf({ event }: StreamUpdatesResponse): UpdateEvent | undefined {
  switch (event?.$case) {
    case "upsert": {
      const resource = event.value.resource;
      switch (resource?.$case) {
        case "server":
          return { type: "server", server: resource.value };
        case "elicitation":
          return { type: "elicitation", elicitation: resource.value };
        case "call":
          return { type: "call", call: resource.value };
        case "samplingRequest":
          return { type: "sampling", samplingRequest: resource.value };
        default:
          return undefined;
      }
    }
    case "delete":
      return { type: "deleted", ...event.value };
    case "snapshotEnd":
      return { type: "snapshotEnd" };
    case "bookmark":
      return { type: "bookmark" };
    default:
      return undefined;
  }
}
