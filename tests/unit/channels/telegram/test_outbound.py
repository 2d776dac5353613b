"""Answers to Telegram: in parts that it takes, each once, whatever the network does."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from holdfast.channels.telegram import Pace
from holdfast.channels.telegram.outbound import LONGEST_MESSAGE, split, units
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Answer
from holdfast.core.protocols import Channel
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import echo
from holdfast.testing.telegram import (
    ANNA,
    BEN,
    BotApi,
    Trouble,
    bad_gateway,
    flood,
    hangs_up,
    refuses,
    slow,
    unauthorized,
)

OpenBot = Callable[..., AbstractAsyncContextManager[Channel]]

anyio_tests = pytest.mark.anyio

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
# Each is one character to a reader, and all but the first consist of several.
CHARACTERS = [
    "x",
    "e\u0301",
    "\U0001f44d\U0001f3fd",
    FAMILY,
    FLAG,
    "\u0915\u094d\u0937",
    "\u1112\u1161\u11ab",
    "\u2764\ufe0f",
]


def answer(text: str, chat: str = str(ANNA.id)) -> Answer:
    return Answer("an-answer", MailId("a-message"), ChatKey("telegram", chat), text, created=0.0)


# ── splitting ───────────────────────────────────────────────────────────────────────────────────


def test_a_short_text_stays_whole() -> None:
    assert split("  Hello,\n\n```\n    world\n```\n") == ["Hello,\n\n```\n    world\n```"]


def test_an_answer_without_text_is_said_to_be_one() -> None:
    assert split(" \n ") == ["(There is no text in this answer.)"]


def test_length_is_counted_as_telegram_does() -> None:
    assert units("a\u00e4\u20ac\U0001f600") == 5
    assert split("\U0001f600" * 2048) == ["\U0001f600" * 2048]
    assert split("\U0001f600" * 2049) == ["\U0001f600" * 2048, "\U0001f600"]


def test_a_part_ends_with_a_paragraph_rather_than_with_a_line() -> None:
    assert split("aaaa\nbb\n\ncccc\ndddd", 15) == ["aaaa\nbb", "cccc\ndddd"]


def test_a_part_ends_with_a_line_rather_than_with_a_word() -> None:
    assert split("aaaa bb\ncc dd ee", 12) == ["aaaa bb", "cc dd ee"]


def test_a_part_ends_with_a_word_if_it_can() -> None:
    assert split("aaaa bbbb cccc", 9) == ["aaaa bbbb", "cccc"]
    assert split("aaaa bbbb cccc", 8) == ["aaaa", "bbbb", "cccc"]


def test_a_code_block_that_fits_into_a_message_is_not_cut() -> None:
    block = "```python\nfirst\n\nsecond\n```"
    assert split(f"Look at this.\nIt works:\n{block}\nGood.", 40) == ["Look at this.\nIt works:", f"{block}\nGood."]
    assert split(f"{block}\nand {'so ' * 9}on", 40) == [block, f"and {'so ' * 9}on"]


def test_a_code_block_that_fits_nowhere_is_cut_between_lines() -> None:
    lines = [f"line {number}" for number in range(9)]
    parts = split("\n".join(["Look:", "```", *lines, "```", "Good."]), 24)
    assert parts[0] == "Look:"
    assert all(line in "\n".join(parts).split("\n") for line in lines)
    assert max(map(len, parts)) <= 24


def test_a_fence_inside_of_a_longer_one_does_not_close_it() -> None:
    block = "````\n```\na\n```\n\nb\n````"
    assert split(f"xxxxxx\n{block}", 24) == ["xxxxxx", block]


def test_code_inside_of_a_line_is_no_block() -> None:
    assert split("```x``` is one\nand this is\nanother line", 28) == ["```x``` is one\nand this is", "another line"]


@given(st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=60), st.integers(16, 24))
def test_no_character_is_ever_cut(characters: list[str], limit: int) -> None:
    parts = split("".join(characters), limit)
    whole = list(wcwidth.iter_graphemes("".join(characters)))
    assert [character for part in parts for character in wcwidth.iter_graphemes(part)] == whole
    assert "".join(parts) == "".join(characters)
    assert all(units(part) <= limit for part in parts)


_TEXTS = st.lists(st.sampled_from(["\n", "\n\n", "```\n", "\n```", "~~~", " ", "word", "longer word", *CHARACTERS]))


@given(_TEXTS.map("".join), st.integers(16, 40))
def test_nothing_is_lost_and_no_part_is_too_long_or_empty(text: str, limit: int) -> None:
    parts = split(text, limit)
    if text.strip():
        assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < units(part) <= limit and part == part.rstrip() for part in parts if text.strip())


def test_a_character_longer_than_a_message_is_cut_all_the_same() -> None:
    assert split("e" + "\u0301" * 30, 16) == ["e" + "\u0301" * 15, "\u0301" * 15]


# ── sending ─────────────────────────────────────────────────────────────────────────────────────


@anyio_tests
async def test_an_answer_arrives_as_plain_text(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    async with open_bot() as channel:
        await channel.send(answer("**bold** <b>&amp; _it_"))
    assert api.heard() == ["**bold** <b>&amp; _it_"]
    assert "parse_mode" not in api.made("sendMessage")[0].parameters


@anyio_tests
async def test_a_long_answer_arrives_in_parts_of_the_size_that_telegram_takes(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    text = "\n".join("\U0001f600 " * 40 for _ in range(100))
    async with open_bot() as channel:
        await channel.send(answer(text))
    assert "\n".join(api.heard()).split() == text.split()
    assert {call.status for call in api.calls} == {200}
    assert all(units(part) > LONGEST_MESSAGE - 150 for part in api.heard()[:-1])  # as full as its lines allow


@anyio_tests
@pytest.mark.parametrize(
    "trouble",
    [bad_gateway(), refuses(500, "Internal Server Error"), hangs_up(), unauthorized(), slow(60), flood(1)],
    ids=["502", "500", "hang-up", "401", "hang", "429"],
)
async def test_trouble_that_passes_is_to_be_tried_again(api: BotApi, open_bot: OpenBot, trouble: Trouble) -> None:
    api.say("hello")
    api.will("sendMessage", trouble)
    async with open_bot(pace=Pace(reply=1.0)) as channel:
        with pytest.raises(TryLater) as raised:
            await channel.send(answer("Hello!"))
        await channel.send(answer("Hello!"))
    assert api.heard() == ["Hello!"]
    assert api.token not in str(raised.value)
    assert "<html>" not in str(raised.value)


@anyio_tests
async def test_telegram_says_how_long_to_wait(api: BotApi, open_bot: OpenBot) -> None:
    api.will("sendMessage", flood(17))
    async with open_bot() as channel:
        with pytest.raises(TryLater) as raised:
            await channel.send(answer("Hello!"))
    assert raised.value.after == 17


@anyio_tests
async def test_who_left_or_never_came_gets_nothing_and_nobody_insists(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    api.blocked.add(ANNA.id)
    async with open_bot() as channel:
        for chat in (str(ANNA.id), "4711"):
            with pytest.raises(HoldfastError) as raised:
                await channel.send(answer("Hello!", chat))
            assert not isinstance(raised.value, TryLater)
    assert len(api.made("sendMessage")) == 2


@anyio_tests
async def test_a_page_of_a_proxy_is_not_telegrams_word(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    page = bad_gateway().refusal
    assert page
    page.status = 403
    api.will("sendMessage", Trouble(page))
    async with open_bot() as channel:
        with pytest.raises(TryLater):
            await channel.send(answer("Hello!"))


@anyio_tests
async def test_a_long_answer_that_fails_in_the_middle_goes_on_from_there(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    text = "\n".join(f"{number}: {'all work and no play ' * 20}" for number in range(40))
    parts = split(text)
    assert len(parts) > 3
    api.will("sendMessage", slow(0), bad_gateway(), hangs_up(), flood(1), slow(0), bad_gateway())
    async with open_bot() as channel:
        await channel.send(answer(text))
    assert api.heard() == parts
    calls = api.made("sendMessage")
    assert [call.status for call in calls[:7]] == [200, 502, 0, 429, 200, 502, 200]
    assert calls[4].at - calls[3].at >= 1  # as long as Telegram asked for


@anyio_tests
async def test_a_long_answer_to_someone_who_leaves_in_the_middle_ends_there(api: BotApi, open_bot: OpenBot) -> None:
    api.say("hello")
    api.will("sendMessage", slow(0), refuses(403, "Forbidden: bot was blocked by the user"))
    async with open_bot() as channel:
        with pytest.raises(HoldfastError, match="blocked") as raised:
            await channel.send(answer("word " * 2000))
    assert not isinstance(raised.value, TryLater)
    assert len(api.sent) == 1


# ── with the gateway ────────────────────────────────────────────────────────────────────────────


@anyio_tests
async def test_an_answer_during_bad_gateways_arrives_once_afterwards(
    api: BotApi, open_bot: OpenBot, tmp_path: Path
) -> None:
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}) as bench:
        with api.failing(bad_gateway(), "sendMessage"):
            api.say("hello")
            await api.until(lambda: len(api.made("sendMessage")) >= 2)
        api.say("again")
        await api.until(lambda: len(api.heard()) == 2)
        await _all_sent(bench)
    assert api.heard() == ["you said hello", "you said again"]


@anyio_tests
async def test_an_answer_during_refused_connections_arrives_once_afterwards(
    api: BotApi, open_bot: OpenBot, tmp_path: Path
) -> None:
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}) as bench:
        api.say("hello")
        await api.until(lambda: len(api.heard()) == 1)
        async with api.refusing():
            mail = await bench.send("from elsewhere", ChatKey("telegram", str(ANNA.id)))
            await mail.answered()
            assert len(await bench.store.unsent()) == 1
        await api.until(lambda: len(api.heard()) == 2)
        await _all_sent(bench)
    assert api.heard() == ["you said hello", "you said from elsewhere"]


@anyio_tests
async def test_an_answer_that_was_never_sent_is_sent_by_the_next_gateway(
    api: BotApi, open_bot: OpenBot, tmp_path: Path
) -> None:
    with api.failing(bad_gateway(), "sendMessage"):
        async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}):
            api.say("hello")
            await api.until(lambda: bool(api.made("sendMessage")))
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}) as bench:
        await api.until(lambda: bool(api.heard()))
        await _all_sent(bench)
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}):
        api.say("again")
        await api.until(lambda: len(api.heard()) == 2)
    assert api.heard() == ["you said hello", "you said again"]


@anyio_tests
async def test_someone_who_blocked_the_bot_holds_up_nobody(api: BotApi, open_bot: OpenBot, tmp_path: Path) -> None:
    api.blocked.add(ANNA.id)
    async with open_bot() as channel, open_bench(tmp_path, echo, channels={"telegram": channel}) as bench:
        api.say("hello")
        api.say("hello", BEN)
        await api.until(lambda: api.heard(BEN) == ["you said hello"])
        await _all_sent(bench)
        api.blocked.clear()
        api.say("I am back")
        await api.until(lambda: api.heard() == ["you said I am back"])


async def _all_sent(bench: Bench) -> None:
    with anyio.fail_after(20):
        while await bench.store.unsent():  # noqa: ASYNC110 - the store rings no bell
            await anyio.sleep(0.01)
