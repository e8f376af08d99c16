"""The story on plain stubs, asyncio: aio_story.py SOCKET URL"""

import asyncio
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from mcpsidecar.v1 import (
    call_pb2, call_pb2_grpc, elicitation_pb2, elicitation_pb2_grpc, server_pb2, server_pb2_grpc, tool_pb2,
    tool_pb2_grpc, update_pb2, update_pb2_grpc,
)

socket, url = sys.argv[1:]
# gRPC's C core would send the path of the socket as `:authority`, which is not a valid one and is refused; and it takes no
# message above 4 MiB.
OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 72 * 1024 * 1024),
    ("grpc.max_send_message_length", 72 * 1024 * 1024),
]


async def main():
    channel = grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)
    servers = server_pb2_grpc.ServerServiceStub(channel)
    tools = tool_pb2_grpc.ToolServiceStub(channel)
    calls = call_pb2_grpc.CallServiceStub(channel)
    elicitations = elicitation_pb2_grpc.ElicitationServiceStub(channel)
    updates = update_pb2_grpc.UpdateServiceStub(channel)

    spec = server_pb2.ServerSpec(
        name="Story",
        http=server_pb2.HttpTransport(url=url),
        client_capabilities=server_pb2.ClientCapabilities(elicitation_form=True),
    )
    added = (await servers.AddServer(server_pb2.AddServerRequest(server_id="story", spec=spec), timeout=20)).server
    print("added", server_pb2.ConnectionState.Name(added.status.state).removeprefix("CONNECTION_STATE_"))
    listed = (await tools.ListTools(tool_pb2.ListToolsRequest(server_ids=["story"]), timeout=20)).tools
    print("listed", *sorted(tool.name for tool in listed))

    slow = tool_pb2.ToolCall(server_id="story", tool_name="slow")
    async for event in tools.CallToolStream(tool_pb2.CallToolStreamRequest(call=slow), timeout=20):
        if event.HasField("progress"):
            step = event.progress
            print(f"progress {step.progress:.0f} of {step.total:.0f}: {step.message}")
        if event.HasField("result"):
            print("result", event.result.content[0].text.text)
    add = tool_pb2.ToolCall(server_id="story", tool_name="add", arguments_json='{"a": 12345678901234567890, "b": 1}')
    print("sum", (await tools.CallTool(tool_pb2.CallToolRequest(call=add), timeout=20)).result.structured_content_json)

    async def follow():
        """Every update, over lost connections."""
        token = ""
        while True:
            try:
                request = update_pb2.StreamUpdatesRequest(resume_token=token)
                async for update in updates.StreamUpdates(request, wait_for_ready=True):
                    token = update.resume_token or token
                    yield update
            except grpc.aio.AioRpcError as lost:
                if lost.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
                    raise
                await asyncio.sleep(0.05)

    following = follow()
    async for update in following:
        if update.HasField("snapshot_end"):
            print("following")
            break
    async for update in following:
        if update.HasField("snapshot_end"):
            print("snapshot")
        if update.upsert.server.id == "between":
            print("resumed between")
            break

    ask = tool_pb2.ToolCall(server_id="story", tool_name="ask", detach=True)
    call_id = (await tools.CallTool(tool_pb2.CallToolRequest(call=ask), timeout=20)).call_id
    async for update in following:
        question = update.upsert.elicitation
        if question.call_id == call_id:
            print("question", question.message)
            break
    answer = elicitation_pb2.RespondElicitationRequest(
        elicitation_id=question.id, action=elicitation_pb2.ELICITATION_ACTION_ACCEPT, content_json='{"name":"Ada"}'
    )
    await elicitations.RespondElicitation(answer, timeout=20)
    call = (await calls.WaitCall(call_pb2.WaitCallRequest(call_id=call_id), timeout=20)).call
    print("answered", call.tool_result.content[0].text.text)

    def details(error):
        """The details of a status, by type."""
        found = {}
        for detail in rpc_status.from_call(error).details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest):
                if detail.Is(kind.DESCRIPTOR):
                    found[kind] = kind.FromString(detail.value)
        return found

    try:
        await servers.GetServer(server_pb2.GetServerRequest(server_id="nowhere"), timeout=20)
    except grpc.aio.AioRpcError as error:
        print("error", error.code().name, details(error)[error_details_pb2.ErrorInfo].reason)
    try:
        wrong = server_pb2.ServerSpec(name="Wrong", http=server_pb2.HttpTransport(url="ftp://x"))
        await servers.AddServer(server_pb2.AddServerRequest(spec=wrong), timeout=20)
    except grpc.aio.AioRpcError as error:
        found = details(error)
        info, bad = found[error_details_pb2.ErrorInfo], found[error_details_pb2.BadRequest]
        print("violation", error.code().name, info.reason, bad.field_violations[0].field)
    await following.aclose()
    await channel.close()
    print("done")


asyncio.run(main())
