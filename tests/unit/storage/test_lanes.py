import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core.errors import StoreError
from holdfast.storage.lanes import open_inline, open_queue
from holdfast.storage.pending import Arrivals, Pending, Step

pytestmark = pytest.mark.anyio

Call = Pending[Step, int]


class Recorder:
    """A worker that notes what it ran, once its gate is open."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.left = 0
        self.own: list[Call] = []

    @contextmanager
    def open(self) -> Iterator["Recorder"]:
        yield self
        self.left += 1

    def run(self, batch: Sequence[Any]) -> None:
        assert self.gate.wait(30)
        self.threads.add(threading.get_ident())
        self.batches.append([call.args[0] for call in batch])
        for call in batch:
            call.result = call.args[0]

    def due(self) -> list[Call]:
        due, self.own = self.own, []
        return due


def number(_db: Any, number: int) -> int:
    return number


def call(value: int) -> Call:
    return Pending(Step(number), (value,), {})


def arrivals() -> Arrivals:
    return Arrivals(asyncio.get_running_loop().call_soon_threadsafe)


async def test_leaving_works_off_everything_that_waits() -> None:
    worker = Recorder()
    worker.gate.clear()
    async with open_queue("test", [worker.open], arrivals(), largest_batch=7) as queue:
        calls = [call(value) for value in range(50)]
        for each in calls:
            queue.submit(each)
        asyncio.get_running_loop().call_later(0.02, worker.gate.set)
    assert [value for batch in worker.batches for value in batch] == list(range(50)), "in order"
    assert max(map(len, worker.batches)) == 7
    assert all(each.settled for each in calls)
    assert worker.left == 1


async def test_what_comes_together_runs_together() -> None:
    worker = Recorder()
    worker.gate.clear()
    async with open_queue("test", [worker.open], arrivals(), largest_batch=1000) as queue:
        calls = [call(value) for value in range(50)]
        queue.submit(calls[0])
        while len(queue):  # noqa: ASYNC110 - until the thread has taken the first, and waits at the gate
            await asyncio.sleep(0)
        for each in calls[1:]:
            queue.submit(each)
        assert len(queue) == 49
        worker.gate.set()
        assert await calls[-1] == 49
    assert worker.batches == [[0], list(range(1, 50))]


async def test_several_threads_share_one_queue_and_all_of_them_end() -> None:
    workers = [Recorder() for _ in range(3)]
    async with open_queue("test", [worker.open for worker in workers], arrivals(), largest_batch=1) as queue:
        calls = [call(value) for value in range(300)]
        for each in calls:
            queue.submit(each)
        assert [await each for each in calls] == list(range(300))
    assert [worker.left for worker in workers] == [1, 1, 1]
    assert sum(len(worker.batches) for worker in workers) == 300
    assert all(len(worker.threads) <= 1 for worker in workers), "each keeps to its own thread"


async def test_a_workers_own_calls_run_after_those_that_people_wait_for() -> None:
    worker = Recorder()
    worker.own = [call(-1)]
    async with open_queue("test", [worker.open], arrivals(), largest_batch=1000) as queue:
        first = call(1)
        queue.submit(first)
        assert await first == 1
    assert worker.batches == [[1], [-1]]


async def test_after_the_end_nothing_is_taken() -> None:
    async with open_queue("test", [Recorder().open], arrivals(), largest_batch=1) as queue:
        pass
    with pytest.raises(StoreError, match="closed"):
        queue.submit(call(1))
    async with open_inline(Recorder().open, arrivals()) as inline:
        assert len(inline) == 0
    with pytest.raises(StoreError, match="closed"):
        inline.submit(call(1))


async def test_a_worker_that_cannot_be_opened_ends_the_opening_and_the_others() -> None:
    @contextmanager
    def broken() -> Iterator[Recorder]:
        raise StoreError("no such file")
        yield

    good = Recorder()
    with pytest.raises(StoreError, match="no such file"):
        async with open_queue("test", [good.open, broken], arrivals(), largest_batch=1):
            pytest.fail("it was opened")
    assert good.left == 1


async def test_a_thread_that_breaks_says_so() -> None:
    @contextmanager
    def breaks_when_left() -> Iterator[Recorder]:
        yield Recorder()
        raise RuntimeError("broken")

    with capture_logs() as logs:
        async with open_queue("test", [breaks_when_left], arrivals(), largest_batch=1):
            pass
    assert [line["event"] for line in logs] == ["a thread of the store broke"]
