"""What the store costs: `python bench/store.py [--uvloop]` prints a table. CPU is the figure to trust."""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from holdfast.core.clock import SystemClock
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, AssistantMessage, Incoming, UserMessage
from holdfast.core.protocols import MessageRow, SessionRow, Store
from holdfast.storage import open_store

SESSIONS = 1024
TASKS = 512
PROMPT = "You are a helpful agent. " * 80
WORDS = ["".join(random.Random(number).choices("aeiounrtslm", k=3 + number % 7)) for number in range(5000)]

Work = Callable[[Store, int, int], Awaitable[None]]


def text(worker: int, turn: int) -> str:
    return " ".join(random.Random(worker * 7919 + turn).choices(WORDS, k=30))


TEXTS = [text(number, 0) for number in range(1000)]


def chat(number: int) -> ChatKey:
    return ChatKey("bench", str(number))


def session(number: int) -> SessionId:
    return SessionId(f"session-{number:012}")


async def append(store: Store, worker: int, turn: int) -> None:
    row = MessageRow(100_000 + turn, UserMessage(TEXTS[turn % 1000]), 2.0, MailId(f"mail-{worker:06}-{turn:08}"))
    await store.append(session(worker), row)


async def accept_and_finish(store: Store, worker: int, turn: int) -> None:
    """What one turn asks of the store: two waits; the user's message comes with the second."""
    mail = MailId(f"mail-{worker:06}-{turn:08}-{time.monotonic_ns()}")
    said = TEXTS[turn % 1000]
    await store.accept(Incoming(mail, chat(worker), said, 2.0))
    rows = [
        MessageRow(2 * turn, UserMessage(said), 2.0, mail),
        MessageRow(2 * turn + 1, AssistantMessage(said), 3.0, mail),
    ]
    await store.finish(Answer(f"a-{mail}", mail, chat(worker), said, 3.0), session(worker), rows, push=False)


async def wake(store: Store, worker: int, turn: int) -> None:
    await store.wake(chat(TASKS + turn % 200))


async def newest(store: Store, worker: int, turn: int) -> None:
    await store.sessions()


async def search(store: Store, worker: int, turn: int) -> None:
    await store.sessions(search=f"{WORDS[turn]} {WORDS[turn + 1][:3]}")


async def measure(name: str, store: Store, work: Work, workers: int, turns: int) -> None:
    waits: list[float] = []

    async def worker(number: int) -> None:
        for count in range(turns):
            began = time.perf_counter()
            await work(store, number, count)
            waits.append(time.perf_counter() - began)

    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(worker(number))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    waits.sort()
    p50, p99 = (waits[int(len(waits) * part)] * 1e6 for part in (0.5, 0.99))
    rate, each = len(waits) / wall, cpu * 1e6 / len(waits)
    print(f"{name:30} {workers:5} {rate:12,.0f} {each:10.1f} {p50:10,.0f} {p99:10,.0f}")


async def fill(store: Store) -> None:
    for number in range(SESSIONS):
        store.begin(SessionRow(session(number), chat(number), 1.0, 1.0, title="Logs", prompt=PROMPT))
    for number in range(TASKS, SESSIONS):
        for seq in range(20):
            row = MessageRow(50_000 + seq, UserMessage(text(number, seq)), 2.0, MailId(f"old-{number}-{seq}"))
            store.append(session(number), row)
    await store.sessions(search="everything")  # which has it indexed


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


async def main(folder: Path) -> None:
    def opened(name: str, **options: Any) -> AbstractAsyncContextManager[Store]:
        return open_store(folder / f"{name}.db", ledger=Ledger(), clock=SystemClock(), **options)

    for name in ("fresh file", "same again"):
        began = time.perf_counter()
        async with opened("fresh"):
            print(f"{name}: open in {(time.perf_counter() - began) * 1e3:.1f} ms, {resident():.1f} MB resident")
    print(f"\n{'':30} {'tasks':>5} {'per second':>12} {'CPU µs':>10} {'p50 µs':>10} {'p99 µs':>10}")
    options: dict[str, dict[str, Any]] = {"normal": {}, "full": {"durability": "full"}, "inline": {"inline": True}}
    for name, option in options.items():
        async with opened(name, **option) as store:
            await fill(store)
            await measure(f"{name}: accept, finish", store, accept_and_finish, 1, 2000)
            await measure(f"{name}: accept, finish", store, accept_and_finish, 32, 100)
            await measure(f"{name}: accept, finish", store, accept_and_finish, 256, 20)
            await measure(f"{name}: append", store, append, 1, 2000)
            await measure(f"{name}: append", store, append, TASKS, 80)
            await measure(f"{name}: wake, 20 messages", store, wake, 1, 1000)
            await measure(f"{name}: wake, 20 messages", store, wake, 32, 100)
            await measure(f"{name}: newest 50", store, newest, 1, 50)
            await measure(f"{name}: search", store, search, 1, 100)
    print(f"\n{resident():.1f} MB resident at the end")


if __name__ == "__main__":
    run: Callable[[Any], None] = asyncio.run
    if "--uvloop" in sys.argv:
        import uvloop

        run = uvloop.run
    with tempfile.TemporaryDirectory() as folder:
        run(main(Path(folder)))
