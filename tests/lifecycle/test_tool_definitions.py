"""What models are told of tools: the same within a conversation, unique, and out of everybody's reach."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from holdfast.app import tool_sources
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import Tool, ToolContext, ToolSpec
from holdfast.core.settings import ResidentSettings, Settings, ToolSettings
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import ScriptedModel, calls, echo
from holdfast.tools.catalogue import KEPT_SETS, SOURCES, Catalogue, Source, ToolSet
from holdfast.tools.files import TOOLS
from holdfast.tools.function import FunctionTool

IDLE = Settings(residents=ResidentSettings(idle_ttl=100))
MODEL = ScriptedModel(echo)

_decode = msgspec.json.Decoder(list[ToolSpec]).decode


def made(name: str, toolset: str = "test", available: Callable[[], bool] | None = None) -> FunctionTool:
    async def function(context: ToolContext, text: str = "") -> str:
        """Say it."""
        return f"{name} works"

    function.__name__ = name
    return FunctionTool(function, toolset=toolset, concurrent=True, available=available)


def sent(tools: ToolSet) -> bytes:
    """The bytes for the wire, made anew: whatever was changed would show."""
    return MODEL.encode_tools([tool.spec for tool in tools.by_name.values()])


def names_in(encoded: bytes) -> list[str]:
    return [spec.name for spec in _decode(encoded)]


# ── nobody can change them ──────────────────────────────────────────────────────────────────────

CHANGING = (
    *("append", "extend", "insert", "remove", "pop", "popitem", "clear", "sort", "reverse", "update", "setdefault"),
    *("add", "discard", "__setitem__", "__delitem__", "__iadd__"),
)


def reachable(thing: object) -> Iterator[object]:
    """All that a holder can get at without reaching for what is private."""
    yield thing
    if isinstance(thing, str | bytes | bool | int | None):
        return
    if isinstance(thing, Mapping):
        yield from (part for pair in thing.items() for each in pair for part in reachable(each))
    elif isinstance(thing, tuple):
        yield from (part for each in thing for part in reachable(each))
    else:
        for name in public(thing):
            if not callable(value := getattr(thing, name)):
                yield from reachable(value)


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def spoil(tools: ToolSet) -> None:
    """Try to change the set by everything in it."""
    parts = list(reachable((tools, tools.encoded(MODEL))))
    assert {"ToolSet", "FunctionTool", "ToolSpec", "Raw", "bytes", "mappingproxy"} <= {type(p).__name__ for p in parts}
    for part in parts:
        assert [name for name in CHANGING if hasattr(part, name)] == []
        for name in public(part):
            with pytest.raises((AttributeError, TypeError)):
                setattr(part, name, None)
        if isinstance(part, msgspec.Raw):
            with pytest.raises(TypeError):
                memoryview(part)[:1] = b"["
    by_name: Any = tools.by_name
    with pytest.raises(TypeError):
        by_name["evil"] = made("evil")
    with pytest.raises(TypeError):
        by_name |= {"evil": made("evil")}


@pytest.mark.proves("case 36")
def test_the_first_result_gives_no_hold_on_what_is_kept() -> None:
    """It is the very set that all share, and nothing in it can be changed."""
    catalogue = Catalogue(TOOLS)
    first = catalogue.choose()
    before = sent(first)
    spoil(first)
    assert sent(catalogue.choose()) == before == sent(Catalogue(TOOLS).choose())


@pytest.mark.proves("case 37")
def test_nor_does_a_later_one() -> None:
    catalogue = Catalogue(TOOLS)
    before = sent(catalogue.choose())
    catalogue.choose(["files"])
    spoil(catalogue.choose())
    spoil(catalogue.named(catalogue.choose().names))
    assert sent(catalogue.choose()) == before == catalogue.choose().encoded(MODEL)


@pytest.mark.proves("case 38")
def test_what_a_caller_adds_for_itself_is_not_seen_by_the_next() -> None:
    catalogue = Catalogue(TOOLS)
    mine = [*catalogue.choose().by_name.values(), made("mine")]
    also_mine = dict(catalogue.choose().by_name, mine=mine[-1])
    every = list(catalogue)
    every.append(mine[-1])
    own = catalogue.joined(Source("memory", (mine[-1],)))
    assert len(mine) == len(also_mine) == len(every) == len(own) == len(TOOLS) + 1
    assert catalogue.choose().names == ("read_file", "list_files")
    assert len(catalogue) == len(TOOLS)


@pytest.mark.proves("case 39")
def test_nor_does_it_pile_up_over_five_rebuilds() -> None:
    catalogue = grown = Catalogue(TOOLS)
    additions = Source("memory", (made("remember"),)), Source("context engine", (made("search_history"),))
    for _ in range(5):
        rebuilt = catalogue
        for addition in additions:
            rebuilt, grown = rebuilt.joined(addition), grown.joined(addition)
        for each in (rebuilt, grown):
            assert names_in(each.choose().encoded(MODEL)) == ["read_file", "list_files", "remember", "search_history"]
    assert catalogue.choose().names == ("read_file", "list_files")


@pytest.mark.proves("case 40")
def test_the_ninth_set_pushes_out_the_oldest_and_nothing_else() -> None:
    catalogue = Catalogue([made(f"t{n}", f"set{n}") for n in range(KEPT_SETS + 1)])
    sets = [catalogue.choose([f"set{n}"]) for n in range(KEPT_SETS)]
    catalogue.choose(["set0"])  # a look makes it no younger
    ninth = catalogue.choose([f"set{KEPT_SETS}"])
    kept = [*sets[1:], ninth]
    assert [catalogue.choose([f"set{n}"]) for n in range(1, KEPT_SETS + 1)] == kept
    assert all(catalogue.choose([f"set{n}"]) is each for n, each in enumerate(kept, start=1))
    again = catalogue.choose(["set0"])
    assert again is not sets[0]
    assert sent(again) == sent(sets[0])
    assert KEPT_SETS == 8


# ── names are unique, whoever joins ─────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 8")
def test_names_stay_unique_over_a_hundred_rebuilds() -> None:
    """Memory, context engine, MCP and plug-ins join again and again, with names that others have."""
    catalogue = Catalogue(TOOLS)
    first = catalogue.choose()
    before = first.encoded(MODEL)
    joining = [Source(kind, (made("read_file"), made("search"), made(f"{kind[:3]}_own")), kind) for kind in SOURCES]
    with capture_logs() as logs:
        for number in range(100):
            for source in joining:
                again = msgspec.structs.replace(source, tools=tuple(made(tool.spec.name) for tool in source.tools))
                catalogue = catalogue.joined(again if number % 2 else source)
            names = names_in(catalogue.choose().encoded(MODEL))
            assert len(names) == len(set(names)) == len(TOOLS) + 1 + len(SOURCES)
            assert catalogue.named(first.names) is first
    assert first.encoded(MODEL) is before
    reports = [(entry["tool"], entry["left_out"]) for entry in logs]
    assert len(reports) == len(set(reports))  # each loser once, not a hundred times
    assert {source for tool, source in reports if tool == "read_file"} == set(map(str, joining))


@cache
def one_of_many(name: str, toolset: str, copy: int) -> FunctionTool:
    return made(name, toolset)


NAMES = st.sampled_from(["read_file", "a", "b", "c", "A", "a-b", "a_b", "with space", "", "ü", "x" * 65])
MEMBERS = st.lists(st.builds(one_of_many, NAMES, st.sampled_from("xy"), st.integers(1, 3)), max_size=5)
ANY_SOURCE = st.builds(Source, st.sampled_from(SOURCES), st.builds(tuple, MEMBERS))


@pytest.mark.proves("invariant 8")
@given(st.lists(ANY_SOURCE, max_size=5), st.lists(ANY_SOURCE, max_size=8))
def test_no_order_of_joining_gives_a_double_name_or_changes_a_set(at_first: list[Source], later: list[Source]) -> None:
    """For any sources with any names, in any order."""
    handed_out: list[tuple[ToolSet, bytes, tuple[Tool, ...]]] = []
    with capture_logs() as logs:
        catalogue = Catalogue.of([Source("built-in", TOOLS), *at_first])
        for source in (Source("MCP", ()), *later):
            catalogue = catalogue.joined(source)
            for tools in (catalogue.choose(), catalogue.choose(["x"])):
                handed_out.append((tools, tools.encoded(MODEL), tuple(tools.by_name.values())))
                names = names_in(tools.encoded(MODEL))
                assert len(names) == len(set(names))
                assert names == list(tools.names) == list(tools.by_name)
                assert all(0 < len(name) <= 64 and name.isascii() and " " not in name for name in names)
        for tools, encoded, members in handed_out:
            again = catalogue.named(tools.names)
            assert again.encoded(MODEL) == encoded == tools.encoded(MODEL) == sent(tools)
            assert tuple(again.by_name.values()) == members
    reports = [tuple(entry.values()) for entry in logs]
    assert len(reports) == len(set(reports))


PLUG_IN = """
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

@tool(toolset="{toolset}")
def read_file(context: ToolContext) -> str:
    "Another one."
    return ""

@tool(toolset="{toolset}")
def {own}(context: ToolContext) -> str:
    "Its own."
    return ""

TOOLS = (read_file, {own})
"""


@pytest.mark.proves("invariant 8")
def test_an_installed_plug_in_and_a_module_join_behind_the_built_in_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a distribution on disk, found as any installed one is."""
    (tmp_path / "acme_plug.py").write_text(PLUG_IN.format(toolset="acme", own="weather"))
    (tmp_path / "my_module.py").write_text(PLUG_IN.format(toolset="mine", own="weather"))
    information = tmp_path / "acme_tools-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[holdfast.tools]\nafirst = acme_plug:TOOLS\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with capture_logs() as logs:
            catalogue = Catalogue.of(tool_sources(Settings(tools=ToolSettings(modules=("my_module",)))))
    finally:
        for module in ("acme_plug", "my_module"):
            sys.modules.pop(module, None)
    assert catalogue.choose().names == ("read_file", "list_files", "weather")
    assert catalogue.choose(["acme"]).names == ("weather",)
    assert [(entry["tool"], entry["stays"], entry["left_out"]) for entry in logs] == [
        ("read_file", "built-in holdfast/files", "plug-in acme-tools/afirst"),
        ("read_file", "built-in holdfast/files", "module my_module"),
        ("weather", "plug-in acme-tools/afirst", "module my_module"),
    ]


# ── the same within a conversation, and for everyone ────────────────────────────────────────────


def prefixes(bench: Bench) -> list[tuple[bytes, bytes]]:
    return [(system, tools) for system, tools, _ in bench.model.requests]


async def goes_dormant(bench: Bench) -> None:
    await anyio.sleep(200)
    assert not bench.gateway.awake


@pytest.mark.virtual
@pytest.mark.proves("invariant 8")
async def test_what_a_provider_gets_is_unique_and_the_same_over_a_hundred_agents(tmp_path: Path) -> None:
    """As sent by the gateway, of one conversation whose agent left and came back each time."""
    tools = [*TOOLS, made("search"), made("read_file"), made("search")]
    async with open_bench(tmp_path, echo, settings=IDLE, tools=tools) as bench:
        for _ in range(100):
            await bench.say("hello")
            await goes_dormant(bench)
        assert len(prefixes(bench)) == 100
        (prefix,) = set(prefixes(bench))
        assert names_in(prefix[1]) == ["read_file", "list_files", "search"]


@pytest.mark.virtual
@pytest.mark.proves("case 41")
async def test_terminal_web_page_and_messenger_get_the_same_definitions(tmp_path: Path) -> None:
    """The terminal is one more chat of the gateway; there is no second list of tools."""
    async with open_bench(tmp_path, echo) as bench:
        for channel in ("terminal", "web", "api", "telegram"):
            await bench.say("hello", ChatKey(channel, "1"))
        all_sent = [tools for _, tools in prefixes(bench)]
        assert len(all_sent) == 4
        assert all(tools is all_sent[0] for tools in all_sent)
        assert names_in(all_sent[0]) == ["read_file", "list_files"]


def using(tool: str) -> Any:
    """A model that uses a tool whenever the user says "use it", and then says what came of it."""

    async def script(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return f"it said: {last.text}"
        return calls((tool, "{}")) if last.text == "use it" else "hello"

    return script


@pytest.mark.virtual
@pytest.mark.proves("invariant 11")
async def test_a_probe_that_fails_later_changes_nothing_in_a_conversation_that_has_begun(tmp_path: Path) -> None:
    """Over turns, evictions and a restart, with a tool that comes and goes."""
    works = [True]
    tools = [*TOOLS, made("lamp", available=lambda: bool(works))]
    async with open_bench(tmp_path, using("lamp"), settings=IDLE, tools=tools) as bench:
        assert (await bench.say("use it")).text == "it said: lamp works"
        works.clear()
        sorry = "it said: lamp is not available at the moment; do without it."
        assert (await bench.say("use it")).text == sorry
        await goes_dormant(bench)
        assert (await bench.say("use it")).text == sorry
        await bench.say("hello", ChatKey("test", "another"))
        *ours, (_, tools_of_the_other) = prefixes(bench)
    async with open_bench(tmp_path, using("lamp"), settings=IDLE, tools=tools) as bench:
        assert (await bench.say("use it")).text == sorry
        works.append(True)
        assert (await bench.say("use it")).text == "it said: lamp works"
        ours += prefixes(bench)
    assert len(ours) == 10
    assert len(set(ours)) == 1
    assert "lamp" in names_in(ours[0][1])
    assert "lamp" not in names_in(tools_of_the_other)  # which began when it could not work


@pytest.mark.virtual
@pytest.mark.proves("invariant 11")
async def test_a_conversation_that_began_without_tools_stays_without(tmp_path: Path) -> None:
    """None is a choice too."""
    works: list[bool] = []
    async with open_bench(tmp_path, echo, settings=IDLE, tools=[made("lamp", available=lambda: bool(works))]) as bench:
        await bench.say("hello")
        works.append(True)
        await bench.say("hello")
        await goes_dormant(bench)
        await bench.say("hello")
        assert len(prefixes(bench)) == 3
        assert len(set(prefixes(bench))) == 1
        await bench.say("hello", ChatKey("test", "another"))
        assert names_in(prefixes(bench)[-1][1]) == ["lamp"]


@pytest.mark.virtual
@pytest.mark.proves("invariant 11")
async def test_a_tool_that_is_new_in_the_next_process_is_for_new_conversations(tmp_path: Path) -> None:
    """A restart with more tools, in another order, changes no prefix."""
    async with open_bench(tmp_path, echo, tools=TOOLS) as bench:
        await bench.say("hello")
        before = prefixes(bench)
    async with open_bench(tmp_path, echo, tools=[made("new"), *reversed(TOOLS)]) as bench:
        await bench.say("hello")
        assert prefixes(bench) == before
        await bench.say("hello", ChatKey("test", "another"))
        assert names_in(prefixes(bench)[-1][1]) == ["new", "list_files", "read_file"]
        assert CHAT in bench.gateway.awake
