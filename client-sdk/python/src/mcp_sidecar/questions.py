"""Answers questions of servers with callbacks, for as long as they are attached."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from . import proto as pb
from ._json import Arguments
from .errors import AlreadyResolved, SidecarError
from .updates import Deleted, Reset, SnapshotEnd, Updates

if TYPE_CHECKING:
    from .client import AsyncClient

LOG = logging.getLogger("mcp_sidecar")
START_BOUND = 10.0
AT_ONCE = 16

Question = Union[pb.Elicitation, pb.SamplingRequest]


@dataclass(frozen=True)
class Accept:
    """The user agrees; of a form with these contents, of a request for a model with this answer."""

    content: Arguments = None


@dataclass(frozen=True)
class Decline:
    """The user says no."""


@dataclass(frozen=True)
class Cancel:
    """The user does not decide."""


Answer = Union[Accept, Decline, Cancel, Mapping[str, Any], bool, None]
"""A mapping accepts with this content, `True` accepts without, `False` declines; nothing leaves the question pending."""

ElicitationHandler = Callable[[pb.Elicitation], Union[Answer, Awaitable[Answer]]]
SamplingHandler = Callable[[pb.SamplingRequest], Union[Answer, Awaitable[Answer]]]
ErrorHandler = Callable[[Union[Question, None], Exception], object]


@dataclass(frozen=True)
class Handlers:
    """Who answers what. A function that is not asynchronous runs in a thread, so it may block."""

    form: ElicitationHandler | None = None
    """Forms: returns the content."""
    url: ElicitationHandler | None = None
    """URLs for the user to open; look at `url_warnings` first."""
    approval: ElicitationHandler | None = None
    """Calls that need consent: `tool_name` and `arguments_json`."""
    sampling: SamplingHandler | None = None
    """Requests for an answer of a language model: returns a `CreateMessageResult` of MCP."""
    sampling_tools: bool = False
    """The sampling handler can be offered tools."""
    sampling_context: bool = False
    """The sampling handler can add context of servers."""
    on_error: ErrorHandler | None = None
    """Told of a handler that raised or whose answer was refused, either of which leaves the question pending; without a
    question, of the end of the updates. Default: it is logged."""

    def can_answer(self) -> pb.CanAnswer:
        """What the daemon is told."""
        sampling = self.sampling is not None
        return pb.CanAnswer(
            elicitation_form=self.form is not None,
            elicitation_url=self.url is not None,
            approval=self.approval is not None,
            sampling=sampling,
            sampling_tools=sampling and self.sampling_tools,
            sampling_context=sampling and self.sampling_context,
        )

    def of(self, question: Question) -> Callable[[Any], Any] | None:
        """The handler of a question."""
        if isinstance(question, pb.SamplingRequest):
            return self.sampling
        by_mode: Mapping[int, ElicitationHandler | None] = {
            pb.ELICITATION_MODE_FORM: self.form,
            pb.ELICITATION_MODE_URL: self.url,
            pb.ELICITATION_MODE_APPROVAL: self.approval,
        }
        return by_mode.get(question.mode)


class Answerer:
    """Answers questions between `async with` and its end, those included that are pending already.

    The daemon is told what can be answered for as long as that is so. Several questions are answered at the same time. One
    that ends meanwhile, because another app was faster, cancels its handler.
    """

    def __init__(self, client: AsyncClient, handlers: Handlers, namespace: str) -> None:
        self._client, self._handlers, self._namespace = client, handlers, namespace
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left: set[str] = set()
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Answerer:
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), START_BOUND)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends it; handlers that are at work are cancelled and their questions stay pending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._ready is not None and self._ready.done() and not self._ready.cancelled():
            self._ready.exception()

    async def _follow(self) -> None:
        kinds = [pb.UPDATE_KIND_ELICITATION, pb.UPDATE_KIND_SAMPLING]
        updates = self._client.updates(
            namespaces=[self._namespace] if self._namespace else [],
            kinds=kinds,
            can_answer=self._handlers.can_answer(),
        )
        try:
            await self._read(updates)
        except SidecarError as error:
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(error)
            else:
                await self._report(None, error)
        finally:
            await updates.aclose()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, updates: Updates) -> None:
        async for update in updates:
            event = update.event
            if isinstance(event, SnapshotEnd) and self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            elif isinstance(event, Reset):
                self._left.clear()
            elif isinstance(event, Deleted):
                self._ended(event.id)
            elif isinstance(event, (pb.Elicitation, pb.SamplingRequest)):
                if event.state != pb.ELICITATION_STATE_PENDING:
                    self._ended(event.id)
                elif event.id not in self._tasks and event.id not in self._left:
                    self._tasks[event.id] = asyncio.ensure_future(self._answer(event))

    def _ended(self, question_id: str) -> None:
        self._left.discard(question_id)
        task = self._tasks.get(question_id)
        if task is not None:
            task.cancel()

    async def _answer(self, question: Question) -> None:
        handler = self._handlers.of(question)
        try:
            if handler is None:
                return
            async with self._slots:
                answer = await _run(handler, question)
                await self._client.respond(question, answer)
        except AlreadyResolved:
            LOG.debug("the question %s was answered by somebody else", question.id)
        except Exception as error:
            self._left.add(question.id)
            await self._report(question, error)
        else:
            # Either answered, so that its end comes, or left to others.
            self._left.add(question.id)
        finally:
            self._tasks.pop(question.id, None)

    async def _report(self, question: Question | None, error: Exception) -> None:
        if self._handlers.on_error is not None:
            try:
                await _run(self._handlers.on_error, question, error)
                return
            except Exception as again:
                error = again
        what = "the updates have ended" if question is None else f"the question {question.id} stays pending"
        LOG.error("%s", what, exc_info=error)


async def _run(handler: Callable[..., Any], *arguments: Any) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(*arguments)
    answer = await in_thread(handler, *arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a thread of its own, which keeps nobody from leaving: it may wait for a person who is gone."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work(*arguments)
        except BaseException as error:
            failure = error
        # After the end of the loop nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="mcp-sidecar-handler", daemon=True).start()
    return await done


def normalised(answer: Answer) -> Accept | Decline | Cancel | None:
    """An answer in one of its forms."""
    if answer is True:
        return Accept()
    if answer is False:
        return Decline()
    if isinstance(answer, Mapping):
        return Accept(answer)
    if answer is None or isinstance(answer, (Accept, Decline, Cancel)):
        return answer
    raise TypeError(f"a handler answers with Accept, Decline, Cancel, a mapping, a bool or None, not {type(answer).__name__}")
