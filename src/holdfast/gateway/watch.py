"""The watcher: ends turns that hang, and lets idle agents go before memory runs out."""

import asyncio
import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway

log = structlog.get_logger(__name__)

EVERY = 5.0


async def watch(gateway: "Gateway") -> None:
    half, give_back = default_budget(), find_trim()
    while True:
        await anyio.sleep(EVERY)
        end_stalled_turns(gateway)
        budget = gateway.settings.residents.memory_budget or half
        if relieve(gateway, budget):
            await anyio.to_thread.run_sync(give_back)  # what the agents held is of use to nobody here


def end_stalled_turns(gateway: "Gateway") -> None:
    now = asyncio.get_running_loop().time()
    for chat in gateway.awake.values():
        if chat.turn and not chat.turn.stop_reason and now - chat.turn.last_event > gateway.settings.turn.stall:
            log.error("a turn hangs and is ended", chat=str(chat.key), since=chat.turn.started)
            chat.turn.stop("stall")


def relieve(gateway: "Gateway", budget: int) -> int:
    """Ask idle agents to leave while the process holds more than its budget. Returns how many."""
    try:
        excess = rss() - budget
    except OSError as error:  # out of descriptors, say: the next round may tell more
        log.warning("memory can't be watched", cause=str(error))
        return 0
    asked = gateway.residents.relieve(excess)
    if asked:
        log.warning("memory is short: idle agents leave", agents=asked, over_by=excess, budget=budget)
    return asked


def rss() -> int:
    """This process's resident memory in bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:  # no /proc; getrusage knows only the peak, which would never come down again
        return 0
    return pages * resource.getpagesize()


def default_budget() -> int:
    """Half of what this process may use: of its control group's memory, or the machine's."""
    limits = [_machine_memory()]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(name)
        if path.exists() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits) // 2


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def find_trim() -> Callable[[], object]:
    """What gives freed memory back to the system: glibc keeps it, and the process looks as large as before."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library, which needs no asking
        return lambda: None
    return lambda: trim(0)
