"""What agents cost that come and go, measured inside the process: `python -m bench.agents` prints JSON.

Building one from the store, and the order of residents: taking a place in it, and choosing who leaves, among few
and among many.
"""

import asyncio
import gc
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from anyio import create_task_group

from bench.standin_tools import TOOLS
from holdfast.agent.agent import ModelConfig, open_agent
from holdfast.app import run
from holdfast.core.clock import SystemClock
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.ledger import Ledger
from holdfast.core.messages import AssistantMessage, UserMessage
from holdfast.core.protocols import MessageRow, SessionRow
from holdfast.core.scopes import Keeper, Mailbox
from holdfast.gateway.residents import Residents
from holdfast.models.openai_chat import open_model
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import open_transports
from holdfast.storage import open_store
from holdfast.tools.catalogue import Catalogue

MESSAGES = 200
WORDS = "word " * 40
FEW, MANY = 100, 100_000
ROUNDS = 100


class Costs(msgspec.Struct, frozen=True):
    build_ms: float
    """An agent from the store, with `MESSAGES` messages."""
    seat_few_us: float
    """A place taken and the oldest asked to leave, with `FEW` residents; all of them idle."""
    seat_many_us: float
    largest_few_us: float
    """The largest found and asked to leave."""
    largest_many_us: float


async def measure_build(folder: Path) -> float:
    chat, clock = ChatKey("bench", "chat"), SystemClock()
    tools = Catalogue(TOOLS).choose()
    async with (
        open_store(folder / "holdfast.db", ledger=Ledger(), clock=clock) as store,
        open_transports(Ledger()) as transports,
        create_task_group() as group,
    ):
        row = SessionRow(SessionId("s"), chat, 1.0, 1.0, title="t", prompt="You are an agent. " * 60)
        await store.begin(row)
        for seq in range(MESSAGES):
            message = AssistantMessage(WORDS) if seq % 2 else UserMessage(WORDS)
            await store.append(row.id, MessageRow(seq, message, 1.0, MailId(f"m{seq // 2}")))
        choice = ModelChoice(provider="custom", name="stub", base_url="http://127.0.0.1:1/v1")
        config = ModelConfig("custom", "stub", choice.base_url, "openai", "", lambda _: open_model(choice, transports))
        keeper, times = Keeper(group, 5.0), []
        for _ in range(200):
            started = time.perf_counter()
            woken = await store.wake(chat)
            assert woken
            async with open_agent(config, tools, row.prompt, (each.message for each in woken.history), keeper):
                times.append(time.perf_counter() - started)
    return median(times) * 1000


class StandIn:
    """An agent as the order of residents sees it."""

    class context:  # noqa: N801 - an attribute of an agent's
        size = 1000


async def measure_order(residents_count: int) -> tuple[float, float]:
    """Microseconds for a newcomer among so many who wait, and for finding the largest."""
    residents = Residents(limit=residents_count, idle_ttl=3600)
    waiting: list[asyncio.Task[bool]] = []
    agent: Any = StandIn()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

        async def sit(name: str) -> None:
            seat = await stack.enter_async_context(residents.take(SessionId(name), agent, Mailbox()))
            waiting.append(group.create_task(residents.stays(seat)))

        for number in range(residents_count):
            await sit(f"first {number}")
        await asyncio.sleep(0)
        seats, largest = [], []
        for number in range(ROUNDS):
            started = time.perf_counter()
            await sit(f"newcomer {number}")
            seats.append(time.perf_counter() - started)
        await asyncio.sleep(0)
        for _ in range(ROUNDS):
            started = time.perf_counter()
            residents.relieve(1)
            largest.append(time.perf_counter() - started)
        for task in waiting:
            task.cancel()
    return median(seats) * 1e6, median(largest) * 1e6


async def measure() -> Costs:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        build = await measure_build(Path(folder))
    gc.disable()  # it looks at everything that is there, which is not what is measured
    await measure_order(FEW)  # to warm up
    (seat_few, largest_few), (seat_many, largest_many) = await measure_order(FEW), await measure_order(MANY)
    return Costs(build, seat_few, seat_many, largest_few, largest_many)


if __name__ == "__main__":
    print(msgspec.json.encode(run(lambda _: measure())).decode())
