"""Who wants to know of a conversation's end hears of it once, and never of an agent that only leaves memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.core.protocols import SessionRow
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import echo, until
from holdfast.testing.virtual import VirtualClock

from .events import ENDINGS, EVICTIONS, SETTINGS, agent_of, end, evict, session_of

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


class Witness:
    """Hears of conversations that end."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, row: SessionRow) -> None:
        self.heard.append(row.id)


@asynccontextmanager
async def open_witnessed(folder: Path, witness: Witness) -> AsyncIterator[Bench]:
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bench(folder, echo, settings=SETTINGS, clock=clock, at_end=[witness]) as bench:
        yield bench


@pytest.mark.proves("memory/evict")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_nobody_hears_of_an_end_when_an_agent_is_evicted(tmp_path: Path, route: str) -> None:
    witness = Witness()
    async with open_witnessed(tmp_path, witness) as bench:
        await bench.say("hello")
        await evict(bench, route)
        await anyio.sleep(1)
        assert witness.heard == []
        assert await bench.store.unconcluded() == []


@pytest.mark.proves("memory/model")
async def test_nobody_hears_of_an_end_when_another_model_takes_over(tmp_path: Path) -> None:
    witness = Witness()
    async with open_witnessed(tmp_path, witness) as bench:
        await bench.say("hello")
        before = agent_of(bench)
        await bench.say("/model other")
        await bench.say("hello")
        assert agent_of(bench) is not before
        await anyio.sleep(1)
        assert witness.heard == []


@pytest.mark.proves("memory/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_whichever_way_a_conversation_ends_it_is_heard_of_once(tmp_path: Path, way: str) -> None:
    """Also by the next process, which finds nothing left to tell."""
    witness = Witness()
    async with open_witnessed(tmp_path, witness) as bench:
        await bench.say("hello")
        session = session_of(bench).id
        await end(bench, way)
        await until(lambda: witness.heard == [session])
        await bench.say("hello again")
        await anyio.sleep(1)
    async with open_witnessed(tmp_path, witness):
        await anyio.sleep(1)
    assert witness.heard == [session]
