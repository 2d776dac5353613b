"""Plain words that become tool calls."""

import time
from typing import Any

import msgspec
import pytest

from holdfast.core.protocols import ToolSpec
from holdfast.models.demo_wishes import wished_calls
from holdfast.tools.files import TOOLS


def spec(name: str, required: dict[str, str] | None = None, **optional: str) -> ToolSpec:
    properties = {argument: {"type": kind} for argument, kind in {**(required or {}), **optional}.items()}
    schema = {"type": "object", "properties": properties, "required": list(required or {})}
    return ToolSpec(name, "For tests.", msgspec.Raw(msgspec.json.encode(schema)))


TOOLSET = [
    *(tool.spec for tool in TOOLS),
    spec("terminal", {"command": "string"}, timeout="number"),
    spec("web_search", {"query": "string"}),
    spec("set_flag", {"on": "boolean"}),
    spec("get_time"),
    spec("write_file", {"path": "string", "text": "string"}),
    spec("tag", {"names": "array"}),
]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("run ls -la", [("terminal", {"command": "ls -la"})]),
        ("Run `ls -la`", [("terminal", {"command": "ls -la"})]),
        ("read README.md", [("read_file", {"path": "README.md"})]),
        ("Could you please read the file notes.txt?", [("read_file", {"path": "notes.txt"})]),
        ('read "my notes.txt"', [("read_file", {"path": "my notes.txt"})]),
        ("read README.md and tell me what it says", [("read_file", {"path": "README.md"})]),
        ("list files", [("list_files", {})]),
        ("list files in docs", [("list_files", {"path": "docs"})]),
        ("Please list the files in docs.", [("list_files", {"path": "docs"})]),
        ("list files in .", [("list_files", {"path": "."})]),
        ("show me the files", [("list_files", {})]),
        ("ls", [("list_files", {})]),
        ("cat x.py", [("read_file", {"path": "x.py"})]),
        ('use read_file with {"path": "a and b"}', [("read_file", {"path": "a and b"})]),
        ("call read_file path=README.md start=3", [("read_file", {"path": "README.md", "start": 3})]),
        ("read README.md start=3", [("read_file", {"path": "README.md", "start": 3})]),
        ("read_file README.md", [("read_file", {"path": "README.md"})]),
        ("use the tool get_time", [("get_time", {})]),
        ("get the time", [("get_time", {})]),
        ("use read_file", [("read_file", {})]),
        ("set_flag true", [("set_flag", {"on": True})]),
        ("tag a b", [("tag", {"names": ["a", "b"]})]),
        ("web search for cats and dogs", [("web_search", {"query": "cats and dogs"})]),
        ('write_file path=a.txt text="hi there"', [("write_file", {"path": "a.txt", "text": "hi there"})]),
        ("run echo salt and pepper", [("terminal", {"command": "echo salt and pepper"})]),
        ("run ls and read a.txt", [("terminal", {"command": "ls"}), ("read_file", {"path": "a.txt"})]),
        ("run a; run b, then ls", [("terminal", {"command": "a"}), ("terminal", {"command": "b"}), ("list_files", {})]),
    ],
)  # fmt: skip
def test_plain_words_become_calls(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    wished = wished_calls(text, TOOLSET, number=1)
    assert [(call.name, msgspec.json.decode(call.arguments)) for call in wished] == calls


@pytest.mark.parametrize(
    "text", ["", "hello", "I read a book", "read", "what is this?", "the list of files", "and", "use"]
)
def test_other_words_do_not(text: str) -> None:
    assert wished_calls(text, TOOLSET, number=1) == ()


def test_broken_json_is_passed_on_to_show_what_comes_of_it() -> None:
    (call,) = wished_calls('use read_file with {"path": ', TOOLSET, number=1)
    assert call.arguments == '{"path":'


def test_a_tool_that_is_not_there_is_not_called() -> None:
    assert wished_calls("run ls", TOOLSET[:2], number=1) == ()
    assert wished_calls("list files", [], number=1) == ()


def test_a_schema_of_another_shape_does_no_harm() -> None:
    odd = ToolSpec("odd", "", msgspec.Raw(b'{"properties":[1]}'))
    assert [call.arguments for call in wished_calls("use odd now", [odd], number=1)] == ["{}"]


def test_every_tool_can_be_called_by_its_name() -> None:
    for tool in TOOLSET:
        for text in (f"use {tool.name}", f'call {tool.name} {{"x": 1}}', f'{tool.name} {{"x": 1}}'):
            (call,) = wished_calls(text, TOOLSET, number=1)
            assert call.name == tool.name


@pytest.mark.parametrize("text", ["x" + " " * 3900 + "y", "x " + "and " * 900, "x" + ", " * 1900, "say" + " ;" * 1900])
def test_no_text_takes_long_to_understand(text: str) -> None:
    started = time.process_time()
    wished_calls(text, [tool.spec for tool in TOOLS], number=1)
    assert time.process_time() - started < 1  # it took a minute when each space of a run was tried


def test_a_text_too_long_for_a_wish_is_none() -> None:
    assert wished_calls("list files " + "x" * 5000, [tool.spec for tool in TOOLS], number=1) == ()
