"""The watcher: ends turns that hang, and lets idle agents go before memory runs out."""

import asyncio
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway

log = structlog.get_logger(__name__)

EVERY = 5.0


async def watch(gateway: "Gateway") -> None:
    budget = gateway.settings.residents.memory_budget or default_budget()
    while True:
        await anyio.sleep(EVERY)
        end_stalled_turns(gateway)
        try:
            excess = rss() - budget
        except OSError as error:  # out of descriptors, say: the next round may tell more
            log.warning("memory can't be watched", cause=str(error))
            continue
        if excess > 0 and (asked := gateway.residents.relieve(excess)):
            log.warning("memory is short: idle agents leave", agents=asked, over_by=excess, budget=budget)


def end_stalled_turns(gateway: "Gateway") -> None:
    now = asyncio.get_running_loop().time()
    for chat in gateway.awake.values():
        if chat.turn and not chat.turn.stop_reason and now - chat.turn.last_event > gateway.settings.turn.stall:
            log.error("a turn hangs and is ended", chat=str(chat.key), since=chat.turn.started)
            chat.turn.stop("stall")


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
