"""Where models live: on one event loop, from which they answer callers on any other.

A connection belongs to the loop that opened it. So a model is never taken along to another thread; the
question comes home instead, and what the model says goes back. The caller notices nothing: words arrive
in order, errors and cancellation pass through, and when `answer` has ended, so has its work at home.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import structlog
from anyio import TASK_STATUS_IGNORED, CancelScope, create_task_group, sleep_forever
from anyio.abc import TaskGroup, TaskStatus

from holdfast.core.errors import GiveUp
from holdfast.core.events import Reasoning, Text
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest
from holdfast.core.scopes import Mailbox, plain_errors

log = structlog.get_logger(__name__)

T = TypeVar("T")
E = TypeVar("E")
Work: TypeAlias = Callable[[Callable[[E], None]], Awaitable[T]]
"""What is done at home: it may emit on its way, and comes to something."""


class Reachable:
    """A model that may be asked from any thread, on any event loop."""

    def __init__(self, model: Model, home: "Home") -> None:
        self._model = model
        self._home = home
        self._thread = home.thread
        self.name = model.name
        self.wire = model.wire
        # Encoding touches nothing, so it runs where it is called.
        self.encode_system = model.encode_system
        self.encode_message = model.encode_message
        self.encode_tools = model.encode_tools

    def __repr__(self) -> str:
        return f"<Reachable {self._model!r}>"

    async def answer(self, request: ModelRequest, emit: Callable[[Text | Reasoning], None]) -> ModelAnswer:
        if threading.get_ident() == self._thread:
            return await self._model.answer(request, emit)
        return await self._home.receive(partial(self._model.answer, request), emit)


class Home:
    """The event loop on which models are opened, asked and closed, whoever asks for it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        """Tells who is at home: while this loop runs, no other can run in its thread."""
        self._loop = asyncio.get_running_loop()
        self._callers: Mailbox[_Visit[Any, Any]] = Mailbox()
        self._door = threading.Lock()
        self._left = False

    def __repr__(self) -> str:
        return f"<Home {'left' if self._left else 'open'}>"

    @asynccontextmanager
    async def open(self, opening: AbstractAsyncContextManager[Model]) -> AsyncIterator[Model]:
        """Open a model at home, from any loop; it can then be asked from any other."""
        if threading.get_ident() == self.thread:
            async with opening as model:
                yield Reachable(model, self)
            return
        opened: asyncio.Future[Model] = asyncio.get_running_loop().create_future()
        with plain_errors():
            async with create_task_group() as group:
                group.start_soon(self._lodge, opening, opened)
                try:
                    yield Reachable(await opened, self)
                finally:
                    group.cancel_scope.cancel()

    async def _lodge(self, opening: AbstractAsyncContextManager[Model], opened: "asyncio.Future[Model]") -> None:
        try:
            await self.receive(partial(_hold, opening), opened.set_result)
        except Exception as error:  # noqa: BLE001 - for whoever opens it
            if not opened.done():
                opened.set_exception(error)
            else:  # whoever opened it is told when they ask it again
                log.info("a model that another thread holds was closed", cause=str(error))

    async def receive(self, work: Work[E, T], emit: Callable[[E], None]) -> T:
        """Do at home what a caller on another loop asks for; nothing of it goes on after this has ended."""
        visit = _Visit(self, work, emit)
        if not self.call(self._admit, visit):
            raise _gone()
        return await visit.outcome()

    def call(self, callback: Callable[..., object], *args: Any) -> bool:
        """From any thread: have something called at home soon; whether anyone is there to do it."""
        # The lock makes it one step with leaving: what is scheduled before that still runs, as a loop goes in
        # order; what would come after it might wait for ever at a loop that has ended.
        with self._door:
            if not self._left:
                self._loop.call_soon_threadsafe(callback, *args)
            return not self._left

    def _admit(self, visit: "_Visit[Any, Any]") -> None:
        if self._left:
            visit.refuse()
        else:
            self._callers.put(visit)

    async def welcome(self, group: TaskGroup, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Let callers in, until home is left."""
        try:
            task_status.started()
            while True:
                await self._callers.arrival()
                visit = self._callers.take()
                visit.context.run(group.start_soon, visit.run)
        finally:
            with self._door:
                self._left = True
            for visit in self._callers.drain():
                visit.refuse()


@asynccontextmanager
async def open_home() -> AsyncIterator[Home]:
    """Models live on the loop that runs this. Whoever still waits for one when the block is left gets an error."""
    with plain_errors():
        async with create_task_group() as group:
            home = Home()
            await group.start(home.welcome, group)
            try:
                yield home
            finally:
                group.cancel_scope.cancel()


class _Visit(Generic[E, T]):
    """One piece of work at home for a caller on another loop, where all that comes of it arrives in order."""

    def __init__(self, home: Home, work: Work[E, T], emit: Callable[[E], None]) -> None:
        self._home = home
        self._work = work
        self._emit = emit
        self.context = copy_context()
        """The caller's, so that what is logged at home says for whom."""
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[T] = self._loop.create_future()
        self._stay = CancelScope()  # entered at home, and cancelled nowhere else
        self._listening = True
        self._broken: Exception | None = None

    # ── on the caller's loop ────────────────────────────────────────────────────────────────────

    async def outcome(self) -> T:
        try:
            await asyncio.wait((self._outcome,))  # awaited itself, the future would be cancelled with its caller
        except asyncio.CancelledError:
            self._end()
            with CancelScope(shield=True):
                await asyncio.wait((self._outcome,))
            raise
        finally:
            if self._outcome.done():
                self._outcome.exception()  # looked at, so that asyncio does not report it as overlooked
        if self._broken:
            raise self._broken
        return self._outcome.result()

    def _hear(self, event: E) -> None:
        if self._listening:
            try:
                self._emit(event)
            except Exception as error:  # noqa: BLE001 - for the caller, whose `emit` it is
                self._broken = error
                self._end()

    def _end(self) -> None:
        self._listening = False
        self._home.call(self._stay.cancel)

    # ── at home ─────────────────────────────────────────────────────────────────────────────────

    def refuse(self) -> None:
        self._post(self._outcome.set_exception, _gone())

    async def run(self) -> None:
        arrival = partial[None](self._outcome.set_exception, _gone())
        try:
            with self._stay:
                arrival = partial(self._outcome.set_result, await self._work(self._send))
        except Exception as error:
            if self._stay.cancel_called:
                log.exception("failed to end what its caller had cancelled")
            arrival = partial(self._outcome.set_exception, error)
        finally:
            self._post(arrival)

    def _send(self, event: E) -> None:
        if not self._post(self._hear, event):
            self._stay.cancel()

    def _post(self, callback: Callable[..., object], *args: Any) -> bool:
        """Have something called on the caller's loop; whether that is still there."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("a caller's loop was closed before its answer came")
            return False
        return True


async def _hold(opening: AbstractAsyncContextManager[Model], opened: Callable[[Model], None]) -> None:
    async with opening as model:
        opened(model)
        await sleep_forever()


def _gone() -> GiveUp:
    return GiveUp("The gateway is stopping, so its models can't be asked any more.", code="stopping")
