"""Blocking work: beside the loop, bounded, and abandoned rather than waited for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

from holdfast.core.errors import ToolFailed
from holdfast.testing.scripted import until
from holdfast.tools import threads
from holdfast.tools.threads import MOST_THREADS, PATIENCE, in_thread

pytestmark = pytest.mark.anyio


class Stuck:
    """Work that hangs until it is let go."""

    def __init__(self) -> None:
        self.inside = 0
        self._lock = threading.Lock()
        self._go = threading.Event()

    def __call__(self) -> str:
        with self._lock:
            self.inside += 1
        assert self._go.wait(60)
        with self._lock:
            self.inside -= 1
        return "done"

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def stuck() -> Iterator[Stuck]:
    work = Stuck()
    try:
        yield work
    finally:
        work.let_go()


async def test_the_result_and_the_error_come_back() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert await in_thread(lambda: 6 * 7) == 42
    with pytest.raises(ValueError, match="no"):
        await in_thread(fail)


async def test_a_cancel_ends_the_wait_at_once_and_the_thread_finishes_alone() -> None:
    with stuck() as work:
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(in_thread, work)
                await until(lambda: work.inside == 1)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert work.inside == 1
        work.let_go()
        await until(lambda: work.inside == 0)
    assert await in_thread(lambda: "the next") == "the next"


async def finds_a_place() -> bool:
    with anyio.move_on_after(0.2):
        await in_thread(lambda: None)
        return True
    return False


async def test_work_that_hangs_and_is_stopped_keeps_its_threads_until_it_is_done() -> None:
    with stuck() as work:
        async with anyio.create_task_group() as group:
            for _ in range(MOST_THREADS):
                group.start_soon(in_thread, work)
            await until(lambda: work.inside == MOST_THREADS)
            group.cancel_scope.cancel()
        assert work.inside == MOST_THREADS
        assert not await finds_a_place()
        work.let_go()
        await until(lambda: work.inside == 0)
    assert await finds_a_place()


@pytest.mark.virtual
async def test_who_finds_no_thread_for_long_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_THREADS", 0)
    started = anyio.current_time()
    with pytest.raises(ToolFailed, match="try again"):
        await in_thread(lambda: None)
    assert anyio.current_time() - started == pytest.approx(PATIENCE)


async def test_a_call_that_is_called_off_gives_its_place_back_however_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_THREADS", 1)
    for number in range(300):
        async with anyio.create_task_group() as group:
            group.start_soon(in_thread, lambda: None)
            for _ in range(number % 5):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert await finds_a_place()
    with stuck() as work:  # and gives back no more than it took
        async with anyio.create_task_group() as group:
            group.start_soon(in_thread, work)
            await until(lambda: work.inside == 1)
            assert not await finds_a_place()
            work.let_go()


async def test_a_call_that_is_called_off_before_it_begins_does_nothing() -> None:
    done: list[str] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_thread(lambda: done.append("it"))
    assert scope.cancelled_caught
    await in_thread(lambda: None)
    assert not done
