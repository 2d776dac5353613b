"""Telegram: private chats with a bot, text in and text out."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Channel
from holdfast.core.settings import TelegramSettings

_EXTRA = ("telegram", "httpx")
"""What `holdfast[telegram]` installs."""


class Pace(msgspec.Struct, frozen=True):
    """How long what may take, in seconds."""

    poll: int = 25
    """Telegram keeps a request for messages open for so long when there are none."""
    reply: float = 30.0
    """How long an answer to any other request may take, and one to a poll on top of that."""
    first_wait: float = 1.0
    longest_wait: float = 60.0
    refused_wait: float = 300.0
    """Until a token that Telegram did not take is tried again."""

    def waits(self) -> Iterator[float]:
        """How long to wait after each failure in a row; there is no last one."""
        wait = self.first_wait
        while True:
            yield wait
            wait = min(wait * 2, self.longest_wait)


def open_channel(
    settings: TelegramSettings,
    ledger: Ledger,
    clock: Clock,
    *,
    pace: Pace = Pace(),  # noqa: B008 - frozen
) -> AbstractAsyncContextManager[Channel]:
    """The bot of these settings, until the block is left. Telegram itself need not be reachable for that."""
    try:
        from holdfast.channels.telegram import channel  # costs a quarter of a second, and few need it
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise SettingsError(
            "[channels.telegram] token is set, but what talks to Telegram is not installed; "
            "run scripts/setup telegram in a clone, or else pip install 'holdfast[telegram]'; or remove the token."
        ) from None
    return channel.open_channel(settings, ledger, clock, pace=pace)
