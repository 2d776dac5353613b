"""Slash commands: never behind a model, and what each does to the conversation."""

from pathlib import Path

import anyio
import pytest

from holdfast.core import failpoints
from holdfast.core.errors import TryLater
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import AssistantMessage, UserMessage
from holdfast.core.settings import LimitSettings, Settings
from holdfast.gateway.commands import COMMANDS, Call, parse
from holdfast.testing.gateways import CHAT, open_bench
from holdfast.testing.scripted import Gate, echo, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("/new", Call("new", "")),
        ("  /Stop  ", Call("stop", "")),
        ("/help@holdfast_bot", Call("help", "")),
        ("/model gpt --once", Call("model", "gpt --once")),
        ("/etc/hosts", None),
        ("/ new", None),
        ("see /new", None),
        ("", None),
        ("/", None),
    ],
)
def test_what_is_a_command_and_what_is_text(text: str, call: Call | None) -> None:
    assert parse(text) == call


async def test_commands_are_answered_while_a_model_is_silent(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        running = await bench.send("hello")
        await gate.has(waiting=1)
        with anyio.fail_after(5):
            status = await bench.say("/status")
            usage = await bench.say("/help")
        assert "running" in status.text
        for command in COMMANDS:
            assert f"/{command.name}" in usage.text
        gate.open()
        await running.answered()


async def test_stop_ends_the_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        assert (await bench.say("/stop")).text == "Nothing is running."
        running = await bench.send("hello")
        await gate.has(waiting=1)
        assert (await bench.say("/stop")).text == "Stopped."
        stopped = await running.answered()
        assert (stopped.outcome, stopped.text) == ("stopped", "(Stopped.)")
        assert gate.inside == 0
        gate.open()
        assert (await bench.say("again")).text == "you said again"
        assert await bench.said() == [
            UserMessage("hello"),
            AssistantMessage("(Stopped.)"),
            UserMessage("again"),
            AssistantMessage("you said again"),
        ]


async def test_new_ends_the_conversation_and_the_next_message_begins_another(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        before = await bench.say("one")
        assert "old one is kept" in (await bench.say("/new")).text
        after = await bench.say("two")
        assert before.session != after.session
        assert await bench.said() == [UserMessage("two"), AssistantMessage("you said two")]
        ended = await bench.store.session(before.session)  # type: ignore[arg-type]
        assert ended
        assert ended.ended is not None
        assert (await bench.say("/new")).text.startswith("A new conversation begins; the old one is kept.")
        assert (await bench.say("/new")).text == "A new conversation begins."


async def test_new_in_the_middle_of_a_turn_stops_it_for_good(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        running = await bench.send("old")
        await gate.has(waiting=1)
        waiting = await bench.send("waits")
        told = await bench.say("/new")
        assert "1 waiting message was dropped" in told.text
        assert (await running.answered()).outcome == "stopped"
        assert "Dropped" in (await waiting.answered()).text
        gate.open()
        await bench.say("fresh")
        assert gate.asked == 2
        assert await bench.said() == [UserMessage("fresh"), AssistantMessage("you said fresh")]
        assert await bench.store.waiting() == []


async def test_an_unknown_command_is_answered_not_sent_to_the_model(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        answer = await bench.say("/nonsense")
        assert "There is no command /nonsense" in answer.text
        assert bench.model.requests == []


async def test_commands_for_a_dormant_chat_wake_it_and_let_it_sleep_again(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        assert "a new one" in (await bench.say("/status")).text
        await until(lambda: CHAT not in bench.gateway.awake)


async def test_a_full_mailbox_still_takes_commands(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(mailbox=1))) as bench:
        running = await bench.send("hello")
        await gate.has(waiting=1)
        await bench.send("waits")
        with pytest.raises(TryLater):
            await bench.send("too many")
        assert (await bench.say("/stop")).text == "Stopped."
        assert (await running.answered()).outcome == "stopped"
        gate.open()


async def test_new_drops_what_came_before_it_and_nothing_that_came_after(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        for text in ("running", "before", "/new", "after"):
            await bench.gateway.accept(bench.incoming(text, id=text))
    gate.open()
    async with open_bench(tmp_path, gate) as bench:  # whatever was left is taken up in the same order
        await until(lambda: not bench.gateway.unanswered)
        answer = await bench.store.answer_to(MailId("after"))
        assert answer
        assert answer.text == "you said after"
        assert [m.text for m in await bench.said()] == ["after", "you said after"]


async def test_new_waits_for_nobody_elses_model(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=1))) as bench:
        other = await bench.send("hello", ChatKey("test", "other"))
        await gate.has(waiting=1)
        waiting = await bench.send("old")
        with anyio.fail_after(5):
            await bench.say("/new")
        assert "Dropped" in (await waiting.answered()).text
        fresh = await bench.send("fresh")
        gate.open()
        assert (await fresh.answered()).text == "you said fresh"
        assert (await other.answered()).outcome == "ok"
        assert [m.text for m in await bench.said()] == ["fresh", "you said fresh"]


async def test_a_new_that_can_not_be_stored_loses_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        await bench.send("running")
        await gate.has(waiting=1)
        waiting = await bench.send("waits")
        failpoints.arm("store.end.before=fail")
        try:
            assert (await bench.say("/new")).outcome == "failed"
        finally:
            failpoints.disarm()
        gate.open()
        assert (await waiting.answered()).text == "you said waits"
        await until(lambda: not bench.gateway.unanswered)
