/** Tools for the AI SDK (package `ai`, version 5 or 6), which is an optional peer dependency. */

import { dynamicTool, jsonSchema } from "ai";

import { toMcpContent } from "./calls.js";
import type { Client } from "./client.js";
import { parseJson, stringifyJson } from "./json.js";
import { inputSchema } from "./models.js";
import type { DeepPartial, ListToolsRequest, ToolResult } from "./proto.js";
import type { RequestOptions } from "./rpc.js";

/** A result as MCP writes it; what a tool of {@link aiTools} returns. */
export interface McpResult {
  content: Record<string, unknown>[];
  structuredContent?: unknown;
  isError: boolean;
}

/** A set of tools for `generateText` and `streamText`. */
export type AiToolSet = Record<string, ReturnType<typeof dynamicTool>>;

type ModelPart = { type: "text"; text: string } | { type: "media"; data: string; mediaType: string };

function mcpResult(result: ToolResult): McpResult {
  const structured = result.structuredContentJson;
  return {
    content: result.content.map(toMcpContent),
    ...(structured !== undefined && { structuredContent: parseJson(structured, "string") }),
    isError: result.isError,
  };
}

/** What the model gets to see: texts and pictures as such, other content as JSON. */
function modelParts({ content, structuredContent }: McpResult): ModelPart[] {
  if (content.length === 0 && structuredContent !== undefined) {
    return [{ type: "text", text: stringifyJson(structuredContent) }];
  }
  return content.map((block) => {
    if (block["type"] === "text") {
      return { type: "text", text: String(block["text"]) };
    }
    if (block["type"] === "image" || block["type"] === "audio") {
      return { type: "media", data: String(block["data"]), mediaType: String(block["mimeType"]) };
    }
    return { type: "text", text: stringifyJson(block) };
  });
}

/**
 * All tools that match as a tool set of the AI SDK, by their model names; executing one calls the tool, and the abort signal of
 * the generation cancels it at its server. Integers in structured results that a number cannot hold become strings.
 */
export async function aiTools(
  client: Client,
  filter: DeepPartial<ListToolsRequest> = {},
  options: RequestOptions = {},
): Promise<AiToolSet> {
  const { items } = await client.listTools(filter, options);
  const tools = items.map((tool) => {
    const entry = dynamicTool({
      description: tool.description || tool.title,
      inputSchema: jsonSchema(inputSchema(tool)),
      execute: async (input: unknown, { abortSignal }: { abortSignal?: AbortSignal }) => {
        const { serverId, name: toolName } = tool;
        const call = { serverId, toolName, argumentsJson: stringifyJson(input ?? {}) };
        return mcpResult(await client.callTool(call, { ...options, signal: abortSignal ?? options.signal }));
      },
      // Version 5 gives the output itself, version 6 an object with it.
      toModelOutput: (given: unknown) => {
        const output = (given as { output?: McpResult }).output ?? (given as McpResult);
        return { type: "content", value: modelParts(output) };
      },
    });
    return [tool.modelName, entry] as const;
  });
  return Object.fromEntries(tools);
}
