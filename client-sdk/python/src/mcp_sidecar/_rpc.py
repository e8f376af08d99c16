"""The RPCs that this package makes, each with its types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from . import proto as pb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class Rpc(Generic[Q, R]):
    """An RPC: its path, its request and its response. `Client.invoke` makes those that have no method of their own."""

    service: str
    method: str
    request: type[Q]
    response: type[R]

    @property
    def path(self) -> str:
        """What goes over the wire. The package is that of the contract, not that of the generated Python code."""
        return f"/mcpsidecar.v1.{self.service}/{self.method}"


def _server(method: str, request: type[Q], response: type[R]) -> Rpc[Q, R]:
    return Rpc("ServerService", method, request, response)


ADD_SERVER = _server("AddServer", pb.AddServerRequest, pb.AddServerResponse)
GET_SERVER = _server("GetServer", pb.GetServerRequest, pb.GetServerResponse)
LIST_SERVERS = _server("ListServers", pb.ListServersRequest, pb.ListServersResponse)
UPDATE_SERVER = _server("UpdateServer", pb.UpdateServerRequest, pb.UpdateServerResponse)
REMOVE_SERVER = _server("RemoveServer", pb.RemoveServerRequest, pb.RemoveServerResponse)
CONNECT_SERVER = _server("ConnectServer", pb.ConnectServerRequest, pb.ConnectServerResponse)
DISCONNECT_SERVER = _server("DisconnectServer", pb.DisconnectServerRequest, pb.DisconnectServerResponse)
REFRESH_SERVER = _server("RefreshServer", pb.RefreshServerRequest, pb.RefreshServerResponse)
WAIT_FOR_SERVERS = _server("WaitForServers", pb.WaitForServersRequest, pb.WaitForServersResponse)
GET_SERVER_LOG = _server("GetServerLog", pb.GetServerLogRequest, pb.GetServerLogResponse)
LIST_TOOLS = Rpc("ToolService", "ListTools", pb.ListToolsRequest, pb.ListToolsResponse)
CALL_TOOL = Rpc("ToolService", "CallTool", pb.CallToolRequest, pb.CallToolResponse)
CALL_TOOL_STREAM = Rpc("ToolService", "CallToolStream", pb.CallToolStreamRequest, pb.CallToolStreamResponse)
GET_CALL = Rpc("CallService", "GetCall", pb.GetCallRequest, pb.GetCallResponse)
WAIT_CALL = Rpc("CallService", "WaitCall", pb.WaitCallRequest, pb.WaitCallResponse)
CANCEL_CALL = Rpc("CallService", "CancelCall", pb.CancelCallRequest, pb.CancelCallResponse)
LIST_CALLS = Rpc("CallService", "ListCalls", pb.ListCallsRequest, pb.ListCallsResponse)
LIST_RESOURCES = Rpc("ResourceService", "ListResources", pb.ListResourcesRequest, pb.ListResourcesResponse)
READ_RESOURCE = Rpc("ResourceService", "ReadResource", pb.ReadResourceRequest, pb.ReadResourceResponse)
LIST_PROMPTS = Rpc("PromptService", "ListPrompts", pb.ListPromptsRequest, pb.ListPromptsResponse)
GET_PROMPT = Rpc("PromptService", "GetPrompt", pb.GetPromptRequest, pb.GetPromptResponse)
LIST_ELICITATIONS = Rpc(
    "ElicitationService", "ListElicitations", pb.ListElicitationsRequest, pb.ListElicitationsResponse
)
RESPOND_ELICITATION = Rpc(
    "ElicitationService", "RespondElicitation", pb.RespondElicitationRequest, pb.RespondElicitationResponse
)
RESPOND_SAMPLING = Rpc("SamplingService", "RespondSampling", pb.RespondSamplingRequest, pb.RespondSamplingResponse)
START_SIGN_IN = Rpc("AuthService", "StartSignIn", pb.StartSignInRequest, pb.StartSignInResponse)
GET_SIGN_IN = Rpc("AuthService", "GetSignIn", pb.GetSignInRequest, pb.GetSignInResponse)
COMPLETE_SIGN_IN = Rpc("AuthService", "CompleteSignIn", pb.CompleteSignInRequest, pb.CompleteSignInResponse)
SIGN_OUT = Rpc("AuthService", "SignOut", pb.SignOutRequest, pb.SignOutResponse)
GET_AUTH_STATUS = Rpc("AuthService", "GetAuthStatus", pb.GetAuthStatusRequest, pb.GetAuthStatusResponse)
STREAM_UPDATES = Rpc("UpdateService", "StreamUpdates", pb.StreamUpdatesRequest, pb.StreamUpdatesResponse)

