"""Virtual time: an event loop on which waiting takes no time.

The only place where asyncio waits is its selector. Here, when nothing is ready, the selector moves the
clock to the next timer instead of waiting for it. A test marked `virtual` runs on such a loop:

    @pytest.mark.virtual            # or virtual(seed=7)
    async def test_an_idle_agent_leaves_after_an_hour() -> None:
        await anyio.sleep(3600)     # returns at once, and loop.time() is 3600 later

**Input and output** are real: what is ready is handled before the clock moves. But the clock does not
wait for a peer that is still working, so whoever talks to another process wraps that in `hold()`.

**Threads**: while one works for the loop, by `anyio.to_thread` or `run_in_executor`, the clock stands
still and the loop really waits. For a thread of any other origin, say so with `hold()`. What threads do
comes in no particular order, so a run that must replay to the byte should use none; the store has an
inline mode for that.
"""

import asyncio
import random
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar, TypeVarTuple

import pytest

from holdfast.testing import whereabouts

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_767_225_600.0
"""When virtual clocks start unless told otherwise: 2026 began, UTC."""


class Deadlock(RuntimeError):
    """Nothing can ever happen again: no timer is set, no input or output is expected, all tasks wait."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at zero and jumps to the next timer whenever nothing is ready."""

    def __init__(self, *, seed: int = 0) -> None:
        self._now = 0.0
        self._holders = 0
        super().__init__(_JumpingSelector(self))
        # asyncio fires what is due within this time. Its own nanosecond is below a float's precision once
        # the clock shows some months, and a timer that is due would then never fire.
        self._clock_resolution = 1e-6
        self.chance = random.Random(seed)
        """The run's source of chance: the same seed gives the same run."""

    def __repr__(self) -> str:
        return f"<VirtualLoop at {self._now:g} s{f', held by {self._holders}' if self._holders else ''}>"

    def time(self) -> float:
        return self._now

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            return super().run_until_complete(future)
        except Deadlock:
            waiting = asyncio.all_tasks(self)
            for task in waiting:
                task.cancel()
            super().run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
            raise

    def jump(self, seconds: float) -> None:
        self._now += seconds

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop the clock: inside, the loop really waits for threads, input and output."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def is_held(self) -> bool:
        return self._holders > 0 or any(_works_for(self, thread) for thread in threading.enumerate())

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        future = super().run_in_executor(executor, func, *args)
        self._holders += 1
        future.add_done_callback(self._executor_done)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        with self.hold():  # it waits for a thread of its own
            await super().shutdown_default_executor(*timeout)

    def _executor_done(self, _: "asyncio.Future[Any]") -> None:
        self._holders -= 1


def _works_for(loop: VirtualLoop, thread: Any) -> bool:
    """Whether it is one of anyio's worker threads, of this loop, and not idle."""
    return getattr(thread, "loop", None) is loop and not thread.stopping and thread not in thread.idle_workers


class _JumpingSelector(selectors.DefaultSelector):
    """Finds what is ready, or lets time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.is_held():
            return super().select(None)
        if timeout is not None:
            self._loop.jump(timeout)
            return []
        if len(self.get_map()) > 1:  # more than the loop's own wake-up pipe
            return super().select(None)
        waiting = sorted(map(whereabouts.of_task, asyncio.all_tasks(self._loop)))
        raise Deadlock("\n  ".join(["Nothing can ever happen again. These wait for ever:", *waiting]))


class VirtualClock:
    """The wall clock of a virtual loop; a `core.clock.Clock` that tests can also set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = EPOCH) -> None:
        self._loop = loop
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + self._loop.time()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back, as an operator or a time server does; timers don't notice."""
        self._epoch += seconds


def run_virtual(async_fn: Callable[[], Coroutine[Any, Any, T]], *, seed: int = 0) -> T:
    """Run to the end on virtual time, and return the result."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, seed=seed)) as runner:
        return runner.run(async_fn())


# ── the pytest plug-in ──────────────────────────────────────────────────────────────────────────


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual(seed=0): run this asynchronous test on virtual time.")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> None:
    """Let anyio run the test, as if it were marked `anyio` too."""
    if collector.istestfunction(obj, name) and iscoroutinefunction(obj):
        own = (mark.name for mark in getattr(obj, "pytestmark", ()))
        if collector.get_closest_marker("virtual") or "virtual" in own:
            pytest.mark.usefixtures("anyio_backend")(obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if marker := metafunc.definition.get_closest_marker("virtual"):
        factory = partial(VirtualLoop, seed=marker.kwargs.get("seed", 0))
        backend = pytest.param(("asyncio", {"loop_factory": factory}), id="virtual")
        metafunc.parametrize("anyio_backend", [backend])
