"""The agent's loop: model, tools, model, answer."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from holdfast.agent.context import Context
from holdfast.agent.loop import Asking, run
from holdfast.core.errors import GiveUp, ToolFailed
from holdfast.core.events import AgentEvent, Said, ToolFinished, ToolStarted
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import AssistantMessage, Message, Sampling, ToolMessage, UserMessage
from holdfast.core.protocols import ModelAnswer, Opener, ToolContext
from holdfast.testing.scripted import ScriptedModel, calls
from holdfast.tools.catalogue import Catalogue, ToolSet
from holdfast.tools.function import FunctionTool

pytestmark = pytest.mark.anyio


async def own(name: str, opener: Opener) -> NoReturn:
    raise AssertionError("these tools own nothing")


WHERE = ToolContext(SessionId("s"), ChatKey("test", "chat"), Path("unused"), own)


class Stage:
    """Runs the loop once and keeps what it emitted."""

    def __init__(self, script: Any, tools: Sequence[FunctionTool] = ()) -> None:
        self.model = ScriptedModel(script)
        self.tools: ToolSet = Catalogue(tools).choose()
        self.context = Context(self.model, "prompt", self.tools, [UserMessage("go")])
        self.events: list[AgentEvent] = []

    async def run(self, max_steps: int = 9) -> ModelAnswer:
        async def emit(event: AgentEvent) -> None:
            self.events.append(event)

        asking = Asking(
            sampling=Sampling(),
            stream=False,
            max_steps=max_steps,
            attempts=1,
            chance=random.Random(0),
            show=self.events.append,
        )
        return await run(self.context, self.tools, self.model, WHERE, asking, emit)

    @property
    def results(self) -> list[ToolMessage]:
        return [e.message for e in self.events if isinstance(e, Said) and isinstance(e.message, ToolMessage)]


def tool(function: Any, *, concurrent: bool = False) -> FunctionTool:
    return FunctionTool(function, toolset="test", concurrent=concurrent)


def calling_once(*wanted: tuple[str, str]) -> Any:
    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        return "done" if isinstance(messages[-1], ToolMessage) else calls(*wanted)

    return script


async def test_a_tools_result_goes_back_to_the_model_which_then_answers() -> None:
    async def double(context: ToolContext, number: int) -> str:
        """Double a number."""
        return str(number * 2)

    stage = Stage(calling_once(("double", '{"number": 21}')), [tool(double)])
    answer = await stage.run()
    assert answer.message.text == "done"
    assert [result.text for result in stage.results] == ["42"]
    assert [type(event) for event in stage.events] == [Said, ToolStarted, Said, ToolFinished]
    assert len(stage.model.requests[1][2]) == 3  # the question, the call and its result


async def test_tools_that_allow_it_run_side_by_side() -> None:
    inside, most = 0, 0
    together = anyio.Event()

    async def meet(context: ToolContext) -> str:
        """Wait for the others."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            together.set()
        with anyio.fail_after(5):
            await together.wait()
        inside -= 1
        return "met"

    stage = Stage(calling_once(*[("meet", "{}")] * 3), [tool(meet, concurrent=True)])
    await stage.run()
    assert most == 3
    assert [result.text for result in stage.results] == ["met"] * 3


async def test_one_tool_that_does_not_allow_it_makes_all_of_them_wait_their_turn() -> None:
    order: list[str] = []

    async def alone(context: ToolContext, name: str) -> str:
        """Run alone."""
        order.append(f"{name} in")
        await anyio.lowlevel.checkpoint()
        order.append(f"{name} out")
        return name

    stage = Stage(calling_once(("alone", '{"name":"a"}'), ("alone", '{"name":"b"}')), [tool(alone)])
    await stage.run()
    assert order == ["a in", "a out", "b in", "b out"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (("fails", "{}"), "out of ink"),
        (("breaks", "{}"), "broke unexpectedly"),
        (("fails", "{not json"), "not valid JSON"),
        (("missing", "{}"), "There is no tool 'missing'. The tools are: fails, breaks"),
    ],
)
async def test_whatever_goes_wrong_with_a_tool_is_told_to_the_model(wanted: tuple[str, str], says: str) -> None:
    async def fails(context: ToolContext) -> str:
        """Fail."""
        raise ToolFailed("out of ink")

    async def breaks(context: ToolContext) -> str:
        """Have a bug."""
        raise ZeroDivisionError

    stage = Stage(calling_once(wanted), [tool(fails), tool(breaks)])
    answer = await stage.run()
    assert answer.message.text == "done"
    (result,) = stage.results
    assert result.failed
    assert says in result.text


async def test_it_gives_up_after_so_many_steps() -> None:
    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage:
        return calls(("missing", "{}"))

    stage = Stage(script)
    with pytest.raises(GiveUp, match="after 4 steps"):
        await stage.run(max_steps=4)
    assert len(stage.model.requests) == 4


async def test_usage_is_summed_over_the_steps() -> None:
    stage = Stage(calling_once(("missing", "{}")))
    answer = await stage.run()
    assert (answer.usage.input, answer.usage.output) == (1 + 3, 2)


async def test_cancelling_ends_a_tool_where_it_waits() -> None:
    ended = False

    async def waits(context: ToolContext) -> str:
        """Wait for ever."""
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            ended = True

    stage = Stage(calling_once(("waits", "{}")), [tool(waits)])
    async with anyio.create_task_group() as group:
        group.start_soon(stage.run)
        with anyio.fail_after(5):
            while not any(isinstance(event, ToolStarted) for event in stage.events):
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert ended
    assert stage.context.unanswered


async def test_half_a_character_in_a_tools_result_spoils_no_request() -> None:
    async def lists(context: ToolContext) -> str:
        """List a file whose name is not UTF-8."""
        return "bad\udcff"

    stage = Stage(calling_once(("lists", "{}")), [tool(lists)])
    assert (await stage.run()).message.text == "done"
    assert [result.text for result in stage.results] == ["bad?"]
