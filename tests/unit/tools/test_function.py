"""Functions become tools: what the model is told, and how they are called."""

import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest
from msgspec import Meta

from holdfast.core.errors import ToolFailed
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.protocols import Opener, ToolContext
from holdfast.tools.function import tool

pytestmark = pytest.mark.anyio


async def _owns_nothing(name: str, opener: Opener) -> Any:
    raise AssertionError("not needed here")


CONTEXT = ToolContext(SessionId("s"), ChatKey("test", "chat"), Path("unused"), own=_owns_nothing)


@tool(toolset="weather", concurrent=True)
async def forecast(
    context: ToolContext,
    place: Annotated[str, Meta(description="Where.")],
    days: int = 1,
    unit: Literal["C", "F"] = "C",
) -> str:
    """Tell the weather."""
    return f"{place} {days} {unit}"


async def test_the_signature_is_what_the_model_is_told() -> None:
    assert (forecast.spec.name, forecast.spec.description) == ("forecast", "Tell the weather.")
    assert (forecast.toolset, forecast.concurrent, forecast.available()) == ("weather", True, True)
    schema = msgspec.json.decode(forecast.spec.parameters)
    assert schema["required"] == ["place"]
    assert schema["properties"]["place"] == {"description": "Where.", "type": "string"}
    assert schema["properties"]["unit"]["enum"] == ["C", "F"]
    assert await forecast.run(CONTEXT, '{"place": "Rome", "days": "3"}') == "Rome 3 C"


@pytest.mark.parametrize("attribute", ["spec", "toolset", "concurrent"])
def test_what_a_tool_says_of_itself_can_not_be_changed(attribute: str) -> None:
    with pytest.raises(AttributeError):
        setattr(forecast, attribute, None)


async def test_a_tool_that_can_not_work_now_says_so_and_does_not_run() -> None:
    works = [True]

    @tool(toolset="test", available=lambda: bool(works))
    async def lamp(context: ToolContext) -> str:
        """Light it."""
        return "lit"

    assert await lamp.run(CONTEXT, "") == "lit"
    works.clear()
    assert not lamp.available()
    with pytest.raises(ToolFailed, match="lamp is not available at the moment"):
        await lamp.run(CONTEXT, "")


async def test_a_probe_that_breaks_is_a_no_and_its_words_are_not_the_models() -> None:
    def probe() -> bool:
        raise OSError("secret")

    @tool(toolset="test", available=probe)
    async def lamp(context: ToolContext) -> str:
        """Light it."""
        return "lit"

    with pytest.raises(ToolFailed, match="lamp is not available") as failure:
        await lamp.run(CONTEXT, "")
    assert "secret" not in str(failure.value)
    assert isinstance(failure.value.__cause__, OSError)


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    here = threading.current_thread()

    @tool(toolset="test")
    def where(context: ToolContext, word: str) -> str:
        """Say where."""
        return f"{word} {threading.current_thread() is here}"

    @tool(toolset="test")
    async def on_the_loop(context: ToolContext, word: str) -> str:
        """Say where."""
        return f"{word} {threading.current_thread() is here}"

    assert await where.run(CONTEXT, '{"word": "here:"}') == "here: False"
    assert await on_the_loop.run(CONTEXT, '{"word": "here:"}') == "here: True"


async def test_a_plain_function_fails_as_any_other() -> None:
    @tool(toolset="test")
    def fail(context: ToolContext, how: str) -> str:
        """Fail."""
        raise ToolFailed(f"No {how}.")

    with pytest.raises(ToolFailed, match=r"No luck\."):
        await fail.run(CONTEXT, '{"how": "luck"}')
    with pytest.raises(ToolFailed, match="fail takes: how"):
        await fail.run(CONTEXT, "{}")


async def test_a_plain_function_can_come_back_to_the_loop() -> None:
    async def answer() -> str:
        return "from the loop"

    @tool(toolset="test")
    def ask(context: ToolContext) -> str:
        """Ask the loop."""
        return anyio.from_thread.run(answer)

    assert await ask.run(CONTEXT, "") == "from the loop"


class Spot(msgspec.Struct):
    x: int
    y: int = 0


async def test_any_name_and_nested_types_make_a_schema() -> None:
    async def größe(context: ToolContext, at: Spot, also: list[Spot] = []) -> str:  # noqa: B006
        """Measure."""
        return f"{at.x + at.y + len(also)}"

    measure = tool(toolset="test")(größe)
    schema = msgspec.json.decode(measure.spec.parameters)
    assert schema["properties"]["at"] == {"$ref": "#/$defs/Spot"}
    assert list(schema["$defs"]) == ["Spot"]
    assert await measure.run(CONTEXT, '{"at": {"x": 3}, "also": [{"x": 1}]}') == "4"
