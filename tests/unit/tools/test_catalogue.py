"""Tool sets are shared, immutable and free of double names; sources have an order."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.core.protocols import ToolContext, ToolSpec
from holdfast.testing.scripted import ScriptedModel, echo
from holdfast.tools.catalogue import KEPT_SETS, SOURCES, Catalogue, Source
from holdfast.tools.files import TOOLS
from holdfast.tools.function import FunctionTool


def made(name: str, toolset: str = "test", available: Callable[[], bool] | None = None) -> FunctionTool:
    async def function(context: ToolContext, text: str = "") -> str:
        """Say it."""
        return text

    function.__name__ = name
    return FunctionTool(function, toolset=toolset, concurrent=True, available=available)


class Foreign:
    """A tool that says of itself whatever it is told to, and something else later."""

    concurrent = False
    toolset = "foreign"

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def available(self) -> bool:
        return True

    async def run(self, context: ToolContext, arguments: str) -> str:
        return ""


def foreign(name: str, parameters: bytes | bytearray = b"{}", description: str = "") -> Foreign:
    return Foreign(ToolSpec(name, description, msgspec.Raw(parameters)))


# ── sources and their order ─────────────────────────────────────────────────────────────────────


def test_the_first_tool_of_a_name_wins_and_the_loser_is_reported_with_both_sources() -> None:
    first, second = made("say"), made("say")
    with capture_logs() as logs:
        catalogue = Catalogue.of([Source("MCP", (second,), "parrot"), Source("module", (first,), "my.tools")])
        tools = catalogue.choose()
    assert tools.by_name["say"] is first
    assert len(tools) == len(catalogue) == 1
    assert [(entry["tool"], entry["stays"], entry["left_out"]) for entry in logs] == [
        ("say", "module my.tools", "MCP parrot")
    ]


def test_sources_are_taken_in_their_order_however_they_are_given() -> None:
    sources = [Source(kind, (made("same"), made(f"own_{number}"))) for number, kind in enumerate(SOURCES)]
    tools = Catalogue.of(reversed(sources)).choose()
    assert tools.names == ("same", *(f"own_{number}" for number in range(len(SOURCES))))
    assert tools.by_name["same"] is sources[0].tools[0]


def test_of_one_kind_the_first_given_is_the_first() -> None:
    one, two = Source("module", (made("same"),), "one"), Source("module", (made("same"),), "two")
    assert list(Catalogue.of([one, two])) == [one.tools[0]]
    assert list(Catalogue.of([two, one])) == [two.tools[0]]


def test_a_loser_is_reported_once_over_all_rebuilds() -> None:
    catalogue = Catalogue([made("say")])
    with capture_logs() as logs:
        for _ in range(5):
            catalogue = catalogue.joined(Source("MCP", (made("say"),), "parrot"))
            catalogue.choose()
    assert len(logs) == 1


def test_what_joins_later_never_takes_a_name_away() -> None:
    connected = made("search")
    catalogue = Catalogue.of([Source("MCP", (connected,), "finder")])
    later = catalogue.joined(Source("built-in", (made("search"), made("other"))))
    assert later.choose().by_name["search"] is connected
    assert later.choose().names == ("search", "other")


def test_joining_changes_neither_the_catalogue_nor_a_set_in_use() -> None:
    catalogue = Catalogue(TOOLS)
    used = catalogue.choose()
    bigger = catalogue.joined(Source("memory", (made("remember"),)))
    assert bigger.choose().names == (*used.names, "remember")
    assert catalogue.choose() is used
    assert bigger.named(used.names) is used


def test_two_catalogues_that_grew_from_one_do_not_mix_their_tools() -> None:
    stem, one, two = Catalogue(TOOLS), made("branch"), made("branch")
    left, right = stem.joined(Source("MCP", (one,))), stem.joined(Source("MCP", (two,)))
    assert left.choose().by_name["branch"] is one
    assert right.choose().by_name["branch"] is two


def test_joining_the_very_same_tools_again_is_no_conflict() -> None:
    with capture_logs() as logs:
        catalogue = Catalogue(TOOLS).joined(Source("plug-in", TOOLS))
    assert len(catalogue) == len(TOOLS)
    assert not logs


@pytest.mark.parametrize("name", ["", "with space", "dotted.name", "größe", "x" * 65, "tail\n"])
def test_a_name_that_providers_refuse_is_refused_here(name: str) -> None:
    with capture_logs() as logs:
        catalogue = Catalogue([foreign(name), foreign("fine-Name_1"), foreign("x" * 64)])
    assert catalogue.choose().names == ("fine-Name_1", "x" * 64)
    assert [(entry["tool"], entry["left_out"]) for entry in logs] == [(name, "built-in")]
    assert "its name has to be" in logs[0]["event"]


@pytest.mark.parametrize("parameters", [b"", b"{", b"[]", b'"text"', b'{"a":"\xff"}', b'{"a":' * 5000])
def test_parameters_that_would_spoil_every_request_are_refused(parameters: bytes) -> None:
    with capture_logs() as logs:
        catalogue = Catalogue([foreign("broken", parameters)])
    assert catalogue.choose().names == ()
    assert "JSON object" in logs[0]["event"]


def test_half_a_character_in_a_description_spoils_no_request() -> None:
    tools = Catalogue([foreign("odd", description="half \ud83d")]).choose()
    assert b"half ?" in tools.encoded(ScriptedModel(echo))


# ── availability ────────────────────────────────────────────────────────────────────────────────


def test_a_new_conversation_gets_what_can_work_now() -> None:
    works = {"always"}
    catalogue = Catalogue([made(name, available=lambda name=name: name in works) for name in ("always", "sometimes")])
    assert catalogue.choose().names == ("always",)
    works.add("sometimes")
    assert catalogue.choose().names == ("always", "sometimes")


def test_a_conversation_that_has_chosen_keeps_its_tools_byte_for_byte() -> None:
    there = [True]
    catalogue = Catalogue([*TOOLS, made("sometimes", available=lambda: there[0])])
    chosen = catalogue.choose()
    before = chosen.encoded(ScriptedModel(echo))
    there.clear()
    again = catalogue.joined(Source("MCP", (made("new"),))).named(chosen.names)
    assert again.fingerprint == chosen.fingerprint
    assert again.encoded(ScriptedModel(echo)) == before


def test_the_order_that_a_conversation_began_with_stays_when_the_catalogues_changes() -> None:
    one, two = made("one"), made("two")
    began = Catalogue([one, two]).choose()
    now = Catalogue([two, one]).named(began.names)
    assert now.names == ("one", "two")
    assert now.fingerprint == began.fingerprint


def test_a_probe_that_breaks_counts_as_no_and_is_reported_once_with_its_cause() -> None:
    counter = iter(range(100))

    def probe() -> bool:
        raise OSError(f"no such device ({next(counter)})")

    catalogue = Catalogue([made("lamp", available=probe), made("other")])
    with capture_logs() as logs:
        for _ in range(3):
            assert catalogue.choose().names == ("other",)
    assert [(entry["tool"], entry["source"], entry["cause"]) for entry in logs] == [
        ("lamp", "built-in", "OSError('no such device (0)')")
    ]


def test_a_name_that_is_gone_is_left_out_and_reported_once() -> None:
    catalogue = Catalogue(TOOLS)
    with capture_logs() as logs:
        for _ in range(3):
            assert catalogue.named(["list_files", "abacus"]).names == ("list_files",)
        catalogue.joined(Source("MCP", (made("other"),))).named(["abacus"])
    assert [entry["tool"] for entry in logs] == ["abacus"]


def test_a_name_given_twice_is_one_tool() -> None:
    assert Catalogue(TOOLS).named(["list_files", "list_files"]).names == ("list_files",)


# ── choosing and keeping sets ───────────────────────────────────────────────────────────────────


def test_toolsets_are_chosen_by_name_and_all_without_one() -> None:
    catalogue = Catalogue([made("a", "one"), made("b", "two"), made("c", "one")])
    assert catalogue.toolsets == ["one", "two"]
    assert catalogue.choose(["one"]).names == ("a", "c")
    assert catalogue.choose().names == ("a", "b", "c")


def test_a_toolset_that_does_not_exist_is_reported_once_and_means_no_tools() -> None:
    catalogue = Catalogue(TOOLS)
    with capture_logs() as logs:
        for _ in range(3):
            assert not catalogue.choose(["flies"])
    assert [entry["toolset"] for entry in logs] == ["flies"]


def test_the_same_toolsets_give_the_very_same_set_encoded_once() -> None:
    catalogue = Catalogue(TOOLS)
    one, two = catalogue.choose(["files"]), catalogue.choose(["files"])
    assert one is two is catalogue.choose() is catalogue.named(one.names)
    model = ScriptedModel(echo)
    assert one.encoded(model) is two.encoded(ScriptedModel(echo))
    model.wire = "another"
    assert one.encoded(model) is not two.encoded(ScriptedModel(echo))


def test_other_tools_have_another_fingerprint() -> None:
    assert Catalogue(TOOLS).choose().fingerprint != Catalogue(TOOLS[:1]).choose().fingerprint


def test_a_catalogue_and_a_set_show_what_they_hold() -> None:
    catalogue = Catalogue(TOOLS)
    assert repr(catalogue.choose()).endswith(": read_file, list_files>")
    assert repr(catalogue) == f"<Catalogue: 2 tools, 1/{KEPT_SETS} sets kept>"


def test_what_a_tool_says_of_itself_later_changes_nothing() -> None:
    tool: Any = foreign("shape", parameters := bytearray(b'{"type":"object"}'))
    catalogue = Catalogue([tool])
    before = catalogue.choose().fingerprint
    parameters[2:6] = b"kind"
    tool.spec, tool.toolset = ToolSpec("shifter", "another", msgspec.Raw(b"{}")), "another"
    assert catalogue.choose(["foreign"]).names == ("shape",)
    assert b'"type"' in catalogue.choose().encoded(ScriptedModel(echo))
    assert catalogue.choose().fingerprint == before
