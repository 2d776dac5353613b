"""What an earlier process left is taken up: answered once, in order, from its last completed step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.core.protocols import ToolContext
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import Gate, calls, echo, until
from holdfast.tools.function import FunctionTool

pytestmark = pytest.mark.anyio


async def test_what_was_accepted_is_answered_by_the_next_gateway_in_order(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        for number in range(3):
            await bench.send(str(number), id=str(number))
        await gate.has(waiting=1)
    async with open_bench(tmp_path, echo) as bench:
        await until(lambda: not bench.gateway.unanswered)
        for number in range(3):
            answer = await bench.store.answer_to(MailId(str(number)))
            assert answer
            assert answer.text == f"you said {number}"
        assert [m.text for m in await bench.said()] == [t for n in range(3) for t in (str(n), f"you said {n}")]
    async with open_bench(tmp_path, echo) as bench:
        assert bench.gateway.unanswered == 0
        assert bench.model.requests == []


async def test_a_turn_cut_short_in_a_tool_goes_on_and_the_model_is_told(tmp_path: Path) -> None:
    runs = 0

    async def effect(context: ToolContext) -> str:
        """Change something, slowly."""
        nonlocal runs
        runs += 1
        await anyio.sleep_forever()
        return ""

    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        last = messages[-1]
        return f"told: {last.text}" if isinstance(last, ToolMessage) else calls(("effect", "{}"))

    tools = [FunctionTool(effect, toolset="test", concurrent=False)]
    async with open_bench(tmp_path, script, tools=tools) as bench:
        await bench.send("go", id="a")
        await until(lambda: runs == 1)
    async with open_bench(tmp_path, script, tools=tools) as bench:
        await until(lambda: not bench.gateway.unanswered)
        answer = await bench.store.answer_to(MailId("a"))
        assert answer
        assert "interrupted" in answer.text
        assert runs == 1  # what may have had an effect is not silently repeated
        kinds = [type(message) for message in await bench.said()]
        assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage]


async def test_a_request_whose_connection_died_with_the_process_is_not_paid_for_again(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        await bench.gateway.accept(bench.incoming("hello", ChatKey("api", "request/a"), id="a", history=[]))
        await gate.has(waiting=1)
    async with open_bench(tmp_path, echo) as bench:
        answer = await bench.store.answer_to(MailId("a"))
        assert answer
        assert answer.outcome == "stopped"
        assert bench.model.requests == []
        await until(lambda: not bench.gateway.awake)


async def test_a_stopped_turns_open_calls_do_not_spoil_the_next_one(tmp_path: Path) -> None:
    async def hang(context: ToolContext) -> str:
        """Hang."""
        await anyio.sleep_forever()
        return ""

    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        return calls(("hang", "{}")) if messages[-1] == UserMessage("hang") else "fine"

    async with open_bench(tmp_path, script, tools=[FunctionTool(hang, toolset="t", concurrent=False)]) as bench:
        mail = await bench.send("hang", watched=True)
        async for event in mail.events():
            if type(event).__name__ == "ToolStarted":
                break
        await bench.say("/stop")
        assert (await bench.say("and now")).text == "fine"
        kinds = [type(message).__name__ for message in await bench.said()]
        # Providers reject a history in which a call is not followed by its result.
        assert kinds[:5] == ["UserMessage", "AssistantMessage", "ToolMessage", "AssistantMessage", "UserMessage"]
        last = bench.model.requests[-1][2]
        assert b"interrupted" in last[2]
