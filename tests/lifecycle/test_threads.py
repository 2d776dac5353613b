"""Messages from many threads at once, on the real clock and with the store's own threads: it settles."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import BlockingPortal

from holdfast.core.keys import ChatKey
from holdfast.core.settings import ResidentSettings, Settings
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import echo, until

pytestmark = pytest.mark.anyio

THREADS = 8
EACH = 20
LIMIT = 16
SETTINGS = Settings(residents=ResidentSettings(limit=LIMIT))


def chats(thread: int) -> Iterator[ChatKey]:
    yield from (ChatKey("test", f"{thread}-{number}") for number in range(EACH))


async def deliver(bench: Bench, text: str) -> list[str]:
    """Say it in 160 chats, from eight threads that begin together; what was answered."""
    together = threading.Barrier(THREADS)
    answers: list[str] = []

    def main(portal: BlockingPortal, thread: int) -> None:
        together.wait(30)
        mails = [portal.call(partial(bench.send, text, chat)) for chat in chats(thread)]
        answers.extend(portal.call(mail.answered).text for mail in mails)

    with anyio.fail_after(60):
        async with BlockingPortal() as portal, anyio.create_task_group() as group:
            for thread in range(THREADS):
                group.start_soon(anyio.to_thread.run_sync, main, portal, thread)
    return answers


@pytest.mark.proves("case 29", "invariant 2")
async def test_eight_threads_bring_a_hundred_and_sixty_sessions_and_it_settles_at_sixteen(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=SETTINGS, inline=False) as bench:
        for text in ("hello", "and again"):
            assert await deliver(bench, text) == [f"you said {text}"] * THREADS * EACH
            await until(lambda: len(bench.gateway.awake) <= LIMIT)
            assert len(bench.gateway.residents) == LIMIT
            await until(lambda: bench.model.leases == LIMIT)
        assert (bench.gateway.unanswered, bench.gateway.busy) == (0, 0)
        assert len(await bench.store.sessions(limit=1000)) == THREADS * EACH
        for chat in (*chats(0), *chats(THREADS - 1)):
            assert [message.text for message in await bench.said(chat)][1::2] == [
                "you said hello",
                "you said and again",
            ]
