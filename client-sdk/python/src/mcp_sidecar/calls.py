"""Calls of tools: what is asked, what comes on the way, and the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Union

import grpc.aio

from . import proto as pb
from ._json import Arguments, from_json, to_json
from .errors import SidecarError, from_rpc_error, make_error


@dataclass(frozen=True)
class CallResult:
    """The result of a tool."""

    raw: pb.ToolResult
    """The message of the contract, with everything that the server said."""
    call_id: str
    """The call's id, as it appears in questions and logs."""

    @property
    def is_error(self) -> bool:
        """The tool itself reports an error."""
        return self.raw.is_error

    @property
    def text(self) -> str:
        """The texts of its content, joined by line ends."""
        return "\n".join(block.text.text for block in self.raw.content if block.HasField("text"))

    @property
    def structured_json(self) -> str | None:
        """The structured result as the server wrote it; nothing if there is none."""
        return self.raw.structured_content_json if self.raw.HasField("structured_content_json") else None

    @property
    def structured(self) -> Any:
        """The structured result. Integers of any size stay what they are; for exact decimals see `structured_json`."""
        text = self.structured_json
        return None if text is None else from_json(text)


@dataclass(frozen=True)
class CallOptions:
    """How a call is made. Everything has a default."""

    timeout: float | None = None
    """Deadline of the request in seconds, the time that people need for answers included. Nothing: the client's."""
    server_timeout: float | None = None
    """Bound on the work of the server in seconds, without the time spent waiting for people."""
    idle_timeout: float | None = None
    """Bound on silence of the server, in seconds."""
    request_id: str = ""
    """Names the call, so that it is made once however often it is asked for."""
    meta: Arguments = None
    """Further members for the request's `_meta`."""
    log_level: pb.LogLevel.ValueType = pb.LOG_LEVEL_UNSPECIFIED
    """Ask the server for log messages of this severity and above."""
    wait_for_sign_in: bool = False
    """If the server wants a sign-in, wait for it in place of failing with `SignInRequired`."""


DEFAULT_OPTIONS = CallOptions()


@dataclass(frozen=True)
class ToolRef:
    """A tool, by server and name or by its model name."""

    server_id: str = ""
    name: str = ""
    model_name: str = ""


def tool_call(
    tool: ToolRef, arguments: Arguments, options: CallOptions, namespace: str, detach: bool = False
) -> pb.ToolCall:
    """The message of a call."""
    call = pb.ToolCall(
        namespace=namespace,
        server_id=tool.server_id,
        tool_name=tool.name,
        model_name=tool.model_name,
        arguments_json=to_json(arguments),
        meta_json=to_json(options.meta) or "",
        log_level=options.log_level,
        wait_for_sign_in=options.wait_for_sign_in,
        request_id=options.request_id,
        detach=detach,
    )
    if options.server_timeout is not None:
        call.timeout.FromMilliseconds(round(options.server_timeout * 1000))
    if options.idle_timeout is not None:
        call.idle_timeout.FromMilliseconds(round(options.idle_timeout * 1000))
    return call


CallEvent = Union[pb.CallStarted, pb.Progress, pb.LogMessage, pb.InputRequired, pb.TaskStatus, CallResult]


class CallStream(AsyncIterator[CallEvent]):
    """What comes of a call: progress, log messages, questions and the states of a task as they come, then the result, last.

    Leaving it before its end cancels the call: `async with`, or `aclose`. A wait that is cancelled loses nothing.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Future[Any] | None = None
        self._ended = False
        self.call_id = ""
        """The call's id, once it has begun."""

    async def __aenter__(self) -> CallStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the stream, and with it the call if it has not ended."""
        self._ended = True
        self._call.cancel()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()

    def __aiter__(self) -> CallStream:
        return self

    async def __anext__(self) -> CallEvent:
        while not self._ended:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._call.read())
            reading = self._reading
            try:
                response = await asyncio.shield(reading)
            except grpc.aio.AioRpcError as error:
                self._ended = True
                raise from_rpc_error(error) from None
            except asyncio.CancelledError:
                if not reading.cancelled():
                    raise
                # Not the wait was cancelled but the stream: by `aclose`, or with its client.
                break
            self._reading = None
            if response is grpc.aio.EOF:
                break
            kind = response.WhichOneof("event")
            if kind is None:
                continue
            event = getattr(response, kind)
            if kind == "started":
                self.call_id = event.call_id
            if kind == "result":
                return CallResult(event, self.call_id)
            return event  # type: ignore[no-any-return]
        self._ended = True
        raise StopAsyncIteration

    async def result(self) -> CallResult:
        """Reads on to the result."""
        async for event in self:
            if isinstance(event, CallResult):
                return event
        raise make_error(13, "the daemon's answer does not follow the contract: a call ended without a result")


@dataclass(frozen=True)
class CallInfo:
    """A call as a thing of its own; see the message `Call` of the contract."""

    raw: pb.Call
    """The message of the contract."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.raw.id

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.raw.state in (pb.CALL_STATE_COMPLETED, pb.CALL_STATE_FAILED, pb.CALL_STATE_CANCELLED)

    @property
    def error(self) -> SidecarError | None:
        """Why there is no result, if it has ended without one."""
        if not self.raw.HasField("error"):
            return None
        failed = self.raw.error
        return make_error(failed.code, failed.message, failed.reason, failed.metadata)

    def result(self) -> CallResult:
        """The result of its tool; raises what it has failed with."""
        if self.raw.HasField("tool_result"):
            return CallResult(self.raw.tool_result, self.raw.id)
        raise self.error or make_error(9, f"the call `{self.raw.id}` has no result of a tool (yet)")
