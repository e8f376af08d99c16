"""python MCP SDK 2.x peer: py2_server.py stdio | http PORT | sse PORT | http-stateless PORT"""
import sys, anyio
from pydantic import BaseModel
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import SamplingMessage, TextContent
m = MCPServer("py2-peer", version="1.0", instructions="python sdk v2 peer")
@m.tool()
def add(a: int, b: int) -> int: return a + b
@m.tool()
async def slow(steps: int, ctx: Context) -> str:
    for i in range(steps):
        await anyio.sleep(0.05); await ctx.report_progress(i + 1, steps, f"step {i+1}")
    return "done"
@m.tool()
async def log_it(ctx: Context) -> str:
    await ctx.info("hello from log"); return "logged"
class Who(BaseModel):
    name: str
    age: int = 30
from typing import Annotated
from mcp.server.mcpserver.resolve import Resolve, Elicit, ListRoots, Sample
def _who(): return Elicit("Who are you?", Who)
def _roots(): return ListRoots()
def _smp(): return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="hi"))], max_tokens=10)
@m.tool()
async def era_ask(who: Annotated[Who, Resolve(_who)]) -> str: return f"{who.name}:{who.age}"
from mcp.types import ListRootsResult, CreateMessageResult
@m.tool()
async def era_roots(r: Annotated[ListRootsResult, Resolve(_roots)]) -> str: return str([str(x.uri) for x in r.roots])
@m.tool()
async def era_sample(r: Annotated[CreateMessageResult, Resolve(_smp)]) -> str: return str(r.content)
@m.tool()
async def ask(ctx: Context) -> str:
    r = await ctx.elicit("Who are you?", Who); return f"{r.action}:{getattr(r,'data',None)}"
@m.tool()
async def ask_url(ctx: Context) -> str:
    r = await ctx.elicit_url("open this", "https://example.test/x", "el-1"); return r.action
@m.tool()
async def sample(ctx: Context) -> str:
    r = await ctx.session.create_message(messages=[SamplingMessage(role="user", content=TextContent(type="text", text="hi"))], max_tokens=10); return str(r.content)
@m.tool()
async def roots(ctx: Context) -> str:
    r = await ctx.session.list_roots(); return str([str(x.uri) for x in r.roots])
@m.tool()
async def bump(ctx: Context) -> str:
    await ctx.notify_tools_changed(); await ctx.notify_resource_updated("note://1"); return "bumped"
@m.tool()
def boom() -> str: raise ValueError("boom")
@m.resource("note://1")
def note() -> str: return "note one"
@m.resource("item://{id}")
def item(id: str) -> str: return f"item {id}"
@m.prompt()
def hello(name: str) -> str: return f"Say hello to {name}"
k = sys.argv[1] if len(sys.argv) > 1 else "stdio"
if k == "stdio": m.run("stdio")
elif k == "sse": m.run("sse", port=int(sys.argv[2]))
else: m.run("streamable-http", port=int(sys.argv[2]), stateless_http=(k == "http-stateless"))
