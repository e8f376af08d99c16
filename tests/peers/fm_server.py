"""FastMCP 4 peer: fm_server.py stdio | http PORT | sse PORT | oauth PORT"""
import sys, asyncio
from dataclasses import dataclass
from fastmcp import FastMCP, Context
k = sys.argv[1] if len(sys.argv) > 1 else "stdio"; port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
auth = None
if k == "oauth":
    from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
    from mcp.server.auth.settings import ClientRegistrationOptions
    auth = InMemoryOAuthProvider(base_url=f"http://127.0.0.1:{port}", client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["read","write"]), required_scopes=["read"])
m = FastMCP("fm-peer", instructions="fastmcp 4 peer", auth=auth)
@m.tool
def add(a: int, b: int) -> int: return a + b
@m.tool
async def slow(steps: int, ctx: Context) -> str:
    for i in range(steps): await asyncio.sleep(.05); await ctx.report_progress(i+1, steps)
    return "done"
@dataclass
class Who: name: str; age: int = 3
@m.tool
async def ask(ctx: Context) -> str:
    r = await ctx.elicit("who?", response_type=Who); return f"{r.action}"
@m.tool
async def logit(ctx: Context) -> str: await ctx.info("x"); return "ok"
@m.resource("note://1")
def note() -> str: return "n"
@m.prompt
def hello(name: str) -> str: return f"hi {name}"
if k == "stdio": m.run()
elif k == "sse": m.run(transport="sse", port=port)
else: m.run(transport="http", port=port)
