"""Prints every change, over restarts of the daemon, and what can be had from where it stopped: follow.py [RESUME_TOKEN]"""

import asyncio
import json
import sys

from mcp_sidecar import AsyncClient, Bookmark, Deleted, Reset, SnapshotEnd, Update, proto


def describe(update: Update) -> dict[str, object]:
    """One line about a change."""
    event = update.event
    if isinstance(event, proto.Server):
        return {"server": event.id, "state": proto.ConnectionState.Name(event.status.state)}
    if isinstance(event, proto.Elicitation):
        return {"question": event.id, "state": proto.ElicitationState.Name(event.state)}
    if isinstance(event, proto.Call):
        return {"call": event.id, "state": proto.CallState.Name(event.state)}
    if isinstance(event, proto.SamplingRequest):
        return {"sampling": event.id, "state": proto.ElicitationState.Name(event.state)}
    if isinstance(event, Deleted):
        return {"deleted": event.id}
    if isinstance(event, Reset):
        return {"reset": event.cause.value}
    if isinstance(event, SnapshotEnd):
        return {"snapshot": "end"}
    assert isinstance(event, Bookmark)
    return {"bookmark": True}


async def main() -> None:
    """Follows until it is stopped."""
    token = sys.argv[1] if len(sys.argv) > 1 else ""
    client = await AsyncClient.connect()
    async with client, client.updates(resume_token=token) as updates:
        async for update in updates:
            print(json.dumps({**describe(update), "token": update.resume_token}), flush=True)


asyncio.run(main())
