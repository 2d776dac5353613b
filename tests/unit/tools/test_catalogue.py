"""Tool sets are shared, immutable and free of double names."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core.protocols import ToolContext
from holdfast.testing.scripted import ScriptedModel
from holdfast.tools.catalogue import KEPT_SETS, Catalogue
from holdfast.tools.files import TOOLS
from holdfast.tools.function import FunctionTool


def made(name: str, toolset: str) -> FunctionTool:
    async def function(context: ToolContext, text: str = "") -> str:
        """Say it."""
        return text

    function.__name__ = name
    return FunctionTool(function, toolset=toolset, concurrent=True)


async def _nothing(messages: Any, emit: Any) -> str:
    return ""


def test_the_first_tool_of_a_name_wins_and_the_loser_is_reported_once() -> None:
    first, second = made("say", "a"), made("say", "b")
    with capture_logs() as logs:
        tools = Catalogue([first, second]).choose()
    assert tools.by_name["say"] is first
    assert len(tools) == 1
    assert [entry["tool"] for entry in logs] == ["say"]


def test_the_same_toolsets_give_the_very_same_set_encoded_once() -> None:
    catalogue = Catalogue(TOOLS)
    one, two = catalogue.choose(["files"]), catalogue.choose(["files"])
    assert one is two
    model = ScriptedModel(_nothing)
    assert one.encoded(model) is two.encoded(model)


def test_a_set_can_not_be_changed_by_who_holds_it() -> None:
    tools = Catalogue(TOOLS).choose()
    with pytest.raises(TypeError):
        tools.by_name["other"] = TOOLS[0]  # type: ignore[index]


def test_the_ninth_set_pushes_out_the_oldest_alone() -> None:
    catalogue = Catalogue([made(f"t{n}", f"set{n}") for n in range(KEPT_SETS + 1)])
    sets = [catalogue.choose([f"set{n}"]) for n in range(KEPT_SETS)]
    catalogue.choose([f"set{KEPT_SETS}"])
    assert catalogue.choose(["set1"]) is sets[1]
    assert catalogue.choose(["set0"]) is not sets[0]
    assert catalogue.choose(["set0"]).fingerprint == sets[0].fingerprint


def test_other_tools_have_another_fingerprint() -> None:
    assert Catalogue(TOOLS).choose().fingerprint != Catalogue(TOOLS[:1]).choose().fingerprint
