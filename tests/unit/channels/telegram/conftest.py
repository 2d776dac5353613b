"""A local Bot API, and bots that talk to it and lose no time."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from holdfast.channels.telegram import Pace, open_channel
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Channel
from holdfast.core.settings import Secret, TelegramSettings
from holdfast.testing.telegram import ANNA, BEN, BotApi, open_bot_api

OpenBot = Callable[..., AbstractAsyncContextManager[Channel]]

BRISK = Pace(first_wait=0.01, longest_wait=0.05, refused_wait=0.05, reply=5.0)


@pytest.fixture
async def api(anyio_backend: object) -> AsyncIterator[BotApi]:
    async with open_bot_api() as api:
        yield api


@pytest.fixture
def open_bot(api: BotApi) -> OpenBot:
    """Opens a bot that Anna and Ben may write to, unless told otherwise."""

    def open_one(
        allow: tuple[str, ...] = (str(ANNA.id), str(BEN.id)),
        *,
        ledger: Ledger = Ledger(),  # noqa: B008 - each bot leaves it empty again
        clock: Clock = SystemClock(),  # noqa: B008 - holds nothing
        pace: Pace = BRISK,
    ) -> AbstractAsyncContextManager[Channel]:
        settings = TelegramSettings(Secret(api.token), api.url, allow)
        return open_channel(settings, ledger, clock, pace=pace)

    return open_one
