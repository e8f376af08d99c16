"""The synchronous client: the asynchronous one on an event loop in a thread of its own, which all of them share."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from google.protobuf.message import Message

from . import proto as pb
from ._json import Arguments
from ._rpc import Rpc
from .calls import DEFAULT_OPTIONS, CallEvent, CallOptions, CallResult, CallStream
from .client import AsyncClient
from .models import ModelAnswer
from .questions import Handlers
from .updates import Update, Updates

P = ParamSpec("P")
T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class _Loop:
    """An event loop in a daemon thread. A forked child gets another one, because threads do not survive a fork."""

    _lock = threading.Lock()
    _current: _Loop | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="mcp-sidecar", daemon=True)
        self.thread.start()

    @classmethod
    def get(cls) -> _Loop:
        """That of this process."""
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            return cls._current

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something to its end. Ctrl-C cancels it."""
        if self.pid != os.getpid():
            work.close()
            raise RuntimeError("a client does not survive a fork: connect again in the child")
        if threading.current_thread() is self.thread:
            work.close()
            raise RuntimeError("the synchronous client cannot be used in callbacks that run on its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _sync(method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return run


class UpdateIterator(Iterator[Update]):
    """`Updates` for synchronous programs. `close`, or leaving `with`, ends it, also from another thread."""

    def __init__(self, loop: _Loop, updates: Updates) -> None:
        self._loop, self._updates = loop, updates

    @property
    def resume_token(self) -> str:
        """That of the last update that was handed out."""
        return self._updates.resume_token

    def __enter__(self) -> UpdateIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Update:
        update = self._loop.run(_next(self._updates))
        if update is None:
            raise StopIteration
        return update

    def next_within(self, timeout: float) -> Update | None:
        """The next update; nothing if there is none in so many seconds. No update is lost."""
        return self._loop.run(_next_within(self._updates, timeout))

    def close(self) -> None:
        """Ends the stream."""
        self._loop.run(self._updates.aclose())


class CallIterator(Iterator[CallEvent]):
    """`CallStream` for synchronous programs."""

    def __init__(self, loop: _Loop, stream: CallStream) -> None:
        self._loop, self._stream = loop, stream

    @property
    def call_id(self) -> str:
        """The call's id, once it has begun."""
        return self._stream.call_id

    def __enter__(self) -> CallIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> CallEvent:
        event = self._loop.run(_next(self._stream))
        if event is None:
            raise StopIteration
        return event

    def result(self) -> CallResult:
        """Reads on to the result."""
        return self._loop.run(self._stream.result())

    def close(self) -> None:
        """Ends the stream, and with it the call if it has not ended."""
        self._loop.run(self._stream.aclose())


async def _next(events: AsyncIterator[T]) -> T | None:
    # `StopAsyncIteration` cannot leave a future.
    async for event in events:
        return event
    return None


async def _next_within(events: AsyncIterator[T], timeout: float) -> T | None:
    try:
        return await asyncio.wait_for(_next(events), timeout)
    except asyncio.TimeoutError:
        return None


class Client:
    """A connection to the daemon, for synchronous programs and any number of their threads. The methods are those of
    `AsyncClient`."""

    def __init__(self, loop: _Loop, inner: AsyncClient) -> None:
        self._loop, self._inner = loop, inner

    @classmethod
    def connect(
        cls,
        socket: str | os.PathLike[str] | None = None,
        *,
        address: str | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        namespace: str = "",
        connect_timeout: float = 5.0,
        deadline: float | None = None,
    ) -> Client:
        """Finds the daemon and waits until it answers; see `AsyncClient.connect`."""
        loop = _Loop.get()
        connecting = AsyncClient.connect(
            socket,
            address=address,
            token=token,
            token_file=token_file,
            namespace=namespace,
            connect_timeout=connect_timeout,
            deadline=deadline,
        )
        return cls(loop, loop.run(connecting))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; what is under way is cancelled."""
        self._loop.run(self._inner.aclose())

    @property
    def namespace(self) -> str:
        """The namespace of every request that names none. Empty: `default`."""
        return self._inner.namespace

    def invoke(self, method: Rpc[Q, R], request: Q, timeout: float | None = None) -> R:
        """Makes any unary request of the contract."""
        return self._loop.run(self._inner.invoke(method, request, timeout))

    add_server = _sync(AsyncClient.add_server)
    get_server = _sync(AsyncClient.get_server)
    list_servers = _sync(AsyncClient.list_servers)
    update_server = _sync(AsyncClient.update_server)
    remove_server = _sync(AsyncClient.remove_server)
    connect_server = _sync(AsyncClient.connect_server)
    disconnect_server = _sync(AsyncClient.disconnect_server)
    refresh_server = _sync(AsyncClient.refresh_server)
    wait_for_servers = _sync(AsyncClient.wait_for_servers)
    server_log = _sync(AsyncClient.server_log)
    list_tools = _sync(AsyncClient.list_tools)
    list_model_tools = _sync(AsyncClient.list_model_tools)
    start_call = _sync(AsyncClient.start_call)
    get_call = _sync(AsyncClient.get_call)
    wait_call = _sync(AsyncClient.wait_call)
    cancel_call = _sync(AsyncClient.cancel_call)
    list_calls = _sync(AsyncClient.list_calls)
    list_resources = _sync(AsyncClient.list_resources)
    read_resource = _sync(AsyncClient.read_resource)
    list_prompts = _sync(AsyncClient.list_prompts)
    get_prompt = _sync(AsyncClient.get_prompt)
    list_questions = _sync(AsyncClient.list_questions)
    respond = _sync(AsyncClient.respond)
    start_sign_in = _sync(AsyncClient.start_sign_in)
    get_sign_in = _sync(AsyncClient.get_sign_in)
    complete_sign_in = _sync(AsyncClient.complete_sign_in)
    sign_out = _sync(AsyncClient.sign_out)
    auth_status = _sync(AsyncClient.auth_status)
    sign_in = _sync(AsyncClient.sign_in)

    def call_tool(
        self,
        server_id: str,
        tool: str,
        arguments: Arguments = None,
        *,
        options: CallOptions = DEFAULT_OPTIONS,
        on_progress: Callable[[pb.Progress], object] | None = None,
    ) -> CallResult:
        """Calls a tool and waits for its result. `on_progress` is called in this thread."""
        if on_progress is None:
            return self._loop.run(self._inner.call_tool(server_id, tool, arguments, options=options))
        with self.stream_call(server_id, tool, arguments, options=options) as events:
            for event in events:
                if isinstance(event, pb.Progress):
                    on_progress(event)
                elif isinstance(event, CallResult):
                    return event
            return events.result()

    def call_model_tool(
        self, model_name: str, arguments: Arguments = None, *, options: CallOptions = DEFAULT_OPTIONS
    ) -> CallResult:
        """Calls a tool by its model name."""
        return self._loop.run(self._inner.call_model_tool(model_name, arguments, options=options))

    def call_from_model(self, call: Any, *, options: CallOptions = DEFAULT_OPTIONS) -> ModelAnswer:
        """Makes the call that a model wants; see `AsyncClient.call_from_model`."""
        return self._loop.run(self._inner.call_from_model(call, options=options))

    def stream_call(
        self, server_id: str, tool: str, arguments: Arguments = None, *, options: CallOptions = DEFAULT_OPTIONS
    ) -> CallIterator:
        """Calls a tool and follows what comes of it."""

        async def start() -> CallStream:
            return self._inner.stream_call(server_id, tool, arguments, options=options)

        return CallIterator(self._loop, self._loop.run(start()))

    def updates(
        self,
        *,
        namespaces: Sequence[str] = (),
        server_ids: Sequence[str] = (),
        kinds: Sequence[pb.UpdateKind.ValueType] = (),
        resume_token: str = "",
        can_answer: pb.CanAnswer | None = None,
    ) -> UpdateIterator:
        """Follows every change, over restarts of the daemon; see `AsyncClient.updates`."""

        async def start() -> Updates:
            return self._inner.updates(
                namespaces=namespaces,
                server_ids=server_ids,
                kinds=kinds,
                resume_token=resume_token,
                can_answer=can_answer,
            )

        return UpdateIterator(self._loop, self._loop.run(start()))

    @contextmanager
    def answer_questions(self, handlers: Handlers) -> Iterator[None]:
        """Answers questions of servers with functions, each in a thread, while in `with`."""

        async def attach() -> Any:
            return await self._inner.answer_questions(handlers).__aenter__()

        answerer = self._loop.run(attach())
        try:
            yield
        finally:
            self._loop.run(answerer.aclose())
