"""python MCP SDK 1.x peer (2025-11-25 only)"""
import sys
from pydantic import BaseModel
from mcp.server.fastmcp import FastMCP, Context
k = sys.argv[1]; port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
m = FastMCP("py1-peer", port=port, stateless_http=(k == "http-stateless"), json_response=(k == "http-json"))
@m.tool()
def add(a: int, b: int) -> int: return a + b
class Who(BaseModel): name: str
@m.tool()
async def ask(ctx: Context) -> str:
    r = await ctx.elicit("who?", Who); return r.action
@m.tool()
async def prog(ctx: Context) -> str:
    for i in range(3): await ctx.report_progress(i, 3, f"s{i}")
    return "ok"
@m.resource("note://1")
def n() -> str: return "n"
m.run("stdio" if k == "stdio" else "sse" if k == "sse" else "streamable-http")
