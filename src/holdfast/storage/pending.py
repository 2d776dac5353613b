"""A call to the store on its way: queued where it is made, run elsewhere, settled on the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable
from sqlite3 import Cursor
from typing import Any, Generic, TypeVar

import structlog

from holdfast.core import failpoints

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Step:
    """A read or a write that the store knows how to do."""

    __slots__ = ("name", "run")

    def __init__(self, run: Callable[..., Any]) -> None:
        self.name = run.__name__
        self.run: Callable[..., Any] = run


class WriteStep(Step):
    """A write; making one makes the two points at which a test can kill it."""

    __slots__ = ("after", "before")

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__(run)
        self.before = failpoints.register(f"store.{self.name}.before")
        self.after = failpoints.register(f"store.{self.name}.after")


S = TypeVar("S", bound=Step)


class Pending(Generic[S, T]):
    """Await it to have its result, at any time and as often as you like; or let it ride along."""

    __slots__ = ("_waiters", "args", "error", "kwargs", "result", "settled", "step")

    result: T

    def __init__(self, step: S, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.step = step
        self.args = args
        self.kwargs = kwargs
        self.error: Exception | None = None
        self.settled = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def __repr__(self) -> str:
        state = "on its way" if not self.settled else "done" if self.error is None else f"failed: {self.error}"
        return f"<store.{self.step.name} {state}>"

    def __await__(self) -> Generator[Any, None, T]:
        if not self.settled:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise self.error
        return self.result

    def run(self, db: Cursor) -> None:
        """In the thread that owns the cursor."""
        self.result = self.step.run(db, *self.args, **self.kwargs)

    def settle(self) -> None:
        """On the loop, once the outcome is known."""
        self.settled = True
        noticed = False
        for waiter in self._waiters or ():
            if not waiter.done():  # cancelled, that is
                waiter.set_result(None)
                noticed = True
        if self.error is not None and not noticed:
            log.error(
                "the store failed at something that nobody waited for",
                step=self.step.name,
                error=repr(self.error),
                cause=repr(self.error.__cause__),
            )


class Arrivals:
    """Brings what is done back to the loop, as much as there is with one wake-up."""

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._wake = wake
        self._done: deque[Pending[Any, Any]] = deque()
        self._awaited = False

    def bring(self, done: Iterable[Pending[Any, Any]]) -> None:
        """From any thread."""
        self._done.extend(done)
        if not self._awaited:  # else the loop was woken and has not come yet: it will take these too
            self._awaited = True
            self._wake(self._settle)

    def _settle(self) -> None:
        self._awaited = False  # before taking, so that what comes meanwhile wakes the loop again
        while self._done:
            self._done.popleft().settle()
