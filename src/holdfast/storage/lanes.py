"""How calls get from the loop to a connection and back: through threads, or inline, right where they are made."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, Protocol

import structlog
from anyio import CancelScope

from holdfast.core.errors import StoreError
from holdfast.storage.pending import Arrivals, Pending

log = structlog.get_logger(__name__)

Call = Pending[Any, Any]

LAST_WORK = 10.0
"""How long threads may take to work off what waits when the store is left. What isn't done then was never taken."""


class Worker(Protocol):
    """Runs calls on a connection of its own; opened, used and left in one thread."""

    def run(self, batch: Sequence[Call]) -> None:
        """Give each its result or its error."""

    def due(self) -> Sequence[Call]:
        """Calls of the worker's own that are to run now."""


OpenWorker = Callable[[], AbstractContextManager[Worker]]


class Lane(Protocol):
    """Takes calls, in order."""

    def __len__(self) -> int:
        """How many wait."""

    def submit(self, call: Call) -> None: ...


def work(worker: Worker, batch: Sequence[Call], arrivals: Arrivals) -> None:
    while batch:
        worker.run(batch)
        arrivals.bring(batch)
        batch = worker.due()  # after the others were told, who need not wait for it


# ── threads ─────────────────────────────────────────────────────────────────────────────────────


class Queue:
    """A lane that threads work off, so that the loop never waits for a disk."""

    def __init__(self, largest_batch: int) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._largest_batch = largest_batch
        self._ending = False

    def __len__(self) -> int:
        return self._calls.qsize()

    def submit(self, call: Call) -> None:
        if self._ending:
            raise StoreError("The store is closed.")
        self._calls.put(call)

    def end(self) -> None:
        """Nothing more comes: the threads work off what is there, and end."""
        self._ending = True
        self._calls.put(None)

    def batches(self) -> Iterator[Sequence[Call]]:
        """What is there, as soon as there is something, until the end."""
        calls = self._calls
        while (call := calls.get()) is not None:
            batch = [call]
            while len(batch) < self._largest_batch and not calls.empty():
                if (call := calls.get()) is None:
                    calls.put(None)
                    break
                batch.append(call)
            yield batch
        calls.put(None)  # for the next thread


@asynccontextmanager
async def open_queue(
    name: str, workers: Sequence[OpenWorker], arrivals: Arrivals, *, largest_batch: int
) -> AsyncIterator[Queue]:
    """A queue with a thread for each worker. Leaving waits until everything in it is done, unless the disk hangs."""
    queue = Queue(largest_batch)
    async with AsyncExitStack() as stack:
        for number, open_worker in enumerate(workers, 1):
            await stack.enter_async_context(_thread(f"{name}-{number}", open_worker, queue, arrivals))
        yield queue


@asynccontextmanager
async def _thread(name: str, open_worker: OpenWorker, queue: Queue, arrivals: Arrivals) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()

    def main() -> None:
        failure = None
        try:
            with open_worker() as worker:
                loop.call_soon_threadsafe(note_ready)
                for batch in queue.batches():
                    try:
                        work(worker, batch, arrivals)
                    except Exception as error:  # a bug of ours: whoever waits must hear of it, and the lane goes on
                        log.exception("a thread of the store broke", thread=name)
                        for call in batch:
                            call.error = call.error or StoreError(f"The store broke ({error}); see the log.")
                        arrivals.bring(batch)
        except Exception as error:  # noqa: BLE001 - handed over to the loop
            failure = error
        with suppress(RuntimeError):  # it hung for so long that the loop has ended meanwhile
            loop.call_soon_threadsafe(note_end, failure)

    def note_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    def note_end(failure: Exception | None) -> None:
        ended.set_result(None)
        if failure is not None and not ready.done():
            ready.set_exception(failure)
        elif failure is not None:
            log.error("a thread of the store broke", thread=name, exc_info=failure)

    # A daemon, so that a disk that hangs can't keep the process from ending.
    thread = threading.Thread(target=main, name=name, daemon=True)
    thread.start()
    try:
        await ready
        yield
    finally:
        queue.end()
        with CancelScope(shield=True):
            await asyncio.wait([ended], timeout=LAST_WORK)
        if ended.done():
            thread.join()
        else:
            log.error("the disk hangs: a thread of the store is left to itself", thread=name, seconds=LAST_WORK)


# ── inline ──────────────────────────────────────────────────────────────────────────────────────


class Inline:
    """A lane without a thread: a call runs where it is made, and is settled when the loop comes round."""

    def __init__(self, worker: Worker, arrivals: Arrivals) -> None:
        self._worker = worker
        self._arrivals = arrivals
        self._ended = False

    def __len__(self) -> int:
        return 0

    def submit(self, call: Call) -> None:
        if self._ended:
            raise StoreError("The store is closed.")
        work(self._worker, [call], self._arrivals)

    def end(self) -> None:
        self._ended = True


@asynccontextmanager
async def open_inline(open_worker: OpenWorker, arrivals: Arrivals) -> AsyncIterator[Inline]:
    with open_worker() as worker:
        lane = Inline(worker, arrivals)
        try:
            yield lane
        finally:
            lane.end()
            with CancelScope(shield=True):
                await asyncio.sleep(0)  # what is done is settled before the block is left
