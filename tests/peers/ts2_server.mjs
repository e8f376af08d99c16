// TypeScript SDK v2 peer: node ts2_server.mjs stdio | http PORT | modern-only PORT
import { createServer } from 'node:http';
import { McpServer, acceptedContent, createMcpHandler, createRequestStateCodec, inputRequired } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { toNodeHandler } from '@modelcontextprotocol/node';
import * as z from 'zod';
const Size = z.object({ size: z.enum(['small', 'large']) });
const Sure = z.object({ sure: z.boolean() });
// The server keeps nothing between rounds: what was answered before is in the state that the client hands back.
const state = createRequestStateCodec({ key: 'a key of thirty-two bytes or more' });
const factory = () => {
  const s = new McpServer({ name: 'ts2-peer', version: '1.0.0' }, { capabilities: { tools: { listChanged: true }, logging: {} }, requestState: { verify: state.verify } });
  s.registerTool('add', { description: 'add', inputSchema: z.object({ a: z.number(), b: z.number() }) }, async ({ a, b }) => ({ content: [{ type: 'text', text: String(a + b) }], structuredContent: { sum: a + b } }));
  s.registerTool('prog', { description: 'progress', inputSchema: z.object({ n: z.number() }) }, async ({ n }, ctx) => {
    const tok = ctx.mcpReq?._meta?.progressToken;
    for (let i = 1; i <= n; i++) if (tok !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: tok, progress: i, total: n } });
    return { content: [{ type: 'text', text: 'done' }] };
  });
  s.registerTool('order', { description: 'two rounds of questions', inputSchema: z.object({}) }, async (_, ctx) => {
    const before = ctx.mcpReq.requestState();
    if (!before) {
      const chosen = acceptedContent(ctx.mcpReq.inputResponses, 'size', Size);
      if (!chosen) return inputRequired({ inputRequests: { size: inputRequired.elicit({ message: 'Which size?', requestedSchema: Size }) } });
      const requestState = await state.mint(chosen);
      return inputRequired({ inputRequests: { sure: inputRequired.elicit({ message: `Really ${chosen.size}?`, requestedSchema: Sure }) }, requestState });
    }
    const sure = acceptedContent(ctx.mcpReq.inputResponses, 'sure', Sure);
    return { content: [{ type: 'text', text: sure?.sure ? `ordered ${before.size}` : 'ordered nothing' }] };
  });
  s.registerResource('note', 'note://1', { description: 'n' }, async uri => ({ contents: [{ uri: uri.href, text: 'n' }] }));
  s.registerPrompt('hello', { description: 'h', argsSchema: z.object({ name: z.string() }) }, ({ name }) => ({ messages: [{ role: 'user', content: { type: 'text', text: `hi ${name}` } }] }));
  return s;
};
const [k, p] = process.argv.slice(2);
if (!k || k === 'stdio') serveStdio(factory);
else createServer(toNodeHandler(createMcpHandler(factory, k === 'modern-only' ? { legacy: 'reject' } : {}))).listen(+p, '127.0.0.1', () => console.error('up'));
