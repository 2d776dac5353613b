"""What tomllib leaves out: where a key stands in the text, and how a value is written."""

import re
import tomllib
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value: names of tables and keys, and numbers of list items."""

_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY_PART = re.compile(_BARE_KEY.pattern + r'|"(?:\\.|[^"\\])*"|\'[^\']*\'')
# A closing delimiter of three quotes may be preceded by two more that belong to the text.
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line on which each key, and each item of a list, first stands. `text` must be valid TOML."""
    return _Scanner(text).lines


def written(value: object) -> str:
    """The value as TOML on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return '"' + "".join(_written_character(character) for character in value) + '"'
        case int() | float():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(map(written, value)) + "]"
        case dict():
            return "{ " + ", ".join(f"{written_key(key)} = {written(item)}" for key, item in value.items()) + " }"
    raise TypeError(f"settings hold no {type(value).__name__}")


def written_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else written(name)


def _written_character(character: str) -> str:
    if escape := _ESCAPES.get(character):
        return escape
    if character.isprintable():
        return character
    return f"\\u{ord(character):04X}" if ord(character) < 0x10000 else f"\\U{ord(character):08X}"


class _Scanner:
    """Walks once over text that tomllib has accepted, so it need not check anything itself."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._items: dict[KeyPath, int] = {}
        """How many tables each `[[list]]` has so far."""
        self._document()

    def _document(self) -> None:
        table: KeyPath = ()
        while self._skip(_GAP):
            if self._text.startswith("[[", self._at):
                table = self._header(2)
            elif self._text[self._at] == "[":
                table = self._header(1)
            else:
                self._pair(table)

    def _header(self, brackets: int) -> KeyPath:
        self._at += brackets
        *parents, last = self._key()
        table: KeyPath = ()
        for part in parents:
            table = self._note((*table, part))
            if table in self._items:  # a name that stands for a list means its newest table
                table = (*table, self._items[table] - 1)
        table = self._note((*table, last))
        if brackets == 2:
            number = self._items.get(table, 0)
            self._items[table] = number + 1
            table = self._note((*table, number))
        self._at += brackets
        return table

    def _pair(self, table: KeyPath) -> None:
        for part in self._key():
            table = self._note((*table, part))
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(table)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SPACE)
            part = self._take(_KEY_PART)
            parts.append(str(tomllib.loads(f"part = {part}")["part"]) if part[0] in "\"'" else part)
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first in "\"'":
            self._take(_STRING)
        elif first in "[{":
            self._at += 1
            self._members(path, "]" if first == "[" else "}")
        else:
            self._take(_SCALAR)

    def _members(self, path: KeyPath, closing: str) -> None:
        number = 0
        while self._skip(_GAP) and (character := self._text[self._at]) != closing:
            if character == ",":
                self._at += 1
            elif closing == "}":
                self._pair(path)
            else:
                self._value(self._note((*path, number)))
                number += 1
        self._at += 1

    def _note(self, path: KeyPath) -> KeyPath:
        self.lines.setdefault(path, self._text.count("\n", 0, self._at) + 1)
        return path

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found, "tomllib accepted what this scanner does not know"
        self._at = found.end()
        return found.group()

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Go over space; whether there is anything after it."""
        self._take(pattern)
        return self._at < len(self._text)
