"""The reference page says what the code does."""

import re
from pathlib import Path

import pytest

from holdfast.app import tool_sources
from holdfast.core.errors import ToolFailed
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.protocols import Opener, Tool, ToolContext
from holdfast.core.settings import Settings
from holdfast.tools.catalogue import KEPT_SETS, SOURCES, Catalogue, Source
from holdfast.tools.threads import MOST_THREADS, PATIENCE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/tools.md").read_text(encoding="utf-8")
BUILT_IN = [tool for source in tool_sources(Settings()) if source.kind == "built-in" for tool in source.tools]


@pytest.mark.parametrize("tool", BUILT_IN, ids=lambda tool: tool.spec.name)
def test_every_built_in_tool_is_in_the_table_as_the_model_sees_it(tool: Tool) -> None:
    assert f"| `{tool.spec.name}` | `{tool.toolset}` | {tool.spec.description.splitlines()[0]} |" in PAGE


def test_the_sources_are_listed_in_their_order() -> None:
    assert tuple(re.findall(r"^\| \d \| `(.*?)` \|", PAGE, re.M)) == SOURCES


def test_the_numbers_are_the_codes() -> None:
    assert f"at most {MOST_THREADS}." in PAGE.replace("\n", " ")
    assert f"free for {PATIENCE:g} s" in PAGE
    assert f"the {KEPT_SETS}\nnewest" in PAGE


async def _owns_nothing(name: str, opener: Opener) -> object:
    raise AssertionError("not needed here")


@pytest.mark.anyio
async def test_the_example_is_a_tool(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(from .*?)^```", PAGE, re.M | re.S)
    module: dict[str, object] = {"__name__": "example"}
    exec(example, module)
    tools = Catalogue.of([Source("module", module["TOOLS"], "example")]).choose(["dice"])  # type: ignore[arg-type]
    roll = tools.by_name["roll"]
    context = ToolContext(SessionId("s"), ChatKey("test", "chat"), tmp_path, own=_owns_nothing)
    assert await roll.run(context, "") == "It shows 3."
    with pytest.raises(ToolFailed, match="odd number"):
        await roll.run(context, '{"sides": 7}')
    with pytest.raises(ToolFailed, match=">= 2"):
        await roll.run(context, '{"sides": 1}')
