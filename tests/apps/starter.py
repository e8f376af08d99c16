"""An app in Python that makes a call and does not wait for it: starter.py SOCKET PROTOS STUBS SERVER TOOL

Generates its stubs from the contract in PROTOS into STUBS, prints the call's id, and exits.
"""
import sys
from pathlib import Path

import grpc
from grpc_tools import protoc

socket, protos, stubs, server, tool = sys.argv[1:]
files = sorted(str(file) for file in Path(protos).rglob("*.proto"))
wellknown = Path(protoc.__file__).parent / "_proto"
arguments = ["protoc", f"-I{protos}", f"-I{wellknown}", f"--python_out={stubs}", f"--grpc_python_out={stubs}", *files]
if protoc.main(arguments) != 0:
    sys.exit("no stubs can be generated from the contract")
sys.path.insert(0, stubs)
from mcpsidecar.v1 import tool_pb2, tool_pb2_grpc  # noqa: E402

options = [("grpc.default_authority", "localhost")]
with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
    call = tool_pb2.ToolCall(server_id=server, tool_name=tool, arguments_json="{}", detach=True)
    request = tool_pb2.CallToolRequest(call=call)
    made = tool_pb2_grpc.ToolServiceStub(channel).CallTool(request, timeout=20)
print(made.call_id)
