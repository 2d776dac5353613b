"""The demo model: what it says, how it streams, and that it keeps the contract."""

from typing import Any

import anyio
import msgspec
import pytest

from holdfast.core.errors import GiveUp
from holdfast.core.events import Reasoning, Text
from holdfast.core.ledger import Ledger
from holdfast.core.messages import AssistantMessage, Message, Sampling, ToolCall, ToolMessage, UserMessage
from holdfast.core.protocols import ModelAnswer
from holdfast.core.settings import ModelSettings
from holdfast.models import demo
from holdfast.models.providers import ask_for_models, choose_model
from holdfast.models.transports import open_transports
from holdfast.testing.models import ask_for, check_model
from holdfast.tools.files import TOOLS

pytestmark = pytest.mark.anyio

SPECS = [tool.spec for tool in TOOLS]


async def ask(*messages: Message | str, emit: Any = None, pace: float = 0.0, **how: Any) -> ModelAnswer:
    said = [UserMessage(message) if isinstance(message, str) else message for message in messages]
    async with demo.open_model(pace=pace) as model:
        return await model.answer(ask_for(model, *said, **how), emit or (lambda event: None))


async def test_the_contract_holds() -> None:
    await check_model(lambda: demo.open_model(pace=0))


@pytest.mark.parametrize("text", ["hello", "help", "What can you do?", "Tell me about the sea"])
async def test_it_says_what_it_is_which_tools_it_has_and_how_to_get_a_real_model(text: str) -> None:
    said = (await ask(text, tools=SPECS)).message.text
    assert "demo model" in said
    for spec in SPECS:
        assert f"`{spec.name}`" in said
    assert "OPENAI_API_KEY" in said
    assert "holdfast init" in said


async def test_without_tools_it_claims_none() -> None:
    assert "Tools that I have" not in (await ask("help")).message.text


async def test_notes_are_not_taken_for_the_users_words() -> None:
    for text in ("say hello", "think", "count to 3"):
        noted = await ask(UserMessage(text, ("the model was changed",)))
        assert noted.message == (await ask(text)).message


async def test_the_same_conversation_gets_the_same_answer() -> None:
    for text in ("hello", "read a and list files", "whatever"):
        assert await ask(text, tools=SPECS) == await ask(text, tools=SPECS)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", " two  spaces\nand lines ", "**x**", "fail"])
async def test_it_repeats_to_the_letter_what_it_is_told_to_say(text: str) -> None:
    seen: list[Any] = []
    assert (await ask(f"say {text}", emit=seen.append)).message.text == text
    assert "".join(event.text for event in seen) == text


async def test_it_fails_when_asked_to() -> None:
    with pytest.raises(GiveUp) as caught:
        await ask("Fail!")
    assert str(caught.value) == "The demo model was asked to fail, and did."


async def test_it_thinks_aloud_when_asked_to() -> None:
    seen: list[Any] = []
    answer = await ask("think about it", emit=seen.append)
    assert isinstance(seen[0], Reasoning)
    assert answer.message.text == "".join(event.text for event in seen if isinstance(event, Text))


async def test_long_answers_are_long() -> None:
    counted = (await ask("count to 500")).message.text
    assert counted.split() == [str(number) for number in range(1, 501)]
    assert len((await ask("write a long text")).message.text.split()) > 1000


@pytest.mark.virtual
async def test_it_streams_word_by_word_at_its_pace() -> None:
    seen: list[float] = []
    started = anyio.current_time()
    await ask("count to 100", emit=lambda event: seen.append(anyio.current_time() - started), pace=demo.PACE)
    assert len(seen) == 100
    assert seen[-1] == pytest.approx(100 * 0.015)


@pytest.mark.virtual
async def test_it_takes_no_time_when_nobody_looks_on() -> None:
    seen: list[Any] = []
    started = anyio.current_time()
    assert (await ask("count to 100", emit=seen.append, pace=demo.PACE, stream=False)).message.text
    assert anyio.current_time() == started
    assert seen == []


@pytest.mark.virtual
async def test_stopping_stops_it() -> None:
    seen: list[Any] = []
    with anyio.move_on_after(1):
        await ask("count to 500", emit=seen.append, pace=demo.PACE)
    assert 60 <= len(seen) <= 67


async def test_an_answer_past_the_limit_is_cut_and_says_so() -> None:
    async with demo.open_model(pace=0) as model:
        request = msgspec.structs.replace(ask_for(model, UserMessage("count to 9")), sampling=Sampling(max_tokens=3))
        answer = await model.answer(request, lambda event: None)
    assert (answer.message.text.split(), answer.truncated, answer.usage.output) == (["1", "2", "3"], True, 3)


async def test_it_calls_tools_and_sums_up_what_they_said() -> None:
    asked = (await ask("read a.txt and list files", tools=SPECS)).message
    assert [(call.name, call.arguments) for call in asked.tool_calls] == [
        ("read_file", '{"path":"a.txt"}'),
        ("list_files", "{}"),
    ]
    assert asked.text == "I'll use `read_file` and `list_files`."
    results = [
        ToolMessage(asked.tool_calls[0].id, "read_file", "There is no file a.txt.", failed=True),
        ToolMessage(asked.tool_calls[1].id, "list_files", "b.txt\nc/\n"),
    ]
    answer = (await ask("read a.txt and list files", asked, *results, tools=SPECS)).message
    assert answer == AssistantMessage(
        "`read_file` failed:\n\n```text\nThere is no file a.txt.\n```\n\n"
        "`list_files` said (2 lines):\n\n```text\nb.txt\nc/\n```"
    )


async def test_the_next_question_is_not_answered_with_old_results() -> None:
    call = ToolCall("1", "list_files", "{}")
    history = ["list files", AssistantMessage("", (call,)), ToolMessage("1", "list_files", "x"), AssistantMessage("x")]
    assert "demo model" in (await ask(*history, "hello", tools=SPECS)).message.text


async def test_calls_of_one_conversation_have_different_ids() -> None:
    first = (await ask("list files and list files", tools=SPECS)).message
    results = [ToolMessage(call.id, call.name, "x") for call in first.tool_calls]
    history = ["list files and list files", first, *results, AssistantMessage("x"), "list files"]
    second = (await ask(*history, tools=SPECS)).message
    ids = [call.id for call in (*first.tool_calls, *second.tool_calls)]
    assert len(set(ids)) == 3


async def test_a_long_result_is_cut_and_a_fence_in_it_does_not_end_the_block() -> None:
    text = "```python\n" + "x" * 5000
    said = (await ask("read a", ToolMessage("1", "read_file", text))).message.text
    assert "\n````text\n```python\n" in said
    assert said.endswith("\n````\n\n… and 3,510 more characters.")


async def test_a_tool_that_says_nothing_is_reported_so() -> None:
    assert (await ask("run x", ToolMessage("1", "terminal", ""))).message.text == "`terminal` said nothing."


async def test_it_opens_like_any_other_model() -> None:
    async with open_transports(Ledger()) as transports:
        choice = await choose_model(ModelSettings(provider="demo"), {}, ask_for_models)
        async with demo.open_model(choice, transports) as model:
            assert model.name == choice.name == "demo"
