/** What can go wrong, with the daemon's reason codes. Decodes `google.rpc` details; makes no requests. */

import { BinaryReader } from "@bufbuild/protobuf/wire";
import { type ServiceError, status } from "@grpc/grpc-js";

/** A field of a request that is not acceptable. */
export interface FieldViolation {
  /** Path of the field in the request message. */
  field: string;
  /** What is wrong with it, for people. */
  description: string;
}

/** What an error knows. */
export interface SidecarErrorFacts {
  /** The gRPC status code, see `status` of `@grpc/grpc-js`. */
  code: number;
  /** The daemon's reason code, for example `SERVER_NOT_FOUND`; empty if there is none. */
  reason: string;
  /** What is wrong, for people. */
  details: string;
  /** Facts for programs, for example `jsonrpc_code`. */
  metadata: Record<string, string>;
  /** The fields that are not acceptable. */
  fieldViolations: FieldViolation[];
  /** When another attempt makes sense, in milliseconds, if the daemon said so. */
  retryDelayMs: number | undefined;
}

/** The daemon refused or failed a request. Reason codes are added over time, never renamed. */
export class SidecarError extends Error implements SidecarErrorFacts {
  readonly code: number;
  readonly reason: string;
  readonly details: string;
  readonly metadata: Record<string, string>;
  readonly fieldViolations: FieldViolation[];
  readonly retryDelayMs: number | undefined;

  constructor(facts: SidecarErrorFacts, options?: ErrorOptions) {
    const what = facts.reason || status[facts.code] || String(facts.code);
    const field = facts.fieldViolations[0]?.field;
    super(`${what}${field === undefined ? "" : ` in \`${field}\``}: ${facts.details}`, options);
    this.name = "SidecarError";
    this.code = facts.code;
    this.reason = facts.reason;
    this.details = facts.details;
    this.metadata = facts.metadata;
    this.fieldViolations = facts.fieldViolations;
    this.retryDelayMs = facts.retryDelayMs;
  }

  /** Name of the gRPC status code, for example `NOT_FOUND`. */
  get codeName(): string {
    return status[this.code] ?? String(this.code);
  }

  /** Whether the same request may be sent again with a chance to succeed and without the risk that it is carried out twice. */
  get isRetryable(): boolean {
    switch (this.code) {
      case status.UNAVAILABLE:
        return this.reason !== "OUTCOME_UNKNOWN";
      case status.RESOURCE_EXHAUSTED:
        return this.retryDelayMs !== undefined || this.reason === "TOO_MANY_CALLS";
      default:
        return false;
    }
  }
}

/** The connection to the daemon could not be opened again, or was lost while a request ran. */
export class ConnectionLostError extends SidecarError {
  /** Whether the request may have reached the daemon. False means that it certainly did not. */
  readonly sent: boolean;

  constructor(facts: SidecarErrorFacts, sent: boolean, options?: ErrorOptions) {
    super(facts, options);
    this.name = "ConnectionLostError";
    this.sent = sent;
    this.message = `${sent ? "the connection to the daemon was lost" : "the daemon cannot be reached"}: ${facts.details}`;
  }

  override get isRetryable(): boolean {
    return !this.sent;
  }
}

/** A place that was tried, and what was wrong with it. */
export interface ConnectAttempt {
  /** The path; or the address. */
  path: string;
  /** Why it does not work. */
  error: Error;
}

/** No daemon answered at any of the paths before the time was over. */
export class ConnectError extends Error {
  /** Each path in the order of the search, with its last error. */
  readonly tried: ConnectAttempt[];

  constructor(tried: ConnectAttempt[]) {
    const list = tried.map(({ path, error }) => `\`${path}\` (${error.message})`).join(", ");
    super(`no mcp-sidecar daemon answers; tried ${list}`);
    this.name = "ConnectError";
    this.tried = tried;
  }
}

/** The daemon's answer does not follow the contract. */
export class ContractError extends Error {
  constructor(what: string) {
    super(`the daemon's answer does not follow the contract: ${what}`);
    this.name = "ContractError";
  }
}

/** Makes the error of a status of gRPC; for users of the generated clients too. */
export function errorFrom(cause: ServiceError): SidecarError {
  const facts: SidecarErrorFacts = {
    code: cause.code,
    reason: "",
    details: cause.details,
    metadata: {},
    fieldViolations: [],
    retryDelayMs: undefined,
  };
  const binary = cause.metadata?.get("grpc-status-details-bin")[0];
  if (binary !== undefined && typeof binary !== "string") {
    readStatus(binary, facts);
  }
  if (facts.reason === "") {
    // Only what never was the daemon's own answer comes without a reason; grpc-js says so in words alone.
    if (cause.code === status.DEADLINE_EXCEEDED) {
      facts.reason = "DEADLINE_EXCEEDED";
    } else if (cause.code === status.UNAVAILABLE) {
      const unsent = /^(No connection established|Connection dropped before|Name resolution failed)/.test(cause.details);
      return new ConnectionLostError(facts, !unsent, { cause });
    } else if (cause.code === status.INTERNAL && /RST_STREAM|closed with error/i.test(cause.details)) {
      return new ConnectionLostError(facts, true, { cause });
    }
  }
  return new SidecarError(facts, { cause });
}

type Fields = Record<number, (reader: BinaryReader) => void>;

/** Reads the named length-delimited fields of a message and skips all others. */
function read(bytes: Uint8Array, fields: Fields): void {
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const [number, wire] = reader.tag();
    const field = fields[number];
    if (field) {
      field(reader);
    } else {
      reader.skip(wire);
    }
  }
}

/** `google.rpc.Status`. What cannot be read is left out: the code and the message are there in any case. */
function readStatus(bytes: Uint8Array, facts: SidecarErrorFacts): void {
  try {
    read(bytes, {
      3: (reader) => {
        let type = "";
        let value: Uint8Array = new Uint8Array();
        read(reader.bytes(), {
          1: (any) => (type = any.string()),
          2: (any) => (value = any.bytes()),
        });
        readDetail(type, value, facts);
      },
    });
  } catch {
    return;
  }
}

function readDetail(type: string, value: Uint8Array, facts: SidecarErrorFacts): void {
  switch (type) {
    case "type.googleapis.com/google.rpc.ErrorInfo":
      read(value, {
        1: (info) => (facts.reason = info.string()),
        3: (info) => {
          let [name, text] = ["", ""];
          read(info.bytes(), { 1: (entry) => (name = entry.string()), 2: (entry) => (text = entry.string()) });
          facts.metadata[name] = text;
        },
      });
      break;
    case "type.googleapis.com/google.rpc.BadRequest":
      read(value, {
        1: (bad) => {
          const violation: FieldViolation = { field: "", description: "" };
          read(bad.bytes(), {
            1: (one) => (violation.field = one.string()),
            2: (one) => (violation.description = one.string()),
          });
          facts.fieldViolations.push(violation);
        },
      });
      break;
    case "type.googleapis.com/google.rpc.RetryInfo":
      read(value, {
        1: (retry) => {
          let [seconds, nanos] = [0, 0];
          read(retry.bytes(), { 1: (delay) => (seconds = Number(delay.int64())), 2: (delay) => (nanos = delay.int32()) });
          facts.retryDelayMs = seconds * 1000 + nanos / 1e6;
        },
      });
      break;
    default:
  }
}
