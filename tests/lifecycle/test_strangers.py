"""Nobody gets in who is not on the list: on every channel that is installed."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import OpenChannel
from holdfast.core.settings import ChannelSettings, Secret, TelegramSettings
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import echo
from holdfast.testing.telegram import ANNA, BEN, open_bot_api

pytestmark = pytest.mark.anyio

Stranger = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def strangers_on_telegram() -> AsyncIterator[Any]:
    """The bot's settings, with nobody on its list; and what happens there until all was looked at."""
    async with open_bot_api() as api:

        async def write() -> None:
            for person in (ANNA, BEN):
                for text in ("hello", "/start", "/new"):
                    api.say(text, person)
            await api.until(lambda: not api.unconfirmed and all(map(api.heard, (ANNA, BEN))))

        yield TelegramSettings(Secret(api.token), api.url), write


STRANGERS: dict[str, Stranger] = {"telegram": strangers_on_telegram}
"""How strangers write on each channel, to one whose list is empty."""

INSTALLED = sorted(entry.name for entry in entry_points(group="holdfast.channels"))


@pytest.mark.proves("invariant 18")
@pytest.mark.parametrize("channel", INSTALLED)
async def test_an_empty_list_lets_nobody_in(tmp_path: Path, channel: str) -> None:
    if channel not in STRANGERS:
        pytest.fail(f"Say in STRANGERS how a stranger writes on {channel}, so that it is tested as well.")
    (entry,) = entry_points(group="holdfast.channels", name=channel)
    open_channel: OpenChannel = entry.load()
    async with (
        STRANGERS[channel]() as (settings, write),
        open_channel(settings, Ledger(), SystemClock()) as opened,
        open_bench(tmp_path, echo, channels={channel: opened}) as bench,
    ):
        await write()
        assert not bench.gateway.awake
        assert await bench.store.sessions() == []
        assert await bench.store.waiting() == []
        assert bench.model.requests == []


@pytest.mark.proves("invariant 18")
@pytest.mark.parametrize("channel", INSTALLED)
def test_the_list_is_empty_unless_someone_fills_it(channel: str) -> None:
    assert msgspec.structs.asdict(ChannelSettings())[channel].allow == ()
