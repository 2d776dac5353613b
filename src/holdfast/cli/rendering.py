"""How an answer looks in a terminal. Light and dark alike: only the terminal's own colours are used."""

import io
import json
from collections.abc import Iterable

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from holdfast.cli.markdown import Piece
from holdfast.cli.plain import one_line, plain

THEME = Theme(
    {
        "you": "bold cyan",
        "note": "dim",
        "tool": "dim",
        "mark.ok": "green",
        "mark.failed": "red",
        "error": "red",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.h5": "bold",
        "markdown.h6": "bold",
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.list": "none",
        "markdown.block_quote": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.link": "underline",
        "markdown.link_url": "underline",
    }
)

_CODE_COLOURS = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True),
        ("Keyword",): Style(color="magenta"),
        ("Operator", "Word"): Style(color="magenta"),
        ("Literal", "String"): Style(color="green"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Name", "Function"): Style(color="blue", bold=True),
        ("Name", "Class"): Style(color="blue", bold=True),
        ("Name", "Tag"): Style(color="blue"),
        ("Name", "Decorator"): Style(color="yellow"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Heading"): Style(bold=True),
    }
)


class _Heading(Heading):
    LEVEL_ALIGN = dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "left")


class _CodeBlock(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from highlighted(str(self.text).rstrip(), self.lexer_name)


class _Markdown(Markdown):
    """Markdown whose tags of HTML are shown as they stand: an answer must not hide anything."""

    elements = {**Markdown.elements, "heading_open": _Heading, "fence": _CodeBlock, "code_block": _CodeBlock}  # noqa: RUF012

    def __init__(self, markup: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(markup)


class _Trimmed:
    """Lines without empty ones around them and without blanks at their ends."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [_stripped(line) for line in console.render_lines(self._inner, options, pad=False)]
        full = [number for number, line in enumerate(lines) if line]
        for line in lines[full[0] : full[-1] + 1] if full else []:
            yield from line
            yield Segment.line()


def _stripped(line: list[Segment]) -> list[Segment]:
    line = list(line)
    while line and not line[-1].text.strip():
        line.pop()
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else line


def highlighted(code: str, language: str) -> list[Text]:
    """Lines of code in colours, without padding and left to the terminal to wrap, so that they can be copied."""
    text = Syntax("", language or "text", theme=_CODE_COLOURS).highlight(code)
    lines = text.split("\n", allow_blank=True)
    for line in lines:
        line.no_wrap = True
    return list(lines)


def rendered(piece: Piece) -> list[RenderableType]:
    """A piece of an answer, with the empty line before it where it wants one."""
    gap: list[RenderableType] = [""] if piece.gap else []
    if piece.kind != "code":
        return [*gap, _Trimmed(_Markdown(piece.text))]
    shown: list[RenderableType] = [Text(f"```{piece.language}", "note")] if piece.opens else []
    if piece.text:
        first = piece.context.count("\n")
        end = first + piece.text.removesuffix("\n").count("\n") + 1
        shown += highlighted(piece.context + piece.text, piece.language)[first:end]
    return [*gap, *shown, *([Text("```", "note")] if piece.closes else [])]


def tool_line(name: str, arguments: str, *, failed: bool | None, text: str, width: int) -> Text:
    """A tool call on one line: a mark, its name, its arguments, and what came of it when it failed."""
    mark, style = {None: ("·", "note"), False: ("✓", "mark.ok"), True: ("✗", "mark.failed")}[failed]
    line = Text.assemble((mark, style), (f" {plain(name)}", "bold dim"), (f" {_short(arguments)}".rstrip(), "tool"))
    if failed:
        line.append(f": {one_line(text)}", "tool")
    line.truncate(max(width - 1, 10), overflow="ellipsis")
    line.no_wrap = True
    return line


def _short(arguments: str) -> str:
    """A tool's arguments as a person would say them."""
    try:
        decoded = json.loads(arguments or "{}")
    except ValueError:
        return one_line(arguments)
    if not isinstance(decoded, dict):
        return one_line(arguments)
    values = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in decoded.items()]
    if len(values) == 1:
        return one_line(values[0][1])
    return one_line(" ".join(f"{name}={one_line(value, 40)}" for name, value in values))


def said_by_you(text: str) -> Text:
    """What the user said, as it stays on the screen."""
    return Text.assemble(("› ", "you"), (plain(text).strip().replace("\n", "\n  "), "bold"))


def open_console(*, stderr: bool = False) -> Console:
    return Console(theme=THEME, stderr=stderr, highlight=False, markup=False, emoji=False)


def print_lines(console: Console, lines: Iterable[RenderableType]) -> None:
    for line in lines:
        whole = isinstance(line, Text) and bool(line.no_wrap)  # printing would forget it
        console.print(line, soft_wrap=whole, crop=False, end="" if isinstance(line, _Trimmed) else "\n")
    console.file.flush()


def last_rows(console: Console, lines: Iterable[RenderableType]) -> str:
    """As much of the end of these lines as half of the screen holds, in the codes of this console."""
    written = io.StringIO()
    aside = Console(
        theme=THEME,
        file=written,
        force_terminal=console.is_terminal,
        color_system=console.color_system,  # type: ignore[arg-type]
        no_color=console.no_color,
        width=console.width,
        highlight=False,
        markup=False,
        emoji=False,
    )
    print_lines(aside, lines)
    return "\n".join(written.getvalue().removesuffix("\n").split("\n")[-max(3, console.height // 2) :])
