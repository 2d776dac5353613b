"""Blocking work beside the loop, in a bounded number of threads."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import structlog
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from holdfast.core.errors import ToolFailed

log = structlog.get_logger(__name__)

T = TypeVar("T")

MOST_THREADS = 40
PATIENCE = 30.0
"""How many seconds a call waits for a thread before the model is told to try again."""

_places: RunVar[anyio.Semaphore] = RunVar("places for blocking tools")  # as old as the loop, and gone with it


async def in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a thread. Cancelled, it ends at once: the thread finishes alone, and nobody hears
    its result.

    A thread keeps its place until it is really done. So work that hangs, started and stopped over and over,
    holds `MOST_THREADS` threads and no more.
    """
    places = await _take_place()
    loop = asyncio.get_running_loop()
    begun = threading.Lock()  # who takes it first decides: the thread begins, or a cancel came before

    def run() -> T:
        if not begun.acquire(blocking=False):
            raise RuntimeError("called off before it began")  # heard by nobody
        try:
            return work()
        finally:
            with suppress(RuntimeError):  # the loop has ended, and the places with it
                loop.call_soon_threadsafe(places.release)

    try:
        return await run_sync(run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    finally:
        if begun.acquire(blocking=False):
            places.release()


async def _take_place() -> anyio.Semaphore:
    places = _places.get(None)
    if places is None:
        _places.set(places := anyio.Semaphore(MOST_THREADS, fast_acquire=True))
    try:
        with anyio.fail_after(PATIENCE):
            await places.acquire()
    except TimeoutError:
        log.warning("a tool found no thread: blocking tools hold them all", threads=MOST_THREADS, waited=PATIENCE)
        raise ToolFailed("Too many tools are at work in the gateway; try again in a while.") from None
    return places
