"""An app on plain stubs that has nothing but an address and a token: tcp_story.py ADDRESS, and the token on standard input"""

import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from mcpsidecar.v1 import tool_pb2, tool_pb2_grpc

address, token = sys.argv[1], sys.stdin.readline().strip()
channel = grpc.insecure_channel(address)
tools = tool_pb2_grpc.ToolServiceStub(channel)
call = tool_pb2.CallToolRequest(
    call=tool_pb2.ToolCall(server_id="demo", tool_name="add", arguments_json='{"a": 2, "b": 3}')
)
for metadata in ([("authorization", f"Bearer {token}")], [], [("authorization", "Bearer mcps_other")]):
    try:
        print("sum", tools.CallTool(call, timeout=20, metadata=metadata).result.structured_content_json)
    except grpc.RpcError as error:
        (detail,) = rpc_status.from_call(error).details
        info = error_details_pb2.ErrorInfo.FromString(detail.value)
        print("refused", error.code().name, info.reason)
channel.close()
