"""The asynchronous client."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, Union

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from . import _rpc as rpc
from . import proto as pb
from ._connect import (
    Bearer,
    find,
    find_address,
    find_token,
    jittered,
    open_channel,
    open_tcp_channel,
    socket_candidates,
)
from ._json import Arguments, to_json
from ._rpc import Rpc
from .calls import DEFAULT_OPTIONS, CallEvent, CallInfo, CallOptions, CallResult, CallStream, ToolRef, tool_call
from .errors import Code, DeadlineExceeded, SidecarError, Unavailable, from_rpc_error
from .models import TOLD, ModelAnswer, Shape, answer_error, answer_result, model_tools, read_model_call
from .questions import Accept, Answer, Answerer, Cancel, Decline, Handlers, Question, in_thread, normalised
from .updates import Updates, update_request

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

ProgressHandler = Callable[[pb.Progress], Union[None, Awaitable[None]]]
SIGN_IN_ROUND = 20.0
GONE_BOUND = 60.0


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Entries of all pages, and the servers whose entries are missing or may be out of date."""

    items: list[T]
    """The entries."""
    issues: list[pb.ListingIssue]
    """Servers that are not, or not completely, in it."""


class SignInFailed(SidecarError):
    """A sign-in has ended without success, or its time is over."""

    def __init__(self, sign_in: pb.SignIn) -> None:
        self.sign_in = sign_in
        """The sign-in as it is."""
        state = pb.SignInState.Name(sign_in.state).removeprefix("SIGN_IN_STATE_").lower()
        why = f": {sign_in.failure}" if sign_in.failure else ""
        super().__init__(Code.FAILED_PRECONDITION, f"the sign-in is {state}{why}", reason="SIGN_IN_FAILED")


def http_server(
    name: str, url: str, *, server_id: str = "", headers: dict[str, str] | None = None
) -> pb.AddServerRequest:
    """Asks for a server at a URL. Every other field of the request can be set afterwards."""
    fields = [pb.Header(name=key, value=value) for key, value in (headers or {}).items()]
    spec = pb.ServerSpec(name=name, http=pb.HttpTransport(url=url, headers=fields))
    return pb.AddServerRequest(server_id=server_id, spec=spec)


def stdio_server(
    name: str,
    command: str,
    args: Iterable[str] = (),
    *,
    server_id: str = "",
    env: dict[str, str] | None = None,
    cwd: str = "",
) -> pb.AddServerRequest:
    """Asks for a server that the daemon starts as a child process. No shell is involved."""
    variables = [pb.EnvVar(name=key, value=value) for key, value in (env or {}).items()]
    transport = pb.StdioTransport(command=command, args=args, env=variables, cwd=cwd)
    return pb.AddServerRequest(server_id=server_id, spec=pb.ServerSpec(name=name, stdio=transport))


class AsyncClient:
    """A connection to the daemon, for asyncio. It repairs itself: after a loss the next request opens it again.

    Failed requests raise `SidecarError`. A task that is cancelled cancels its request, and a call with it.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        namespace: str,
        deadline: float | None,
        socket: Path | None,
        bearer: Bearer | None = None,
    ) -> None:
        self._channel, self._deadline = channel, deadline
        self._metadata = bearer.metadata if bearer else ()
        self.namespace = namespace
        """The namespace of every request that names none. Empty: `default`."""
        self.socket = socket
        """The daemon's socket; none over TCP."""

    @classmethod
    async def connect(
        cls,
        socket: str | os.PathLike[str] | None = None,
        *,
        address: str | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        namespace: str = "",
        connect_timeout: float = 5.0,
        deadline: float | None = None,
    ) -> AsyncClient:
        """Finds the daemon and waits until it answers, with a back-off of at most half a second.

        `connect_timeout` bounds the wait, in seconds; with 0 each path is tried once. `deadline` is that of every request,
        updates excepted; by default only the daemon's own timeouts apply. Raises `ConnectFailed`, which names every path.

        Where the socket cannot be reached, `address` is the daemon's, such as `127.0.0.1:7443` (else `$MCP_SIDECAR_ADDRESS`,
        unless there is a socket), and needs a token: `token`, or that in `token_file`, else `$MCP_SIDECAR_TOKEN` or that in
        `$MCP_SIDECAR_TOKEN_FILE`. Raises `ValueError` for what is no address or no token.
        """
        if address is None and socket is None:
            address = find_address()
        if address is not None:
            bearer = find_token(token, token_file)
            await find([address], connect_timeout)
            return cls(open_tcp_channel(address), namespace, deadline, None, bearer)
        paths = socket_candidates() if socket is None else [Path(socket)]
        path = await find(paths, connect_timeout)
        return cls(open_channel(path), namespace, deadline, path)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; what is under way is cancelled."""
        await self._channel.close()

    def _named(self, request: Message) -> None:
        where: Any = request.call if isinstance(request, (pb.CallToolRequest, pb.CallToolStreamRequest)) else request
        if self.namespace and "namespace" in where.DESCRIPTOR.fields_by_name and not where.namespace:
            where.namespace = self.namespace

    async def invoke(self, method: Rpc[Q, R], request: Q, timeout: float | None = None) -> R:
        """Makes any unary request of the contract, with the namespace, the deadline and the errors of this client."""
        self._named(request)
        make = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            bound = self._deadline if timeout is None else timeout
            answer: R = await make(request, timeout=bound, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return answer

    async def _pages(self, method: Rpc[Q, R], request: Any, field: str) -> Listing[Any]:
        listing: Listing[Any] = Listing([], [])
        while True:
            answer: Any = await self.invoke(method, request)
            listing.items.extend(getattr(answer, field))
            if "issues" in answer.DESCRIPTOR.fields_by_name:
                listing.issues.extend(answer.issues)
            if not answer.next_page_token:
                return listing
            request.page_token = answer.next_page_token

    # Servers.

    async def add_server(self, request: pb.AddServerRequest) -> pb.AddServerResponse:
        """Registers a server; see `http_server` and `stdio_server`. Idempotent. A failed connection is no error: look at
        `server.status`."""
        return await self.invoke(rpc.ADD_SERVER, request)

    async def get_server(self, server_id: str) -> pb.Server:
        """Returns one server."""
        return (await self.invoke(rpc.GET_SERVER, pb.GetServerRequest(server_id=server_id))).server

    async def list_servers(self, states: Sequence[pb.ConnectionState.ValueType] = ()) -> list[pb.Server]:
        """Lists the servers of the namespace."""
        found = await self._pages(rpc.LIST_SERVERS, pb.ListServersRequest(states=states), "servers")
        return found.items

    async def update_server(
        self, server_id: str, spec: pb.ServerSpec, fields: Sequence[str], etag: str = ""
    ) -> pb.Server:
        """Changes the named settings, for example `["timeouts.call"]`."""
        request = pb.UpdateServerRequest(server_id=server_id, spec=spec, etag=etag)
        request.update_mask.paths.extend(fields)
        return (await self.invoke(rpc.UPDATE_SERVER, request)).server

    async def remove_server(self, server_id: str) -> None:
        """Removes a server and ends its calls."""
        await self.invoke(rpc.REMOVE_SERVER, pb.RemoveServerRequest(server_id=server_id))

    async def connect_server(self, server_id: str) -> pb.Server:
        """Connects a server that is disconnected, or retries one that has failed."""
        return (await self.invoke(rpc.CONNECT_SERVER, pb.ConnectServerRequest(server_id=server_id))).server

    async def disconnect_server(self, server_id: str) -> pb.Server:
        """Ends the connection of a server and keeps its registration."""
        request = pb.DisconnectServerRequest(server_id=server_id)
        return (await self.invoke(rpc.DISCONNECT_SERVER, request)).servers[0]

    async def refresh_server(self, server_id: str) -> pb.Server:
        """Reads the lists of a server again."""
        return (await self.invoke(rpc.REFRESH_SERVER, pb.RefreshServerRequest(server_id=server_id))).server

    async def wait_for_servers(
        self, server_ids: Sequence[str] = (), timeout: float | None = None
    ) -> pb.WaitForServersResponse:
        """Waits until servers have settled; `settled` says whether they have."""
        request = pb.WaitForServersRequest(server_ids=server_ids, timeout=_duration(timeout))
        return await self.invoke(rpc.WAIT_FOR_SERVERS, request)

    async def server_log(self, server_id: str) -> list[pb.ServerLogLine]:
        """The last lines that a stdio server wrote to its standard error."""
        return list((await self.invoke(rpc.GET_SERVER_LOG, pb.GetServerLogRequest(server_id=server_id))).lines)

    # Tools and calls.

    async def list_tools(
        self,
        server_ids: Sequence[str] = (),
        names: Sequence[str] = (),
        style: pb.ModelNameStyle.ValueType = pb.MODEL_NAME_STYLE_UNSPECIFIED,
    ) -> Listing[pb.Tool]:
        """Lists tools of the namespace from the daemon's catalog."""
        request = pb.ListToolsRequest(server_ids=server_ids, names=names, model_name_style=style)
        return await self._pages(rpc.LIST_TOOLS, request, "tools")

    async def list_model_tools(self, shape: Shape, server_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Lists tools as a model API wants them."""
        return model_tools((await self.list_tools(server_ids)).items, shape)

    async def call_tool(
        self,
        server_id: str,
        tool: str,
        arguments: Arguments = None,
        *,
        options: CallOptions = DEFAULT_OPTIONS,
        on_progress: ProgressHandler | None = None,
    ) -> CallResult:
        """Calls a tool and waits for its result, through the questions that its server asks."""
        return await self._call(ToolRef(server_id, tool), arguments, options, on_progress)

    async def call_model_tool(
        self,
        model_name: str,
        arguments: Arguments = None,
        *,
        options: CallOptions = DEFAULT_OPTIONS,
        on_progress: ProgressHandler | None = None,
    ) -> CallResult:
        """Calls a tool by its model name."""
        return await self._call(ToolRef(model_name=model_name), arguments, options, on_progress)

    async def call_from_model(
        self, call: Any, *, options: CallOptions = DEFAULT_OPTIONS, on_progress: ProgressHandler | None = None
    ) -> ModelAnswer:
        """Makes the call that a model wants, in the shape of any API that `list_model_tools` knows, and returns the answer in
        that API's shape. The model is told of failures that are its own, such as wrong arguments; others are raised."""
        asked = read_model_call(call)
        try:
            result = await self._call(ToolRef(model_name=asked.name), asked.arguments, options, on_progress)
        except TOLD as error:
            return answer_error(asked, error)
        return answer_result(asked, result)

    async def _call(
        self, tool: ToolRef, arguments: Arguments, options: CallOptions, on_progress: ProgressHandler | None
    ) -> CallResult:
        if on_progress is None:
            request = pb.CallToolRequest(call=tool_call(tool, arguments, options, self.namespace))
            answer = await self.invoke(rpc.CALL_TOOL, request, options.timeout)
            return CallResult(answer.result, answer.call_id)
        async with self._stream(tool, arguments, options) as events:
            async for event in events:
                if isinstance(event, pb.Progress):
                    done = on_progress(event)
                    if inspect.isawaitable(done):
                        await done
                elif isinstance(event, CallResult):
                    return event
            return await events.result()

    def stream_call(
        self, server_id: str, tool: str, arguments: Arguments = None, *, options: CallOptions = DEFAULT_OPTIONS
    ) -> CallStream:
        """Calls a tool and follows what comes of it."""
        return self._stream(ToolRef(server_id, tool), arguments, options)

    def _stream(self, tool: ToolRef, arguments: Arguments, options: CallOptions) -> CallStream:
        request = pb.CallToolStreamRequest(call=tool_call(tool, arguments, options, self.namespace))
        make = self._channel.unary_stream(
            rpc.CALL_TOOL_STREAM.path,
            request_serializer=pb.CallToolStreamRequest.SerializeToString,
            response_deserializer=pb.CallToolStreamResponse.FromString,
        )
        bound = self._deadline if options.timeout is None else options.timeout
        return CallStream(make(request, timeout=bound, metadata=self._metadata))

    async def start_call(
        self, server_id: str, tool: str, arguments: Arguments = None, *, options: CallOptions = DEFAULT_OPTIONS
    ) -> str:
        """Makes a call and does not wait for it: returns its id. It goes on without this program; see `wait_call`."""
        call = tool_call(ToolRef(server_id, tool), arguments, options, self.namespace, detach=True)
        return (await self.invoke(rpc.CALL_TOOL, pb.CallToolRequest(call=call), options.timeout)).call_id

    async def get_call(self, call_id: str = "", *, request_id: str = "") -> CallInfo:
        """Returns a call, by its id or the id that the app gave it."""
        request = pb.GetCallRequest(call_id=call_id, request_id=request_id)
        return CallInfo((await self.invoke(rpc.GET_CALL, request)).call)

    async def wait_call(
        self, call_id: str = "", *, request_id: str = "", timeout: float | None = None
    ) -> CallInfo:
        """Waits for the end of a call, over restarts of the daemon too. When `timeout` is over, in seconds, it returns the
        call as it is; see `CallInfo.ended`. Ending the wait does nothing to the call. Without `timeout` a daemon that is gone
        for a minute raises `Unavailable`."""
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        pause, gone = 0.05, float("inf")
        while True:
            left = None if end is None else end - clock()
            if left is not None and left <= 0:
                return await self.get_call(call_id, request_id=request_id)
            try:
                request = pb.WaitCallRequest(call_id=call_id, request_id=request_id)
                call = CallInfo((await self.invoke(rpc.WAIT_CALL, request, left)).call)
                if call.ended:
                    return call
                pause, gone = 0.05, float("inf")
            except DeadlineExceeded:
                if end is None:
                    raise
            except Unavailable:
                gone = min(gone, clock())
                if end is None and clock() - gone > GONE_BOUND:
                    raise
                pause = min(pause * 2, 2.0)
                await asyncio.sleep(jittered(pause) if left is None else min(jittered(pause), left))

    async def cancel_call(self, call_id: str) -> None:
        """Cancels a call at its server. Raises `AlreadyResolved` if it has ended."""
        await self.invoke(rpc.CANCEL_CALL, pb.CancelCallRequest(call_id=call_id))

    async def list_calls(
        self, server_ids: Sequence[str] = (), states: Sequence[pb.CallState.ValueType] = ()
    ) -> list[CallInfo]:
        """Lists calls; without states, those that have not ended."""
        request = pb.ListCallsRequest(server_ids=server_ids, states=states)
        return [CallInfo(call) for call in (await self._pages(rpc.LIST_CALLS, request, "calls")).items]

    # Resources and prompts.

    async def list_resources(self, server_ids: Sequence[str] = ()) -> Listing[pb.Resource]:
        """Lists resources."""
        return await self._pages(rpc.LIST_RESOURCES, pb.ListResourcesRequest(server_ids=server_ids), "resources")

    async def read_resource(self, server_id: str, uri: str) -> pb.ReadResourceResponse:
        """Reads a resource."""
        return await self.invoke(rpc.READ_RESOURCE, pb.ReadResourceRequest(server_id=server_id, uri=uri))

    async def list_prompts(self, server_ids: Sequence[str] = ()) -> Listing[pb.Prompt]:
        """Lists prompts."""
        return await self._pages(rpc.LIST_PROMPTS, pb.ListPromptsRequest(server_ids=server_ids), "prompts")

    async def get_prompt(
        self, server_id: str, name: str, arguments: dict[str, str] | None = None
    ) -> pb.GetPromptResponse:
        """Fills a prompt."""
        request = pb.GetPromptRequest(server_id=server_id, name=name, arguments=arguments or {})
        return await self.invoke(rpc.GET_PROMPT, request)

    # Updates and questions.

    def updates(
        self,
        *,
        namespaces: Sequence[str] = (),
        server_ids: Sequence[str] = (),
        kinds: Sequence[pb.UpdateKind.ValueType] = (),
        resume_token: str = "",
        can_answer: pb.CanAnswer | None = None,
    ) -> Updates:
        """Follows every change, over restarts of the daemon. With the token of an update that was handled, also by an earlier
        process, it goes on right behind it; else it starts with a snapshot."""
        named = namespaces or ([self.namespace] if self.namespace else [])
        request = update_request(named, server_ids, kinds, resume_token, can_answer)
        return Updates(self._channel, request, self._metadata)

    def answer_questions(self, handlers: Handlers) -> Answerer:
        """Answers questions of servers with functions, while in `async with`."""
        return Answerer(self, handlers, self.namespace)

    async def list_questions(self, server_ids: Sequence[str] = ()) -> list[pb.Elicitation]:
        """Lists the questions that wait for an answer."""
        request = pb.ListElicitationsRequest(server_ids=server_ids)
        return (await self._pages(rpc.LIST_ELICITATIONS, request, "elicitations")).items

    async def respond(self, question: Question, answer: Answer) -> None:
        """Answers a question. Raises `InvalidRequest` if the answer cannot be used, and the question stays pending;
        `AlreadyResolved` if it has ended. Nothing as an answer does nothing."""
        given = normalised(answer)
        if given is None:
            return
        if isinstance(question, pb.SamplingRequest):
            reply = pb.RespondSamplingRequest(namespace=question.namespace, sampling_request_id=question.id)
            if isinstance(given, Accept):
                reply.accept.result_json = to_json(given.content) or ""
            else:
                reply.reject.SetInParent()
            await self.invoke(rpc.RESPOND_SAMPLING, reply)
            return
        actions = {
            Accept: pb.ELICITATION_ACTION_ACCEPT,
            Decline: pb.ELICITATION_ACTION_DECLINE,
            Cancel: pb.ELICITATION_ACTION_CANCEL,
        }
        request = pb.RespondElicitationRequest(
            namespace=question.namespace,
            elicitation_id=question.id,
            action=actions[type(given)],
            content_json=to_json(given.content) if isinstance(given, Accept) else None,
        )
        await self.invoke(rpc.RESPOND_ELICITATION, request)

    # Signing in.

    async def start_sign_in(self, server_id: str, scopes: Sequence[str] = ()) -> pb.SignIn:
        """Begins a sign-in; `auth_url` says where the user goes on."""
        request = pb.StartSignInRequest(server_id=server_id, scopes=scopes)
        return (await self.invoke(rpc.START_SIGN_IN, request)).sign_in

    async def get_sign_in(self, sign_in_id: str, wait: float = 0.0) -> pb.SignIn:
        """Returns a sign-in; with `wait`, in seconds, as soon as it has ended."""
        request = pb.GetSignInRequest(sign_in_id=sign_in_id, wait_timeout=_duration(wait))
        return (await self.invoke(rpc.GET_SIGN_IN, request)).sign_in

    async def complete_sign_in(self, redirect_url: str) -> pb.SignIn:
        """Completes a sign-in with the URL that the browser was redirected to, where it cannot reach the daemon."""
        request = pb.CompleteSignInRequest(redirect_url=redirect_url)
        return (await self.invoke(rpc.COMPLETE_SIGN_IN, request)).sign_in

    async def sign_out(self, server_id: str) -> pb.SignOutResponse:
        """Forgets the tokens of a server, and has them revoked."""
        return await self.invoke(rpc.SIGN_OUT, pb.SignOutRequest(server_id=server_id))

    async def auth_status(self, server_id: str) -> pb.AuthStatus:
        """What the daemon is authorized to do at a server."""
        return (await self.invoke(rpc.GET_AUTH_STATUS, pb.GetAuthStatusRequest(server_id=server_id))).status

    async def sign_in(
        self,
        server_id: str,
        *,
        show: Callable[[str], object] | None = None,
        scopes: Sequence[str] = (),
        timeout: float = 300.0,
    ) -> pb.SignIn:
        """Has the user sign in and waits for the end, at most `timeout` seconds. `show` is given the URL, in a thread; by
        default a browser opens it, or it is printed. Raises `SignInFailed`; then the sign-in may still be pending."""
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        sign_in = await self.start_sign_in(server_id, scopes)
        await in_thread(show or show_url, sign_in.auth_url)
        pause = 0.05
        while sign_in.state in (pb.SIGN_IN_STATE_PENDING, pb.SIGN_IN_STATE_REDEEMING):
            left = end - clock()
            if left <= 0:
                raise SignInFailed(sign_in)
            try:
                sign_in = await self.get_sign_in(sign_in.id, min(left, SIGN_IN_ROUND))
            except Unavailable:
                pause = min(pause * 2, 2.0)
                await asyncio.sleep(min(jittered(pause), left))
        if sign_in.state != pb.SIGN_IN_STATE_SUCCEEDED:
            raise SignInFailed(sign_in)
        return sign_in


def show_url(url: str) -> None:
    """Opens a browser at a URL, or prints it to standard error where there is none."""
    if not url.startswith(("https:", "http:")) or not webbrowser.open(url):
        print(f"Sign in at {url}", file=sys.stderr, flush=True)


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration


__all__ = ["AsyncClient", "CallEvent", "Listing", "SignInFailed", "http_server", "show_url", "stdio_server"]
