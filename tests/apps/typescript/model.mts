// A model that wants the tool `add` and then says what came of it.
import { MockLanguageModelV3 } from "ai/test";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

export const model = new MockLanguageModelV3({
  doGenerate: async ({ prompt, tools = [] }) => {
    const answers = prompt.filter((message) => message.role === "tool").flatMap((message) => message.content);
    if (answers.length === 0) {
      const add = tools.find(({ name }) => name.endsWith("_add"));
      if (add?.type !== "function") throw new Error("the tool is not offered");
      const input = JSON.stringify({ a: 2, b: 3 });
      return {
        content: [{ type: "tool-call", toolCallId: "call-1", toolName: add.name, input }],
        finishReason: { unified: "tool-calls", raw: undefined },
        usage,
        warnings: [],
      };
    }
    return {
      content: [{ type: "text", text: `the tool says ${JSON.stringify(answers)}` }],
      finishReason: { unified: "stop", raw: undefined },
      usage,
      warnings: [],
    };
  },
});
