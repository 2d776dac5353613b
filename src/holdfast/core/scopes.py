"""The mechanisms that lifetimes are built from: a mailbox to wait at, and a keeper to hold things.

There is no close-all list and no cleanup thread anywhere: leaving a block is the only way anything ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

import structlog
from anyio import CancelScope, Event, current_time
from anyio.abc import TaskGroup

log = structlog.get_logger(__name__)

T = TypeVar("T")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let one error that task groups wrapped on its way out arrive as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        raise error from error.__cause__


class Mailbox(Generic[T]):
    """What waits for one session, in order."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        self.ring()

    def ring(self) -> None:
        """Let the one who waits look around again."""
        if self._bell and not self._bell.done():
            self._bell.set_result(None)

    def peek(self) -> T:
        return self._items[0]

    def take(self) -> T:
        """Take the first without waiting; there must be one."""
        return self._items.popleft()

    def put_back(self, items: Sequence[T]) -> None:
        """Put what was drained in front again."""
        self._items.extendleft(reversed(items))
        self.ring()

    def drain(self) -> list[T]:
        """Take everything at once."""
        taken = list(self._items)
        self._items.clear()
        return taken

    async def arrival(self) -> None:
        """Wait until there is something, or the bell rings. Taking is separate and synchronous, so that
        a cancel that lands here loses nothing."""
        if not self._items:
            self._bell = asyncio.get_running_loop().create_future()
            try:
                await self._bell
            finally:
                self._bell = None


class Keeper:
    """Holds opened things, each in a task of its own for its whole life.

    What is entered in one task is left in the same task, whoever asked for it. Leaving `hold` lets go
    and does not wait: a close that is slow, hangs or fails is bounded and nobody else's business. So is
    what there is to undo when the asker is called away while the thing is still being opened.
    """

    def __init__(self, group: TaskGroup, grace: float) -> None:
        self._group = group
        self._grace = grace

    @asynccontextmanager
    async def hold(self, opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        held = _Held(opening)
        self._group.start_soon(held.keep, self._grace)
        try:
            yield await held.opened
        finally:
            held.let_go()


class _Held(Generic[T]):
    """One thing that a keeper holds."""

    def __init__(self, opening: AbstractAsyncContextManager[T]) -> None:
        self._opening = opening
        self.opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._is_open = False
        self._released = Event()
        self._bound = CancelScope(shield=True)  # around all of it, so that it can bound the leaving

    def let_go(self) -> None:
        self._released.set()
        if not self._is_open:
            self._bound.cancel()

    async def keep(self, grace: float) -> None:
        with self._bound:
            try:
                async with self._opening as thing:
                    self._is_open = True
                    if not self.opened.done():
                        self.opened.set_result(thing)
                    await self._released.wait()
                    self._bound.deadline = current_time() + grace
            except asyncio.CancelledError as stray:
                if self._bound.cancel_called:
                    raise
                # It waited for something of its own that was cancelled. Let out, this would cancel all neighbours.
                self._fail(RuntimeError("it was cancelled from inside"), stray)
            except Exception as error:  # noqa: BLE001 - told to the asker, or logged
                self._fail(error, error)
        if self._bound.cancelled_caught and self._is_open:
            log.error("closing took too long and was cut short", what=repr(self._opening), seconds=grace)

    def _fail(self, error: Exception, cause: BaseException) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)  # the asker gets it
        else:
            event = "failed to close" if self._released.is_set() else "broke while held"
            log.error(event, what=repr(self._opening), exc_info=cause)
