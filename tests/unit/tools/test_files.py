"""The files of a session's folder: what can be read, and that nothing else can."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ToolFailed
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.protocols import Opener, ToolContext
from holdfast.tools.files import MOST_BYTES, list_files, read_file, resolve
from holdfast.tools.function import FunctionTool

pytestmark = pytest.mark.anyio


async def _owns_nothing(name: str, opener: Opener) -> Any:
    raise AssertionError("reading opens nothing that lasts")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    folder = tmp_path / "session"
    folder.mkdir()
    (tmp_path / "secret").write_text("outside")
    return ToolContext(SessionId("s"), ChatKey("test", "chat"), folder, own=_owns_nothing)


async def use(tool: FunctionTool, context: ToolContext, **arguments: object) -> str:
    return await tool.run(context, msgspec.json.encode(arguments).decode())


async def test_a_file_is_read_whole_or_by_lines(context: ToolContext) -> None:
    (context.folder / "poem").write_text("one\ntwo\nthree\n")
    assert await use(read_file, context, path="poem") == "one\ntwo\nthree\n"
    assert await use(read_file, context, path="poem", start=2, lines=1) == "two\n[More follows: read on with start=3.]"
    assert await use(read_file, context, path="poem", start=9) == "[The file has only 3 lines.]"


async def test_reading_on_in_pages_gives_the_whole_file(context: ToolContext) -> None:
    text = "".join(f"line {number} {'x' * 100}\n" for number in range(3000))
    (context.folder / "long").write_text(text)
    pages, start = "", 1
    while True:
        page = await use(read_file, context, path="long", start=start)
        body, more, rest = page.partition("[More follows: read on with start=")
        pages += body
        if not more:
            break
        start = int(rest.rstrip(".]"))
    assert pages == text


async def test_a_line_that_is_too_long_is_cut_and_said_to_be(context: ToolContext) -> None:
    (context.folder / "wide").write_text("x" * (3 * MOST_BYTES) + "\nnext\n")
    result = await use(read_file, context, path="wide")
    assert "cut here" in result
    assert len(result) < 2 * MOST_BYTES
    assert "start=2" in result or "next" in result
    assert await use(read_file, context, path="wide", start=2) == "next\n"


@pytest.mark.parametrize("path", ["../secret", "sub/../../secret", "/etc/passwd", "link", "folder-link/secret", "a\0b"])
async def test_nothing_outside_the_folder_can_be_read(context: ToolContext, path: str) -> None:
    (context.folder / "link").symlink_to(context.folder.parent / "secret")
    (context.folder / "folder-link").symlink_to(context.folder.parent)
    with pytest.raises(ToolFailed):
        await use(read_file, context, path=path)


@given(st.lists(st.sampled_from(["..", ".", "a", "loop", "up", "b/c", "/", "//x", "~", "\\..", "…"]), max_size=8))
def test_no_path_resolves_to_a_place_outside(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp() / "confined" / "session"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "up").is_symlink():
        (folder / "up").symlink_to("..")
        (folder / "loop").symlink_to("loop")
    try:
        real = resolve(folder, "/".join(parts))
    except ToolFailed:
        return
    assert real.is_relative_to(folder.resolve())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "There is no file"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.write_bytes(b"\x00\x01" * 50), "binary file of 100 bytes"),
        (os.mkfifo, "not a regular file"),
        (lambda p: p.symlink_to(p), "leads back to itself|loop|Too many"),
    ],
)
async def test_what_is_no_text_file_gets_a_clear_answer(context: ToolContext, make: object, says: str) -> None:
    make(context.folder / "thing")  # type: ignore[operator]
    with pytest.raises(ToolFailed, match=says):
        await use(read_file, context, path="thing")


async def test_folders_are_listed_to_the_wanted_depth(context: ToolContext) -> None:
    (context.folder / "a" / "b").mkdir(parents=True)
    (context.folder / "a" / "b" / "deep").touch()
    (context.folder / "top").touch()
    assert await use(list_files, context) == "a/\ntop"
    assert await use(list_files, context, depth=3) == "a/\ntop\na/b/\na/b/deep"
    with pytest.raises(ToolFailed, match="There is no folder"):
        await use(list_files, context, path="nowhere")
    with pytest.raises(ToolFailed, match="is a file"):
        await use(list_files, context, path="top")


async def test_a_folder_that_does_not_exist_yet_is_empty(context: ToolContext) -> None:
    context.folder.rmdir()
    assert await use(list_files, context) == "[The folder is empty.]"
    with pytest.raises(ToolFailed, match="There is no file"):
        await use(read_file, context, path="notes")
    assert not context.folder.exists()  # reading makes nothing


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "missing required field `path`. read_file takes: path, start?, lines?"),
        ("{", "not valid JSON"),
        ("[1]", "Expected `object`"),
        ('{"path": 3}', "Expected `str`"),
        ('{"path": "a", "start": 0}', "`int` >= 1"),
        ('{"path": "a", "colour": "red"}', "unknown field `colour`"),
    ],
)
async def test_wrong_arguments_say_what_is_wrong_and_what_fits(context: ToolContext, arguments: str, says: str) -> None:
    with pytest.raises(ToolFailed) as failure:
        await read_file.run(context, arguments)
    assert says in str(failure.value)


async def test_numbers_written_as_text_are_understood(context: ToolContext) -> None:
    (context.folder / "poem").write_text("one\ntwo\n")
    assert await read_file.run(context, '{"path": "poem", "start": "2"}') == "two\n"
