"""Markdown that arrives in pieces, cut where a terminal can print it for good.

What was printed is never redrawn, so a piece leaves only when no later text can change how it looks:
a paragraph at its empty line, a list item at the next one, code line by line.
"""

import re
from typing import Literal, TypeAlias

import msgspec

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*([^\s`]*)")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_LATER_NUMBER = re.compile(r"\s*(?!1[.)])\d")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")

Kind: TypeAlias = Literal["block", "item", "code"]


class Piece(msgspec.Struct, frozen=True):
    """A part of an answer that can be shown on its own."""

    kind: Kind
    text: str
    """Markdown; for code its lines, each with its newline."""
    gap: bool
    """Whether an empty line belongs before it."""
    language: str = ""
    context: str = ""
    """For code: the lines before it in the same block, by which a highlighter knows where it is."""
    opens: bool = False
    closes: bool = False


class MarkdownStream:
    """Takes text as it comes and gives back the pieces that are finished."""

    def __init__(self) -> None:
        self._rest = ""  # an unfinished line
        self._lines: list[str] = []  # an unfinished block
        self._kind: Kind = "block"
        self._apart = False  # an empty line came before the block
        self._fence = ""  # of the code that is under way
        self._inner_fence = ""  # of code inside a list item
        self._language = ""
        self._code: list[str] = []
        self._opening = False
        self._last: Kind | None = None
        self._done: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """The pieces that this text finished."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)
        return self._given()

    def finish(self) -> list[Piece]:
        """Everything that is left: there is no more text."""
        if self._rest:
            self._take(self._rest)
            self._rest = ""
        if self._fence:
            self._close_code()
        self._close_block()
        return self._given()

    @property
    def tail(self) -> Piece | None:
        """What is there and not finished, as it looks so far."""
        if self._fence:
            return self._code_piece(self._rest) if self._rest or self._opening else None
        text = "\n".join([*self._lines, self._rest]).rstrip()
        if not text:
            return None
        kind = self._kind if self._lines else self._kind_of(text)
        return Piece(kind, text, gap=self._gap(kind))

    def _given(self) -> list[Piece]:
        done, self._done = self._done, []
        return done

    def _take(self, line: str) -> None:
        if self._fence:
            self._take_code(line)
        elif self._kind == "item" and self._lines and self._belongs_to_item(line):
            self._lines.append(line)
        elif not line.strip():
            self._close_block()
            self._apart = True
        elif found := _FENCE.match(line):
            self._close_block()
            self._fence, self._language = found[1], found[2]
            self._code, self._opening = [], True
        elif _HEADING.match(line):
            self._close_block()
            self._lines = [line]
            self._close_block()
        else:
            kind = self._kind_of(line)
            if kind == "item" or self._kind == "item":
                self._close_block()
            self._kind = kind
            self._lines.append(line)

    def _kind_of(self, line: str) -> Kind:
        if not _ITEM.match(line) or _RULE.match(line):
            return "block"
        in_a_paragraph = self._lines and self._kind == "block"
        return "block" if in_a_paragraph and _LATER_NUMBER.match(line) else "item"  # as in "in the year\n1986. Then"

    def _belongs_to_item(self, line: str) -> bool:
        """Whether a line goes on with the list item that is under way."""
        if self._inner_fence:
            if line.strip().startswith(self._inner_fence):
                self._inner_fence = ""
            return True
        if not line.strip():
            return True
        indented = line.startswith(("  ", "\t"))
        if indented and (found := _FENCE.match(line.strip())):
            self._inner_fence = found[1]
        # Without an empty line before it, plain text goes on with the item's own paragraph.
        starts_anew = _ITEM.match(line) or _FENCE.match(line) or _HEADING.match(line)
        return indented or (bool(self._lines[-1].strip()) and not starts_anew)

    def _take_code(self, line: str) -> None:
        if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._close_code()
            return
        self._emit(self._code_piece(f"{line}\n"))
        self._opening = False
        self._code.append(line)

    def _close_code(self) -> None:
        self._emit(self._code_piece("", closes=True))
        self._fence = self._language = ""
        self._apart = True

    def _code_piece(self, text: str, *, closes: bool = False) -> Piece:
        gap = self._opening and self._last is not None
        # A hundred lines are enough for nearly all code, and keep the cost of a line bounded.
        context = "".join(f"{line}\n" for line in self._code[-100:])
        return Piece("code", text, gap, self._language, context, opens=self._opening, closes=closes)

    def _close_block(self) -> None:
        lines, self._lines = self._lines, []
        text = "\n".join(lines).rstrip()
        if text:
            self._emit(Piece(self._kind, text, gap=self._gap(self._kind)))
            self._apart = not lines[-1].strip()
        self._kind = "block"
        self._inner_fence = ""

    def _gap(self, kind: Kind) -> bool:
        """Items of one list stand together unless their author set them apart."""
        return self._last is not None and (self._apart or not (kind == self._last == "item"))

    def _emit(self, piece: Piece) -> None:
        self._last = piece.kind
        if piece.kind == "code" and not piece.opens and self._done and self._done[-1].kind == "code":
            before = self._done.pop()
            piece = msgspec.structs.replace(before, text=before.text + piece.text, closes=piece.closes)
        self._done.append(piece)
