"""Messages from Telegram: confirmed once they are stored, from those who are let in, whatever the network does."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.channels.telegram import Pace, inbound
from holdfast.channels.telegram.inbound import MOST_NOTICES, MOST_STRANGERS, NOTICE_TRIES, ONLY_TEXT, Access, Notices
from holdfast.core.clock import SystemClock
from holdfast.core.errors import StoreFull
from holdfast.core.keys import ChatKey
from holdfast.core.protocols import Channel
from holdfast.testing.channels import Inbox
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import Gate, echo
from holdfast.testing.telegram import (
    BEN,
    BotApi,
    Person,
    Trouble,
    bad_gateway,
    flood,
    hangs_up,
    refuses,
    slow,
    unauthorized,
)

pytestmark = pytest.mark.anyio

OpenBot = Callable[..., AbstractAsyncContextManager[Channel]]

BRISK = Pace(first_wait=0.01, longest_wait=0.05, refused_wait=0.05, reply=5.0)
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
PHOTO = [{"file_id": "a", "file_unique_id": "b", "width": 1, "height": 1}]
VOICE = {"file_id": "a", "file_unique_id": "b", "duration": 3}


@asynccontextmanager
async def receiving(channel: Channel) -> AsyncIterator[Inbox]:
    inbox = Inbox()
    async with anyio.create_task_group() as group:
        group.start_soon(channel.receive, inbox.accept)
        yield inbox
        group.cancel_scope.cancel()


def offsets(api: BotApi) -> list[str | None]:
    return [call.parameters.get("offset") for call in api.made("getUpdates")]


# ── taking ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_says_whose_it_is_and_where_it_was_said(api: BotApi, open_bot: OpenBot) -> None:
    async with open_bot() as channel, receiving(channel) as inbox:
        update = api.say("hello", BEN)
        await api.until(lambda: not api.unconfirmed)
    (incoming,) = inbox.offered
    assert incoming.id == f"telegram:123456:{update}"
    assert incoming.chat == ChatKey("telegram", "1002")
    assert (incoming.text, incoming.sender, incoming.fingerprint) == ("hello", "1002", "")
    assert abs(incoming.received - SystemClock().now()) < 20


async def test_only_the_poll_after_a_message_was_stored_confirms_it(api: BotApi, open_bot: OpenBot) -> None:
    first, second = api.say("one"), api.say("two")
    async with open_bot() as channel, receiving(channel) as inbox:
        inbox.gate = anyio.Event()
        await api.until(lambda: bool(inbox.offered))
        assert offsets(api) == [None]
        assert api.unconfirmed == 2
        inbox.gate.set()
        await api.until(lambda: not api.unconfirmed)
    await api.until(lambda: len(offsets(api)) == 2)  # calls are noted when they end
    assert offsets(api) == [None, str(second + 1)]
    assert [incoming.text for incoming in inbox.offered] == ["one", "two"]
    assert first < second


async def test_what_came_before_a_message_that_cant_be_stored_is_confirmed_with_it(
    api: BotApi, open_bot: OpenBot
) -> None:
    for text in ("one", "two", "three"):
        api.say(text)
    async with open_bot() as channel, receiving(channel) as inbox:
        inbox.refusals = [StoreFull("The disk is full.")] * 3
        await api.until(lambda: not api.unconfirmed)
    assert [incoming.text for incoming in inbox.offered] == ["one", "one", "one", "one", "two", "three"]


async def test_a_long_queue_is_fetched_to_its_end_in_order(api: BotApi, open_bot: OpenBot) -> None:
    sent = [f"message {number}" for number in range(250)]  # Telegram gives a hundred at once
    for text in sent:
        api.say(text)
    async with open_bot() as channel, receiving(channel) as inbox:
        await api.until(lambda: not api.unconfirmed)
    assert inbox.texts == sent


async def test_a_message_that_comes_again_after_a_restart_is_answered_once(
    api: BotApi, open_bot: OpenBot, tmp_path: Path
) -> None:
    gate = Gate()
    api.say("hello")
    api.will("getUpdates", slow(0))
    with api.failing(bad_gateway(), "getUpdates"):  # so that the poll which would confirm it never gets through
        async with open_bot() as channel, open_bench(tmp_path, gate, channels={"telegram": channel}):
            await gate.has(1)
    assert (api.unconfirmed, api.heard()) == (1, [])
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}) as bench:
        await api.until(lambda: not api.unconfirmed and bool(api.heard()))
        api.say("again")
        await api.until(lambda: len(api.heard()) > 1)
        assert len(bench.model.requests) == 2
    assert api.heard() == ["you said hello", "you said again"]


# ── what is not taken ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "content",
    [
        {"photo": PHOTO, "caption": "what is this?"},
        {"voice": VOICE},
        {"location": {"latitude": 1.0, "longitude": 2.0}},
        {"something_new": {"that": "nobody knows yet"}},
    ],
    ids=lambda content: next(iter(content)),
)
async def test_what_is_not_text_gets_one_sentence(api: BotApi, open_bot: OpenBot, content: dict[str, Any]) -> None:
    async with open_bot() as channel, receiving(channel) as inbox:
        api.post(**content)
        await api.until(lambda: not api.unconfirmed and bool(api.heard()))
    assert api.heard() == [ONLY_TEXT]
    assert inbox.offered == []


async def test_what_is_said_in_groups_is_left_alone(api: BotApi, open_bot: OpenBot) -> None:
    async with open_bot() as channel, receiving(channel) as inbox:
        api.post(chat={"id": -5, "type": "group", "title": "Friends"}, text="hello everyone")
        api.say("hello")
        await api.until(lambda: not api.unconfirmed)
    assert inbox.texts == ["hello"]
    assert api.sent == []


async def test_an_update_without_a_message_is_passed_over(api: BotApi, open_bot: OpenBot) -> None:
    api.say("edited")
    api._updates[0]["edited_message"] = api._updates[0].pop("message")
    async with open_bot() as channel, receiving(channel) as inbox:
        await api.until(lambda: not api.unconfirmed)
    assert inbox.offered == []


# ── who is let in ───────────────────────────────────────────────────────────────────────────────


async def test_a_stranger_is_told_their_own_number_and_the_operator_sees_it(api: BotApi, open_bot: OpenBot) -> None:
    with capture_logs() as logs:
        async with open_bot(allow=()) as channel, receiving(channel) as inbox:
            for text in ("let me in", "please", "/start"):
                api.say(text)
            api.say("me too", BEN)
            await api.until(lambda: not api.unconfirmed and bool(api.heard(BEN)))
    assert inbox.offered == []
    (told,) = api.heard()
    assert "1001" in told
    assert [(line["user"], line["name"]) for line in logs if line["event"] == "a stranger wrote"] == [
        (1001, "Anna_K"),
        (1002, None),
    ]


async def test_a_stranger_is_told_again_after_an_hour(api: BotApi, open_bot: OpenBot) -> None:
    class Clock:
        time = 1_000_000.0

        def now(self) -> float:
            return self.time

    clock = Clock()
    async with open_bot(allow=(), clock=clock) as channel, receiving(channel):
        api.say("hello")
        await api.until(lambda: len(api.heard()) == 1)
        clock.time += 3599
        api.say("hello?")
        await api.until(lambda: not api.unconfirmed)
        clock.time += 1
        api.say("hello!")
        await api.until(lambda: len(api.heard()) == 2)


@pytest.mark.parametrize("entry", ["1001", "@Anna_K", "@anna_k", "@ANNA_K"])
async def test_people_are_let_in_by_number_or_by_name(api: BotApi, open_bot: OpenBot, entry: str) -> None:
    async with open_bot(allow=(entry,)) as channel, receiving(channel) as inbox:
        api.say("hello", BEN)
        api.say("hello")
        await api.until(lambda: not api.unconfirmed)
    assert [incoming.sender for incoming in inbox.offered] == ["1001"]


async def test_having_no_name_is_not_a_name(api: BotApi, open_bot: OpenBot) -> None:
    async with open_bot(allow=("@none", "@")) as channel, receiving(channel) as inbox:
        api.say("hello", BEN)
        await api.until(lambda: not api.unconfirmed and bool(api.heard(BEN)))
    assert inbox.offered == []


async def test_any_number_of_strangers_takes_no_more_memory(api: BotApi) -> None:
    from telegram import User

    access = Access((), SystemClock())
    for number in range(3 * MOST_STRANGERS):
        assert access.is_to_be_told(User(number, "Stranger", is_bot=False))
    assert len(access._told) == MOST_STRANGERS
    assert not access.is_to_be_told(User(3 * MOST_STRANGERS - 1, "Stranger", is_bot=False))


# ── trouble ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (bad_gateway(), "can't be reached"),
        (refuses(500, "Internal Server Error"), "can't be reached"),
        (hangs_up(), "can't be reached"),
        (slow(60), "can't be reached"),
        (unauthorized(), "token"),
        (refuses(404, "Not Found"), "token"),
        (refuses(409, CONFLICT), "another program"),
    ],
    ids=["502", "500", "hang-up", "hang", "401", "404", "409"],
)
async def test_trouble_is_logged_once_and_then_over(
    api: BotApi, open_bot: OpenBot, trouble: Trouble, told: str
) -> None:
    pace = Pace(poll=0, reply=1.0, first_wait=0.01, longest_wait=0.05, refused_wait=0.05)  # a hang is soon noticed
    with capture_logs() as logs:
        async with open_bot(pace=pace) as channel, receiving(channel) as inbox:
            await api.until(lambda: bool(api.made("getMe")))
            with api.failing(trouble, "getUpdates"):
                seen = len(api.made("getUpdates"))
                await api.until(lambda: len(api.made("getUpdates")) >= seen + 3)
            api.say("hello")
            await api.until(lambda: inbox.texts == ["hello"])
    (error,) = [line["event"] for line in logs if line["log_level"] == "error"]
    assert told in error
    assert logs[-1]["event"] == "Telegram answers again"
    assert api.token not in str(logs)
    assert "<html>" not in str(logs)


async def test_it_comes_up_when_telegram_does(api: BotApi, open_bot: OpenBot) -> None:
    async with open_bot() as channel, receiving(channel) as inbox:
        async with api.refusing():
            api.say("hello")
            await anyio.sleep(0.05)
        await api.until(lambda: inbox.texts == ["hello"])


async def test_a_poll_that_telegram_slows_down_waits_as_long_as_it_asks(api: BotApi, open_bot: OpenBot) -> None:
    api.will("getUpdates", flood(1))
    api.say("hello")
    async with open_bot() as channel, receiving(channel) as inbox:
        await api.until(lambda: inbox.texts == ["hello"])
    refused, answered, *_ = api.made("getUpdates")
    assert answered.at - refused.at >= 1


async def test_a_webhook_in_the_way_is_removed(api: BotApi, open_bot: OpenBot) -> None:
    api.webhook = "https://example.org/hook"
    api.say("hello")
    async with open_bot() as channel, receiving(channel) as inbox:
        await api.until(lambda: inbox.texts == ["hello"])
    assert api.webhook == ""


async def test_notices_are_tried_again_and_then_given_up(api: BotApi, open_bot: OpenBot) -> None:
    api.will("sendMessage", bad_gateway(), hangs_up())
    with capture_logs() as logs:
        async with open_bot() as channel, receiving(channel):
            api.post(voice=VOICE)
            await api.until(lambda: api.heard() == [ONLY_TEXT])
            with api.failing(bad_gateway(), "sendMessage"):
                api.post(voice=VOICE)
                await api.until(lambda: len(api.made("sendMessage")) == 3 + NOTICE_TRIES)
            api.post(BEN, voice=VOICE)
            await api.until(lambda: api.heard(BEN) == [ONLY_TEXT])
    assert [line["event"] for line in logs] == ["receiving messages", "a notice was not delivered"]
    assert api.heard() == [ONLY_TEXT]


async def test_notices_hold_up_nobody_and_dont_pile_up(api: BotApi, open_bot: OpenBot) -> None:
    async with open_bot() as channel, receiving(channel) as inbox:
        with api.failing(slow(60), "sendMessage"):
            for _ in range(2 * MOST_NOTICES):
                api.post(voice=VOICE)
            for number in range(2 * MOST_NOTICES):
                api.post(Person(1002, f"Ben {number}"), voice=VOICE)
            api.say("hello")
            await api.until(lambda: inbox.texts == ["hello"])
        assert "2 notices waiting" in repr(channel)


def test_too_many_notices_are_dropped() -> None:
    notices = Notices(None, BRISK)  # type: ignore[arg-type]
    with capture_logs() as logs:
        for number in range(MOST_NOTICES + 3):
            notices.say(str(number), ONLY_TEXT)
    assert repr(notices) == f"{MOST_NOTICES} notices waiting"
    assert len(logs) == 3


def test_the_guide_explains_what_the_log_says() -> None:
    guide = (Path(__file__).parents[4] / "docs/how-to/telegram.md").read_text()
    explained = re.findall(r"^\| `(.+?)` \|", guide, re.MULTILINE)
    said = Path(inbound.__file__).read_text()
    assert len(explained) >= 5
    assert [line for line in explained if line not in said] == []
