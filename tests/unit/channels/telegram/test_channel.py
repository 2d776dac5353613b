"""The bot as a whole: it keeps the contract of channels, and its sockets and its token to itself."""

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import entry_points

import anyio
import pytest

from holdfast.channels.telegram import open_channel
from holdfast.core.clock import SystemClock
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Channel
from holdfast.core.settings import Secret, TelegramSettings
from holdfast.gateway.descriptors import list_descriptors, names
from holdfast.testing.channels import Inbox, check_channel
from holdfast.testing.telegram import ANNA, BotApi

pytestmark = pytest.mark.anyio

OpenBot = Callable[..., AbstractAsyncContextManager[Channel]]


class Telegram:
    """Drives the local Bot API for the contract suite."""

    def __init__(self, api: BotApi, open_bot: OpenBot) -> None:
        self.api = api
        self._open_bot = open_bot

    def open_channel(self, *, allow: bool) -> AbstractAsyncContextManager[Channel]:
        return self._open_bot(allow=(str(ANNA.id),) if allow else ())

    def say(self, text: str) -> None:
        self.api.say(text)

    def heard(self) -> list[str]:
        return self.api.heard()

    def unacknowledged(self) -> int:
        return self.api.unconfirmed

    def down(self) -> AbstractAsyncContextManager[None]:
        return self.api.refusing()

    @asynccontextmanager
    async def gone(self) -> AsyncIterator[None]:
        self.api.blocked.add(ANNA.id)
        yield
        self.api.blocked.clear()


@pytest.mark.proves("invariant 18")
async def test_it_keeps_the_contract_of_channels(api: BotApi, open_bot: OpenBot) -> None:
    await check_channel(Telegram(api, open_bot))


async def test_the_ledger_knows_its_sockets_as_long_as_it_is_open(api: BotApi, open_bot: OpenBot) -> None:
    ledger = Ledger()
    async with open_bot(ledger=ledger):
        (entry,) = ledger
        assert (entry.kind, entry.name, entry.owner) == ("socket pool", api.url, "process")
        assert entry.since > 0
    assert len(ledger) == 0


async def test_the_ledger_knows_which_descriptors_are_its_own(api: BotApi, open_bot: OpenBot) -> None:
    ledger, inbox = Ledger(), Inbox()
    async with open_bot(ledger=ledger) as channel, anyio.create_task_group() as group:
        assert ledger.holders() == {}
        group.start_soon(channel.receive, inbox.accept)
        await api.until(lambda: len(api.made("getUpdates")) >= 1)
        found = list_descriptors(ledger) or []
        connections = [name for name, held in zip(names(found), found, strict=True) if held.holder]
        assert connections
        assert all(name.endswith(f"→ {api.url.removeprefix('http://')}") for name in connections)
        group.cancel_scope.cancel()
    assert ledger.holders() == {}


async def test_it_opens_while_telegram_is_out_of_reach(api: BotApi, open_bot: OpenBot) -> None:
    async with api.refusing(), open_bot() as channel:
        assert channel.name == "telegram"
    assert api.calls == []


async def test_its_connections_close_with_the_block(api: BotApi, open_bot: OpenBot) -> None:
    inbox = Inbox()
    async with open_bot() as channel, anyio.create_task_group() as group:
        group.start_soon(channel.receive, inbox.accept)
        api.say("hello")
        await api.until(lambda: len(api.made("getUpdates")) >= 1 and not api.unconfirmed)
        group.cancel_scope.cancel()
    # The fixture for all tests looks for descriptors, tasks and threads that are left.


async def test_no_library_logs_the_token(api: BotApi, open_bot: OpenBot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    inbox = Inbox()
    async with open_bot() as channel, anyio.create_task_group() as group:
        group.start_soon(channel.receive, inbox.accept)
        api.say("hello")
        await api.until(lambda: bool(inbox.stored))
        group.cancel_scope.cancel()
    assert caplog.records, "the libraries do log something"
    assert api.token not in caplog.text


async def test_an_api_base_may_end_in_a_slash(api: BotApi) -> None:
    settings = TelegramSettings(Secret(api.token), f"{api.url}/", (str(ANNA.id),))
    inbox = Inbox()
    async with open_channel(settings, Ledger(), SystemClock()) as channel, anyio.create_task_group() as group:
        group.start_soon(channel.receive, inbox.accept)
        api.say("hello")
        await api.until(lambda: inbox.texts == ["hello"])
        group.cancel_scope.cancel()


def test_it_is_registered_as_third_parties_channels_are() -> None:
    (entry,) = entry_points(group="holdfast.channels", name="telegram")
    assert entry.load() is open_channel


def test_without_its_package_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['telegram'] = None\n"
        "from holdfast.channels.telegram import open_channel\n"
        "from holdfast.core.errors import SettingsError\n"
        "from holdfast.core.settings import Secret, TelegramSettings\n"
        "try: open_channel(TelegramSettings(Secret('1:secret')), None, None)\n"
        "except SettingsError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "pip install 'holdfast[telegram]'" in done.stdout
    assert done.stdout.count("\n") == 1
    assert "secret" not in done.stdout


def test_who_has_no_bot_does_not_pay_for_the_package() -> None:
    program = "import sys, holdfast.channels.telegram; print('telegram' in sys.modules, 'httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
