// Answers what servers ask, in the terminal, until Ctrl-C: node answer.mjs
import { createInterface } from "node:readline/promises";
import { Client, openBrowser } from "mcp-sidecar-client";

const client = await Client.connect();
const terminal = createInterface({ input: process.stdin, output: process.stdout });

const session = client.answerQuestions(
  {
    async form(question, { signal }) {
      console.log(`${question.serverName} asks: ${question.message}`);
      const content = {};
      for (const { name, title, kind } of question.fields) {
        const text = await terminal.question(`${title || name}: `, { signal });
        if (kind?.$case === "boolean") content[name] = /^y/i.test(text);
        else if (kind?.$case === "integer" || kind?.$case === "number") content[name] = Number(text);
        else content[name] = text;
      }
      return { content };
    },
    async url(question, { signal }) {
      console.log(`${question.serverName} asks: ${question.message}`);
      console.log(`It leads to ${question.urlHost} ${question.urlWarnings.join(" ")}\n${question.url}`);
      const agreed = /^y/i.test(await terminal.question("Open it? [y/N] ", { signal }));
      if (agreed) await openBrowser(question.url);
      return agreed ? "accept" : "decline";
    },
    async approval(question, { signal }) {
      console.log(`${question.serverName}: ${question.toolName} ${question.argumentsJson}`);
      return /^y/i.test(await terminal.question("Make this call? [y/N] ", { signal })) ? "accept" : "decline";
    },
  },
  { concurrency: 1 },
);
await session.ready;
console.log("listening for questions");
await session.done;
