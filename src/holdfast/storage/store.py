"""The store: the methods of `core.protocols.Store`, each a function of `writes`, `upkeep` or `reads` down a lane."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, update_wrapper
from pathlib import Path
from sqlite3 import Cursor
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog

from holdfast.core.clock import Clock
from holdfast.core.errors import StoreError
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import SessionRow, Store
from holdfast.storage import reads, upkeep, writes
from holdfast.storage.connections import open_reader, open_writer
from holdfast.storage.lanes import Lane, open_inline, open_queue
from holdfast.storage.pending import Arrivals, Pending, Step, WriteStep
from holdfast.storage.sqlite import Durability

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

READERS = 2
LARGEST_COMMIT = 1000


def _write(run: Callable[Concatenate[Cursor, P], T]) -> "Callable[Concatenate[SqlStore, P], Pending[WriteStep, T]]":
    step = WriteStep(run)

    def method(self: "SqlStore", /, *args: P.args, **kwargs: P.kwargs) -> Pending[WriteStep, T]:
        call: Pending[WriteStep, T] = Pending(step, args, kwargs)
        self._writing.submit(call)
        return call

    update_wrapper(method, run)
    return method


def _read(run: Callable[Concatenate[Cursor, P], T]) -> "Callable[Concatenate[SqlStore, P], Coroutine[Any, Any, T]]":
    step = Step(run)

    async def method(self: "SqlStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        call: Pending[Step, T] = Pending(step, args, kwargs)
        self._reading.submit(call)
        return await call

    update_wrapper(method, run)
    return method


class SqlStore:
    """Writes queue up when they are called and are committed in groups; reads run beside them."""

    def __init__(self, path: Path, writing: Lane, reading: Lane) -> None:
        self._path = path
        self._writing = writing
        self._reading = reading

    def __repr__(self) -> str:
        return f"<SqlStore {self._path}: {len(self._writing)} writes and {len(self._reading)} reads wait>"

    accept = _write(writes.accept)
    begin = _write(writes.begin)
    control = _write(writes.control)
    append = _write(writes.append)
    finish = _write(writes.finish)
    sent = _write(writes.sent)
    undo = _write(writes.undo)
    end = _write(writes.end)
    conclude = _write(writes.conclude)
    resume = _write(writes.resume)
    prune_mail = _write(upkeep.prune_mail)
    prune_session = _write(upkeep.prune_session)
    shrink = _write(upkeep.shrink)
    _index = _write(writes.index)

    wake = _read(reads.wake)
    open_session = _read(reads.open_session)
    expired = _read(reads.expired)
    last_ended = _read(reads.last_ended)
    channels = _read(reads.channels)
    idle = _read(reads.idle)
    ended = _read(reads.ended)
    unconcluded = _read(reads.unconcluded)
    history = _read(reads.history)
    waiting = _read(reads.waiting)
    unsent = _read(reads.unsent)
    answer_to = _read(reads.answer_to)
    answer = _read(reads.answer)
    session = _read(reads.session)
    messages = _read(reads.messages)
    _newest = _read(reads.newest)
    _search = _read(reads.search)

    async def sessions(
        self, *, channel: str = "", search: str = "", before: float | None = None, limit: int = 50
    ) -> list[SessionRow]:
        """Newest first; with `search`, those whose messages match, best first, with a snippet."""
        if not search.strip():
            return await self._newest(channel, before, limit)
        try:
            await self._index()
        except StoreError as error:
            log.warning("search may miss the newest messages", error=str(error))
        return await self._search(search, channel, before, limit)


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    durability: Durability = "normal",
    ledger: Ledger,
    clock: Clock,
    inline: bool = False,
    patience: float = 5.0,
) -> AsyncIterator[Store]:
    """The store in this file, which is made or upgraded if need be.

    Leaving the block commits all that was called, and closes the file. `inline` uses no threads: each call runs
    its SQL on the spot, for virtual time. `patience` is how long to wait, in seconds, for another process's lock.
    """
    loop = asyncio.get_running_loop()
    writer = partial(open_writer, path, durability, patience)
    reader = partial(open_reader, path, patience)
    real = str(path.resolve())
    files = [real + suffix for suffix in ("", "-journal", "-shm", "-wal")]
    async with AsyncExitStack() as stack:
        for name in ("writer", *(f"reader {number}" for number in range(1, 2 if inline else READERS + 1))):
            stack.enter_context(ledger.enter("database", f"{path} ({name})", since=clock.now(), holds=lambda: files))
        writing: Lane
        reading: Lane
        if inline:
            arrivals = Arrivals(loop.call_soon)
            writing = await stack.enter_async_context(open_inline(writer, arrivals))
            reading = await stack.enter_async_context(open_inline(reader, arrivals))
        else:
            arrivals = Arrivals(loop.call_soon_threadsafe)
            writing = await stack.enter_async_context(
                open_queue("store-writer", [writer], arrivals, largest_batch=LARGEST_COMMIT)
            )
            reading = await stack.enter_async_context(
                open_queue("store-reader", [reader] * READERS, arrivals, largest_batch=1)
            )
        yield SqlStore(path, writing, reading)
