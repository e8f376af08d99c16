/** Tool calls: how they are written, and their events. */

import { type BigIntegers, parseJson, stringifyJson } from "./json.js";
import {
  type CallToolStreamResponse,
  type ContentBlock,
  type DeepPartial,
  ToolCall,
  type ToolResult,
} from "./proto.js";

/** A duration of the contract. */
export interface Duration {
  seconds: bigint;
  nanos: number;
}

/** Milliseconds as a duration of the contract. */
export function duration(ms: number): Duration {
  const whole = Math.trunc(ms / 1000);
  return { seconds: BigInt(whole), nanos: Math.round((ms - whole * 1000) * 1e6) };
}

/** Which tool to call with what: the fields of the contract's `ToolCall`, and shorter ways for some. */
export interface ToolCallInit extends DeepPartial<ToolCall> {
  /** The arguments as a value, in place of `argumentsJson`; `bigint` values keep all their digits. */
  arguments?: Record<string, unknown> | undefined;
  /** Bound on the whole call at the server, in place of `timeout`. */
  timeoutMs?: number | undefined;
  /** Bound on silence of the server, in place of `idleTimeout`. */
  idleTimeoutMs?: number | undefined;
}

/** The message for a call. */
export function toolCall(init: ToolCallInit, namespace: string): ToolCall {
  const { arguments: values, timeoutMs, idleTimeoutMs, ...fields } = init;
  const call = ToolCall.fromPartial(fields);
  call.namespace ||= namespace;
  if (values !== undefined) {
    call.argumentsJson = stringifyJson(values);
  }
  if (timeoutMs !== undefined) {
    call.timeout = duration(timeoutMs);
  }
  if (idleTimeoutMs !== undefined) {
    call.idleTimeout = duration(idleTimeoutMs);
  }
  return call;
}

/**
 * An event of a running call: `started` with its id comes first and `result` last; between them `progress`, `log`,
 * `inputRequired` (the open questions) and `task`.
 */
export type CallEvent = NonNullable<CallToolStreamResponse["event"]>;

/** The text blocks of a result, a line each. */
export function textOf(result: ToolResult | undefined): string {
  const texts = (result?.content ?? []).map(({ block }) => (block?.$case === "text" ? block.value.text : undefined));
  return texts.filter((text) => text !== undefined).join("\n");
}

/** The structured result as a value; `undefined` if there is none. See {@link parseJson} for big integers. */
export function structuredOf(result: ToolResult | undefined, bigIntegers: BigIntegers = "bigint"): unknown {
  const text = result?.structuredContentJson;
  return text === undefined ? undefined : parseJson(text, bigIntegers);
}

/** A block of content as MCP writes it: an object with a `type`. */
export function toMcpContent({ block }: ContentBlock): Record<string, unknown> {
  if (block === undefined) {
    return { type: "text", text: "" };
  }
  const members = (extraJson: string) => (extraJson ? (parseJson(extraJson, "number") as Record<string, unknown>) : {});
  const given = (values: Record<string, unknown>) =>
    Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));
  switch (block.$case) {
    case "text":
      return { ...members(block.value.extraJson), type: "text", text: block.value.text };
    case "image":
    case "audio": {
      const { data, mimeType, extraJson } = block.value;
      return { ...members(extraJson), type: block.$case, data: Buffer.from(data).toString("base64"), mimeType };
    }
    case "resourceLink": {
      const { extraJson, size, ...link } = block.value;
      return { ...members(extraJson), type: "resource_link", ...given({ ...link, size: size && Number(size) }) };
    }
    case "resource": {
      const { uri = "", mimeType = "", body, extraJson = "" } = block.value.resource ?? {};
      const held = body?.$case === "blob" ? { blob: Buffer.from(body.value).toString("base64") } : { text: body?.value };
      const resource = { ...members(extraJson), ...given({ uri, mimeType }), ...held };
      return { ...members(block.value.extraJson), type: "resource", resource };
    }
    case "rawJson":
      return parseJson(block.value, "number") as Record<string, unknown>;
  }
}
