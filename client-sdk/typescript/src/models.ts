/** Tools in the shapes of model APIs, and a model's tool calls back into calls. No SDK of a provider is needed. */

import { textOf, toMcpContent, type ToolCallInit } from "./calls.js";
import { type Client, type Listing } from "./client.js";
import { SidecarError } from "./errors.js";
import { parseJson, stringifyJson } from "./json.js";
import type { DeepPartial, ListToolsRequest, Tool, ToolResult } from "./proto.js";
import type { RequestOptions } from "./rpc.js";

/** A JSON Schema. */
export type JsonSchema = Record<string, unknown>;

/** A tool for OpenAI's Responses API. */
export interface OpenAiResponsesTool {
  type: "function";
  name: string;
  description: string;
  parameters: JsonSchema;
  strict: false;
}

/** A tool for OpenAI's Chat Completions API, and the many that copy it. */
export interface OpenAiChatTool {
  type: "function";
  function: { name: string; description: string; parameters: JsonSchema };
}

/** A tool for Anthropic's Messages API. */
export interface AnthropicTool {
  name: string;
  description: string;
  input_schema: JsonSchema & { type: "object" };
}

/** The tools for the Gemini API: one entry of `config.tools`. */
export interface GeminiTool {
  functionDeclarations: { name: string; description: string; parametersJsonSchema: JsonSchema }[];
}

/** The model APIs, and what each calls its things. */
export interface ModelApis {
  "openai-responses": {
    tools: OpenAiResponsesTool[];
    call: { type: "function_call"; call_id: string; name: string; arguments: string };
    answer: { type: "function_call_output"; call_id: string; output: string };
  };
  "openai-chat": {
    tools: OpenAiChatTool[];
    call: { id: string; function: { name: string; arguments: string } };
    answer: { role: "tool"; tool_call_id: string; content: string };
  };
  anthropic: {
    tools: AnthropicTool[];
    call: { type: "tool_use"; id: string; name: string; input: unknown };
    answer: { type: "tool_result"; tool_use_id: string; content: AnthropicContent[]; is_error: boolean };
  };
  gemini: {
    tools: GeminiTool[];
    call: { id?: string; name?: string; args?: Record<string, unknown> };
    answer: { functionResponse: { id?: string; name: string; response: Record<string, unknown> } };
  };
}

/** Content of an answer to Anthropic's models. */
export type AnthropicContent =
  | { type: "text"; text: string }
  | {
      type: "image";
      source: { type: "base64"; media_type: "image/jpeg" | "image/png" | "image/gif" | "image/webp"; data: string };
    };

/** Name of a model API. */
export type ModelApi = keyof ModelApis;

/** The schema of a tool's arguments as a value; every API wants an object with properties. */
export function inputSchema(tool: Tool): JsonSchema & { type: "object" } {
  const schema = parseJson(tool.inputSchemaJson || "{}", "number") as JsonSchema;
  return { properties: {}, ...schema, type: "object" };
}

/** Tools in the shape of a model API, under their model names. */
export function toModelTools<A extends ModelApi>(api: A, tools: Tool[]): ModelApis[A]["tools"];
export function toModelTools(api: ModelApi, tools: Tool[]): ModelApis[ModelApi]["tools"] {
  const all = tools.map((tool) => ({
    name: tool.modelName,
    description: tool.description || tool.title,
    schema: inputSchema(tool),
  }));
  switch (api) {
    case "openai-responses":
      return all.map(({ name, description, schema }) => ({
        type: "function" as const,
        name,
        description,
        parameters: schema,
        strict: false as const,
      }));
    case "openai-chat":
      return all.map(({ name, description, schema }) => ({
        type: "function" as const,
        function: { name, description, parameters: schema },
      }));
    case "anthropic":
      return all.map(({ name, description, schema }) => ({ name, description, input_schema: schema }));
    case "gemini": {
      const declare = ({ name, description, schema }: (typeof all)[number]) => ({
        name,
        description,
        parametersJsonSchema: schema,
      });
      return all.length === 0 ? [] : [{ functionDeclarations: all.map(declare) }];
    }
  }
}

/** All tools that match, in the shape of a model API, and the servers whose tools are missing. */
export async function listModelTools<A extends ModelApi>(
  client: Client,
  api: A,
  filter: DeepPartial<ListToolsRequest> = {},
  options: RequestOptions = {},
): Promise<{ tools: ModelApis[A]["tools"]; issues: Listing<Tool>["issues"] }> {
  const { items, issues } = await client.listTools(filter, options);
  return { tools: toModelTools(api, items), issues };
}

/** A model's tool call as a call of the tool. */
export function fromModelCall<A extends ModelApi>(api: A, call: ModelApis[A]["call"]): ToolCallInit;
export function fromModelCall(api: ModelApi, call: ModelApis[ModelApi]["call"]): ToolCallInit {
  switch (api) {
    case "openai-responses": {
      const { name, arguments: text } = call as ModelApis["openai-responses"]["call"];
      return { modelName: name, argumentsJson: text || "{}" };
    }
    case "openai-chat": {
      const { name, arguments: text } = (call as ModelApis["openai-chat"]["call"]).function;
      return { modelName: name, argumentsJson: text || "{}" };
    }
    case "anthropic": {
      const { name, input } = call as ModelApis["anthropic"]["call"];
      return { modelName: name, argumentsJson: stringifyJson(input ?? {}) };
    }
    case "gemini": {
      const { name = "", args } = call as ModelApis["gemini"]["call"];
      return { modelName: name, argumentsJson: stringifyJson(args ?? {}) };
    }
  }
}

/** A result as text for a model: its texts if it has nothing else, otherwise its content as MCP writes it. */
export function resultText(result: ToolResult): string {
  if (result.content.length === 0) {
    return result.structuredContentJson ?? "";
  }
  const textOnly = result.content.every(({ block }) => block?.$case === "text");
  return textOnly ? textOf(result) : stringifyJson(result.content.map(toMcpContent));
}

const PICTURES = ["image/jpeg", "image/png", "image/gif", "image/webp"] as const;

function anthropicContent(result: ToolResult): AnthropicContent[] {
  if (result.content.length === 0) {
    return [{ type: "text", text: result.structuredContentJson ?? "" }];
  }
  return result.content.map((content) => {
    const { block } = content;
    if (block?.$case === "text") {
      return { type: "text", text: block.value.text };
    }
    const picture = block?.$case === "image" ? PICTURES.find((type) => type === block.value.mimeType) : undefined;
    if (block?.$case === "image" && picture) {
      const data = Buffer.from(block.value.data).toString("base64");
      return { type: "image", source: { type: "base64", media_type: picture, data } };
    }
    return { type: "text", text: stringifyJson(toMcpContent(content)) };
  });
}

/** A result in the shape that a model API wants as the answer to its call. */
export function toModelAnswer<A extends ModelApi>(
  api: A,
  call: ModelApis[A]["call"],
  result: ToolResult,
): ModelApis[A]["answer"];
export function toModelAnswer(
  api: ModelApi,
  call: ModelApis[ModelApi]["call"],
  result: ToolResult,
): ModelApis[ModelApi]["answer"] {
  const text = resultText(result);
  switch (api) {
    case "openai-responses": {
      const { call_id } = call as ModelApis["openai-responses"]["call"];
      return { type: "function_call_output", call_id, output: text };
    }
    case "openai-chat": {
      const { id } = call as ModelApis["openai-chat"]["call"];
      return { role: "tool", tool_call_id: id, content: text };
    }
    case "anthropic": {
      const { id } = call as ModelApis["anthropic"]["call"];
      return { type: "tool_result", tool_use_id: id, content: anthropicContent(result), is_error: result.isError };
    }
    case "gemini": {
      const { id, name = "" } = call as ModelApis["gemini"]["call"];
      const response = { [result.isError ? "error" : "output"]: text };
      return { functionResponse: { ...(id !== undefined && { id }), name, response } };
    }
  }
}

/** What a model can do something about, and is told in place of a result. */
const FOR_THE_MODEL = new Set(["INVALID_FIELD", "TOOL_NOT_FOUND", "TOOL_NOT_ALLOWED", "CALL_NOT_APPROVED", "UPSTREAM_ERROR"]);

/**
 * Makes a model's tool call and returns the answer for the model. What a model can do something about (arguments that are
 * refused, a tool that is not there, a call that nobody approved, an error of the server) becomes an answer that says so; any
 * other failure is thrown.
 */
export async function runModelCall<A extends ModelApi>(
  client: Client,
  api: A,
  call: ModelApis[A]["call"],
  options: RequestOptions = {},
): Promise<ModelApis[A]["answer"]> {
  try {
    return toModelAnswer(api, call, await client.callTool(fromModelCall(api, call), options));
  } catch (error) {
    if (!(error instanceof SidecarError) || !FOR_THE_MODEL.has(error.reason)) {
      throw error;
    }
    const block = { $case: "text", value: { text: error.message, extraJson: "" } } as const;
    const result: ToolResult = {
      content: [{ block }],
      structuredContentJson: undefined,
      isError: true,
      metaJson: "",
      extraJson: "",
      check: undefined,
    };
    return toModelAnswer(api, call, result);
  }
}
