"""The update stream that repairs itself."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

import grpc.aio

from . import proto as pb
from ._connect import jittered
from ._rpc import STREAM_UPDATES
from .errors import Code, ResumeTokenExpired, SidecarError, from_rpc_error

FIRST_DELAY, MAX_DELAY = 0.1, 5.0
MAX_WISHED_DELAY = 30.0
_FINAL = (
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.PERMISSION_DENIED,
    Code.UNAUTHENTICATED,
    Code.UNIMPLEMENTED,
    Code.OUT_OF_RANGE,
)


class ResetCause(Enum):
    """Why the stream starts over."""

    TOKEN_EXPIRED = "token expired"
    """The daemon no longer keeps the position of the resume token."""
    SNAPSHOT_INTERRUPTED = "snapshot interrupted"
    """The connection was lost within a snapshot."""


@dataclass(frozen=True)
class Reset:
    """The stream could not go on where it was and starts over: forget everything it said. A snapshot follows."""

    cause: ResetCause


@dataclass(frozen=True)
class Deleted:
    """Something is gone."""

    kind: pb.UpdateKind.ValueType
    """What it was."""
    namespace: str
    """The namespace it belonged to."""
    id: str
    """Its id."""


@dataclass(frozen=True)
class SnapshotEnd:
    """Everything that existed has been sent; what follows are changes."""


@dataclass(frozen=True)
class Bookmark:
    """Nothing has happened; only the resume token has moved on."""


Event = Union[pb.Server, pb.Elicitation, pb.Call, pb.SamplingRequest, Deleted, SnapshotEnd, Bookmark, Reset]


@dataclass(frozen=True)
class Update:
    """One change, or what the stream says about itself."""

    event: Event
    """What has happened: the whole new state of a thing, or one of the other classes."""
    resume_token: str
    """A later stream that starts with it goes on right behind this update. Empty within a snapshot and with `Reset`."""
    revision: int
    """Position of the change; grows, with gaps. 0 with `Reset`."""
    commit_time: datetime.datetime | None
    """When the change was committed."""


class Updates(AsyncIterator[Update]):
    """Every change of the daemon's state, in the order of the commits, for as long as it is read.

    After a lost connection or a restart of the daemon it reconnects by itself, with a growing pause of at most 5 s (or what
    the daemon asks for, at most 30 s), and goes on behind the last update: nothing is missed and nothing comes twice. Where
    that is impossible it says so with `Reset`. An error is final and only raised for a request that can never succeed, for
    example a namespace that this program may not use.

    A wait that is cancelled loses nothing. `aclose`, or leaving `async with`, ends the stream.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        request: pb.StreamUpdatesRequest,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._open = channel.unary_stream(
            STREAM_UPDATES.path,
            request_serializer=pb.StreamUpdatesRequest.SerializeToString,
            response_deserializer=pb.StreamUpdatesResponse.FromString,
        )
        self._request, self._metadata = request, metadata
        self._call: Any = None
        self._reading: asyncio.Future[Any] | None = None
        self._in_snapshot = False
        self._failures = 0
        self._pause = 0.0
        self._ended = False

    @property
    def resume_token(self) -> str:
        """That of the last update that was handed out."""
        return self._request.resume_token

    async def __aenter__(self) -> Updates:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the stream."""
        self._ended = True
        self._hang_up()

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        reading, self._reading = self._reading, None
        if call is not None:
            call.cancel()
        if reading is not None:
            reading.cancel()

    def __aiter__(self) -> Updates:
        return self

    async def __anext__(self) -> Update:
        while not self._ended:
            try:
                response = await self._read()
            except SidecarError as error:
                self._hang_up()
                if isinstance(error, ResumeTokenExpired) and self._request.resume_token:
                    self._request.resume_token = ""
                    return _reset(ResetCause.TOKEN_EXPIRED)
                if error.code in _FINAL:
                    self._ended = True
                    raise
                response, wish = None, error.retry_delay
            else:
                wish = None
            if response is None:
                if self._ended:
                    break
                if self._lost(wish):
                    return _reset(ResetCause.SNAPSHOT_INTERRUPTED)
                continue
            self._failures = 0
            update = self._accept(response)
            if update is not None:
                return update
        raise StopAsyncIteration

    async def _read(self) -> pb.StreamUpdatesResponse | None:
        """The next response; nothing at the end of a stream, which comes when the daemon stops."""
        if self._call is None:
            if self._pause:
                await asyncio.sleep(self._pause)
                self._pause = 0.0
            self._call = self._open(self._request, metadata=self._metadata)
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        reading = self._reading
        try:
            # grpcio ends the RPC with the task that reads; whoever stops waiting here may come back.
            response = await asyncio.shield(reading)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except asyncio.CancelledError:
            if not reading.cancelled():
                raise
            # Not the wait was cancelled but the stream: by `aclose`, or with its client.
            self._ended = True
            return None
        self._reading = None
        return None if response is grpc.aio.EOF else response

    def _accept(self, response: pb.StreamUpdatesResponse) -> Update | None:
        """Takes a response; nothing if it is an event of a newer contract."""
        event = _event(response)
        if response.resume_token:
            self._in_snapshot = False
            self._request.resume_token = response.resume_token
        else:
            self._in_snapshot = self._in_snapshot or event is not None
        if event is None:
            return None
        committed = None
        if response.HasField("commit_time"):
            committed = response.commit_time.ToDatetime(tzinfo=datetime.timezone.utc)
        return Update(event, response.resume_token, response.revision, committed)

    def _lost(self, wish: float | None) -> bool:
        """The connection is gone or was refused; whether what was said of a snapshot is worthless. The daemon's wish is
        the least pause and not shortened by chance."""
        self._hang_up()
        bound = min(FIRST_DELAY * 2 ** min(self._failures, 16), MAX_DELAY)
        self._failures += 1
        self._pause = max(min(wish or 0.0, MAX_WISHED_DELAY), jittered(bound))
        interrupted, self._in_snapshot = self._in_snapshot, False
        return interrupted


def update_request(
    namespaces: Sequence[str],
    server_ids: Sequence[str],
    kinds: Sequence[pb.UpdateKind.ValueType],
    resume_token: str,
    can_answer: pb.CanAnswer | None,
) -> pb.StreamUpdatesRequest:
    """What to follow."""
    return pb.StreamUpdatesRequest(
        namespaces=namespaces, server_ids=server_ids, kinds=kinds, resume_token=resume_token, can_answer=can_answer
    )


def _reset(cause: ResetCause) -> Update:
    return Update(Reset(cause), "", 0, None)


def _event(response: pb.StreamUpdatesResponse) -> Event | None:
    kind = response.WhichOneof("event")
    if kind == "upsert":
        resource = response.upsert.WhichOneof("resource")
        return None if resource is None else getattr(response.upsert, resource)
    if kind == "delete":
        gone = response.delete
        return Deleted(gone.kind, gone.namespace, gone.id)
    if kind == "snapshot_end":
        return SnapshotEnd()
    return Bookmark() if kind == "bookmark" else None
