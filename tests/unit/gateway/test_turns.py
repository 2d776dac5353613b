"""However a turn ends, its mail has one answer and its state is gone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core import failpoints
from holdfast.core.errors import AskUser, RetryModel, StoreError
from holdfast.core.events import Retrying, Text
from holdfast.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.core.settings import ModelSettings, Settings, TurnSettings
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import calls, echo, until

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


def state_is_gone(bench: Bench) -> bool:
    return CHAT not in bench.gateway.awake or bench.gateway.awake[CHAT].turn is None


async def test_a_model_that_needs_a_person_gives_its_sentence_as_the_answer(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        raise AskUser("The key is not accepted.", code="bad_key")

    async with open_bench(tmp_path, script) as bench:
        answer = await bench.say("hello")
        assert (answer.outcome, answer.text, answer.error) == ("failed", "The key is not accepted.", "bad_key")
        assert state_is_gone(bench)
        assert [m.text for m in await bench.said()] == ["hello", "The key is not accepted."]  # as it was shown


async def test_a_bug_costs_one_answer_and_not_the_session(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        if messages[-1] == UserMessage("boom"):
            raise ZeroDivisionError
        return await echo(messages, emit)

    async with open_bench(tmp_path, script) as bench:
        with capture_logs() as logs:
            answer = await bench.say("boom")
        assert answer.error == "internal_error"
        assert "ZeroDivision" not in answer.text
        assert any(entry["event"] == "a turn broke" for entry in logs)
        assert (await bench.say("fine")).text == "you said fine"


async def test_a_model_that_fails_for_a_while_is_asked_again_and_onlookers_know(tmp_path: Path) -> None:
    tries = 0

    async def script(messages: Sequence[Message], emit: Any) -> str:
        nonlocal tries
        tries += 1
        emit(Text("half an ans"))
        if tries < 3:
            raise RetryModel("The model is overloaded.", after=2)
        return "whole"

    async with open_bench(tmp_path, script, settings=Settings(model=ModelSettings(attempts=3))) as bench:
        mail = await bench.send("hello", watched=True)
        assert (await mail.answered()).text == "whole"
        events = [event async for event in mail.events()]
        assert [e.wait >= 2 for e in events if isinstance(e, Retrying)] == [True, True]


async def test_stopping_in_mid_sentence_keeps_what_was_said(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        emit(Text("Once upon"))
        emit(Text(" a time "))
        await anyio.sleep_forever()
        return ""

    async with open_bench(tmp_path, script) as bench:
        mail = await bench.send("tell", watched=True)
        await anyio.sleep(1)
        assert bench.gateway.stop(CHAT)
        answer = await mail.answered()
        assert answer.text == "Once upon a time\n\n(Stopped.)"
        assert state_is_gone(bench)
        assert not bench.gateway.stop(CHAT)


async def test_a_turn_in_which_nothing_happens_is_ended(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        await anyio.sleep(50_000)
        return "too late"

    async with open_bench(tmp_path, script, settings=Settings(turn=TurnSettings(stall=600))) as bench:
        started = anyio.current_time()
        answer = await bench.say("hello")
        assert answer.outcome == "stopped"
        assert "nothing happened for too long" in answer.text
        assert 600 <= anyio.current_time() - started <= 610


async def test_a_turn_in_which_things_happen_may_take_as_long_as_it_likes(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        for _ in range(10):
            await anyio.sleep(500)
            emit(Text("."))
        return "done"

    async with open_bench(tmp_path, script, settings=Settings(turn=TurnSettings(stall=600))) as bench:
        assert (await bench.say("hello")).text == "done"


async def test_an_empty_answer_is_said_to_be_one(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> str:
        return "  "

    async with open_bench(tmp_path, script) as bench:
        answer = await bench.say("hello")
        assert (answer.outcome, answer.error) == ("failed", "empty_answer")


async def test_each_step_is_stored_before_the_next_is_taken(tmp_path: Path) -> None:
    stored: list[int] = []

    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        stored.append(len(await bench.said()))
        return "done" if isinstance(messages[-1], ToolMessage) else calls(("list_files", "{}"))

    async with open_bench(tmp_path, script) as bench:
        await bench.say("hello")
    assert stored == [0, 3]  # the question is in the inbox; then question, call and result


async def test_an_answer_that_can_not_be_stored_is_stored_once_that_works_again(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        failpoints.arm("store.finish.before=fail:1")
        try:
            mail = await bench.send("hello", id="a")
            with pytest.raises((StoreError, failpoints.InjectedFailure)):
                await mail.answered()
        finally:
            failpoints.disarm()
        await until(lambda: state_is_gone(bench))
        answer = await (await bench.send("hello", id="a")).answered()
        assert answer.text == "you said hello"
        assert len(bench.model.requests) == 1
        assert [m.text for m in await bench.said()] == ["hello", "you said hello"]


async def test_a_step_of_which_a_part_can_not_be_stored_is_not_taken_for_stored(tmp_path: Path) -> None:
    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        return "done" if isinstance(messages[-1], ToolMessage) else calls(("list_files", "{}"), ("list_files", "{}"))

    for pass_number in range(1, 5):
        folder = tmp_path / str(pass_number)
        folder.mkdir()
        async with open_bench(folder, script) as bench:
            failpoints.arm(f"store.append.before=fail:{pass_number}")
            try:
                answer = await bench.say("hello")
            finally:
                failpoints.disarm()
            assert answer.error == "store_error"
            kinds = [type(message).__name__ for message in await bench.said()]
            assert kinds[:2] == ["UserMessage", "AssistantMessage"]
            assert kinds.count("ToolMessage") == 2  # each call has its result, whichever write failed
            assert (await bench.say("again")).text == "done"
