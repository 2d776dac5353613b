"""A messenger that is out of order for a while: its people get their answers afterwards, each once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.channels.telegram import open_channel
from holdfast.core.ledger import Ledger
from holdfast.core.settings import Secret, TelegramSettings
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import Gate
from holdfast.testing.telegram import ANNA, BotApi, bad_gateway, open_bot_api
from holdfast.testing.virtual import VirtualClock

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

OUTAGE = 30.0


@asynccontextmanager
async def open_telegram(folder: Path, gate: Gate) -> AsyncIterator[tuple[BotApi, Bench]]:
    """A gateway whose people write on Telegram, over real sockets, on virtual time."""
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bot_api() as api:
        settings = TelegramSettings(Secret(api.token), api.url, (str(ANNA.id),))
        async with (
            open_channel(settings, Ledger(), clock) as channel,
            open_bench(folder, gate, channels={"telegram": channel}, clock=clock) as bench,
        ):
            yield api, bench


async def answered_afterwards(api: BotApi, bench: Bench) -> None:
    """Each once, in order, and nothing is left in the outbox."""
    await anyio.sleep(120)
    assert api.heard() == ["you said one", "you said two"]
    assert await bench.store.unsent() == []
    assert len(bench.model.requests) == 2


@pytest.mark.proves("case 66")
async def test_thirty_seconds_of_502_and_the_answer_arrives_once_afterwards(tmp_path: Path) -> None:
    gate = Gate()
    async with open_telegram(tmp_path, gate) as (api, bench):
        api.say("one")
        api.say("two")
        await gate.has(waiting=1)
        with api.failing(bad_gateway()):
            gate.open()
            await anyio.sleep(OUTAGE)
            assert len(api.made("sendMessage")) >= 3
            assert api.heard() == []
        await answered_afterwards(api, bench)


@pytest.mark.proves("case 67")
async def test_thirty_seconds_of_refused_connections_and_the_answer_arrives_once_afterwards(tmp_path: Path) -> None:
    gate = Gate()
    async with open_telegram(tmp_path, gate) as (api, bench):
        api.say("one")
        api.say("two")
        await gate.has(waiting=1)
        async with api.refusing():
            gate.open()
            await anyio.sleep(OUTAGE)
            assert api.heard() == []
            assert len(await bench.store.unsent()) == 2
        await answered_afterwards(api, bench)
