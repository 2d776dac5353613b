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
    async with open_bench(tmp_path, Gate()) as bench:
        await bench.send("hello", ChatKey("test", "other"))
        await bench.send("old")
    gate = Gate()  # the next start finds more to do than it may do at once
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=1))) as bench:
        await gate.has(waiting=1)
        waiting = bench.gateway.awake[CHAT].mailbox.peek()
        with anyio.fail_after(5):
            await bench.say("/new")
        assert "Dropped" in (await waiting.answered()).text
        gate.open()
        await until(lambda: not bench.gateway.unanswered)
        assert (await bench.say("fresh")).text == "you said fresh"
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


# ── what is set for a conversation ──────────────────────────────────────────────────────────────


async def test_another_model_answers_from_the_next_message_on_and_is_told_so(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("one")
        assert "scripted" in (await bench.say("/model")).text
        assert "other" in (await bench.say("/model other")).text
        await until(lambda: bench.model.leases == 0)
        await bench.say("two")
        assert bench.model.leased == ["scripted", "other"]
        first, second, *_ = (m for m in await bench.said() if isinstance(m, UserMessage))
        assert not first.notes
        assert "other" in second.notes[0]
        await bench.say("three")
        assert [m.notes for m in await bench.said() if isinstance(m, UserMessage)][2] == ()
        assert "already" in (await bench.say("/model other")).text
        assert "one word" in (await bench.say("/model other one")).text


async def test_a_model_chosen_before_the_first_message_answers_it(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("/model other")
        await until(lambda: not bench.gateway.awake)
        await bench.say("hello")
        assert bench.model.leased == ["other"]
        row = await bench.store.open_session(CHAT)
        assert row
        assert (row.title, row.controls.model, row.controls.notes) == ("hello", "other", ())


async def test_a_model_chosen_mid_turn_waits_for_the_turns_end(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mail = await bench.send("one")
        await gate.has(waiting=1)
        await bench.say("/model other")
        assert bench.model.leases == 1
        gate.open()
        assert (await mail.answered()).outcome == "ok"
        await bench.say("two")
        assert bench.model.leased == ["scripted", "other"]


async def test_reasoning_changes_in_place(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("one")
        assert "default" in (await bench.say("/reasoning")).text
        assert "no reasoning effort" in (await bench.say("/reasoning very")).text
        await bench.say("/reasoning high")
        await bench.say("two")
        await bench.say("/reasoning default")
        await bench.say("three")
        assert bench.model.efforts == ["", "high", ""]
        assert bench.model.leased == ["scripted"]
        assert len({request[:2] for request in bench.model.requests}) == 1


async def test_undo_takes_back_what_was_said_in_memory_and_in_the_store(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        assert "nothing to undo" in (await bench.say("/undo")).text
        for text in ("one", "two", "three"):
            await bench.say(text)
        assert "last 2 messages" in (await bench.say("/undo 2")).text
        await bench.say("four")
        said = [m.text for m in await bench.said()]
        assert said == ["one", "you said one", "four", "you said four"]
        assert len(bench.model.requests[-1][2]) == 3
        assert "takes a number" in (await bench.say("/undo all")).text
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("five")
        assert len(bench.model.requests[-1][2]) == 5


async def test_undo_is_refused_while_an_answer_is_on_its_way(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mail = await bench.send("one")
        await gate.has(waiting=1)
        assert "on its way" in (await bench.say("/undo")).text
        gate.open()
        assert (await mail.answered()).outcome == "ok"
        assert len(await bench.said()) == 2


async def test_resume_takes_up_the_conversation_that_ended_last(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        assert "no earlier conversation" in (await bench.say("/resume")).text
        await bench.say("one")
        await bench.say("/new")
        await bench.say("other")
        assert "one" in (await bench.say("/resume")).text
        await bench.say("two")
        assert [m.text for m in await bench.said()] == ["one", "you said one", "two", "you said two"]
        assert "other" in (await bench.say("/resume")).text
        assert [m.text for m in await bench.said()] == ["other", "you said other"]
