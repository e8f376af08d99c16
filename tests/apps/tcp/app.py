"""An app on the Python client that has an address and a token, both in its environment; its input says when to go on."""

import asyncio
import os
from pathlib import Path

from mcp_sidecar import AsyncClient, Client, SidecarError, SnapshotEnd


def told_of(act):
    try:
        act()
    except SidecarError as error:
        return error.reason
    except ValueError as error:
        return str(error).partition(":")[0]
    raise AssertionError("it is refused")


token = Path(os.environ["MCP_SIDECAR_TOKEN_FILE"]).read_text().strip()
with Client.connect() as client:
    print(client.call_tool("demo", "add", {"a": 2, "b": 3}).structured_json)
    client.call_tool("demo", "slow", on_progress=lambda progress: print("progress", progress.message))
    assert token not in repr(vars(client._inner))
address = os.environ["MCP_SIDECAR_ADDRESS"]
with Client.connect(address=address, token="mcps_wrong") as client:
    print(told_of(client.list_tools))
print(told_of(lambda: Client.connect(address="nowhere", token=token)))
print(told_of(lambda: Client.connect(token="")))


async def follow():
    async with await AsyncClient.connect(address=address, token=token) as client:
        async with client.updates() as updates:
            try:
                async for update in updates:
                    if isinstance(update.event, SnapshotEnd):
                        print("following", flush=True)
            except SidecarError as error:
                print("ended", error.reason)


asyncio.run(follow())
