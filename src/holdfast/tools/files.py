"""Files of the session's own folder. Nothing outside it can be reached, by `..` or by a link."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta

from holdfast.core.errors import ToolFailed
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

MOST_LINES = 2000
MOST_BYTES = 50_000
MOST_ENTRIES = 500
EMPTY = "[The folder is empty.]"


@tool(toolset="files", concurrent=True)
def read_file(
    context: ToolContext,
    path: Annotated[str, Meta(description="Path inside the folder.")],
    start: Annotated[int, Meta(description="First line to read, from 1.", ge=1)] = 1,
    lines: Annotated[int, Meta(description="How many lines at most.", ge=1, le=MOST_LINES)] = MOST_LINES,
) -> str:
    """Read a text file of the conversation's folder, whole or a range of its lines."""
    with _plain_failures():
        return _read(context.folder, path, start, lines)


@tool(toolset="files", concurrent=True)
def list_files(
    context: ToolContext,
    path: Annotated[str, Meta(description="Folder to list; the conversation's own when left out.")] = ".",
    depth: Annotated[int, Meta(description="How many levels down.", ge=1, le=10)] = 1,
) -> str:
    """List the files and folders of the conversation's folder; folders end in a slash."""
    with _plain_failures():
        return _list(context.folder, path, depth)


TOOLS = (read_file, list_files)


@contextmanager
def _plain_failures() -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise ToolFailed(f"{wrong.strerror or type(wrong).__name__}.") from None


def resolve(folder: Path, path: str) -> Path:
    """The real path, if it lies inside the folder once every link and `..` is followed."""
    root = folder.resolve()
    if "\0" in path:
        raise ToolFailed("A path can't contain a NUL character.")
    try:
        real = (root / path).resolve()
    except RuntimeError:  # how Python 3.11 and 3.12 report a loop of links
        raise ToolFailed(f"{path} is a link that leads back to itself.") from None
    if not real.is_relative_to(root):
        raise ToolFailed(f"{path} lies outside the conversation's folder; only paths inside it can be used.")
    return real


def _read(folder: Path, path: str, start: int, lines: int) -> str:
    real = resolve(folder, path)
    try:
        # No following of a link put there since the check, and no waiting on a pipe.
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ToolFailed(f"There is no file {path}. list_files shows what is there.") from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise ToolFailed(f"{path} is a folder; list_files shows what is in it.")
        if not stat.S_ISREG(status.st_mode):
            raise ToolFailed(f"{path} is not a regular file.")
        with os.fdopen(handle, "rb", closefd=False) as file:
            if b"\0" in file.read(8192):
                raise ToolFailed(f"{path} is a binary file of {status.st_size} bytes; only text can be read.")
            file.seek(0)
            return _lines(file, start, lines)
    finally:
        os.close(handle)


def _lines(file: BinaryIO, start: int, lines: int) -> str:
    kept: list[str] = []
    room = MOST_BYTES
    number = 0
    while raw := file.readline(MOST_BYTES):
        number += 1
        cut = len(raw) == MOST_BYTES and not raw.endswith(b"\n")
        while cut and (rest := file.readline(MOST_BYTES)):  # the rest of a line too long to show
            cut = not rest.endswith(b"\n")
            raw = raw[: MOST_BYTES - 100] + b" [the line is longer; cut here]\n"
        if number < start:
            continue
        room -= len(raw)
        if len(kept) == lines or room < 0:
            return "".join(kept) + f"[More follows: read on with start={number}.]"
        kept.append(raw.decode("utf-8", "replace"))
    if not kept:
        return "[The file is empty.]" if number == 0 else f"[The file has only {number} lines.]"
    return "".join(kept)


def _list(folder: Path, path: str, depth: int) -> str:
    top = resolve(folder, path)
    if top == folder.resolve() and not top.exists():
        return EMPTY  # reading makes nothing: the folder comes into being with its first file
    if not top.exists():
        raise ToolFailed(f"There is no folder {path}.")
    if not top.is_dir():
        raise ToolFailed(f"{path} is a file; read_file shows it.")
    found: list[str] = []
    for place, folders, files in os.walk(top):
        folders.sort()
        here = Path(place).relative_to(top)
        found += [f"{here / name}/" for name in folders] + [str(here / name) for name in sorted(files)]
        if len(here.parts) + 1 >= depth:
            folders.clear()
        if len(found) > MOST_ENTRIES:
            return "\n".join([*found[:MOST_ENTRIES], f"[More follows: only the first {MOST_ENTRIES} are shown.]"])
    return "\n".join(found) or EMPTY
