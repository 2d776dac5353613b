"""What a person sees of an answer while it comes: what is printed for good, and what is still changing."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from rich.console import RenderableType
from rich.text import Text as Styled

from holdfast.cli.exchange import Away, Back, Happening, StartsOver
from holdfast.cli.markdown import MarkdownStream, Piece
from holdfast.cli.plain import one_line, plain
from holdfast.cli.rendering import rendered, tool_line
from holdfast.core.events import Answered, Reasoning, Retrying, Text, ToolFinished, ToolStarted

CUT_SHORT = "The model reached its limit of output, so the answer ends here."

_Last: TypeAlias = Literal["", "text", "tool", "note"]


class AnswerView:
    """Turns the events of one answer into lines. It decides and does not print.

    `feed` gives what is finished and will never be drawn again; `unfinished` is how the rest looks now.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._stream = MarkdownStream()
        self._said = ""  # the text since the last tool call
        self._calls: dict[str, ToolStarted] = {}
        self._thought = ""
        self._last: _Last = ""
        self.outcome: Answered | None = None

    def feed(self, event: Happening) -> list[RenderableType]:
        """The lines that are to be printed now."""
        match event:
            case Text():
                self._thought = ""
                self._said += event.text
                return self._shown(self._stream.feed(plain(event.text)))
            case Reasoning():
                self._thought = (self._thought + event.text)[-400:]
            case ToolStarted():
                self._calls[event.call_id] = event
                return self._end_text()
            case ToolFinished():
                return self._finish_call(event)
            case Retrying():
                wait = f"; asking again in {event.wait:.0f} s" if event.wait >= 1 else "; asking again"
                return self._void(event.reason.rstrip(". ") + wait)
            case StartsOver():
                return self._void("The answer starts over.")
            case Away():
                return self._note(f"{event.reason} Trying again by itself.")
            case Back():
                return self._note("The gateway is back.")
            case Answered():
                self.outcome = event
                return self._finish(event)
        return []

    @property
    def unfinished(self) -> list[RenderableType]:
        """What is under way: the text that may still change, running tools, or the last thought."""
        if piece := self._stream.tail:
            return self._spaced("text", rendered(piece))
        if self._calls:
            lines = [
                tool_line(call.name, call.arguments, failed=None, text="", width=self._width())
                for call in self._calls.values()
            ]
            return self._spaced("tool", list(lines))
        if self._thought:
            thought = one_line(self._thought, 400)[-max(self._width() - 2, 10) :]
            return self._spaced("note", [Styled(thought, "note", no_wrap=True)])
        return []

    def _shown(self, pieces: list[Piece]) -> list[RenderableType]:
        lines = [line for piece in pieces for line in rendered(piece)]
        if lines:
            lines = self._spaced("text", lines)
            self._last = "text"
        return lines

    def _spaced(self, kind: _Last, lines: list[RenderableType]) -> list[RenderableType]:
        """Words and tool calls stand apart; a piece of text knows its own distance from the text before it."""
        return ["", *lines] if self._last and self._last != kind else lines

    def _end_text(self) -> list[RenderableType]:
        lines = self._shown(self._stream.finish())
        self._stream = MarkdownStream()
        self._said = self._thought = ""
        return lines

    def _finish_call(self, event: ToolFinished) -> list[RenderableType]:
        call = self._calls.pop(event.call_id, None)
        arguments = call.arguments if call else ""
        lines = self._end_text()
        line = tool_line(event.name, arguments, failed=event.failed, text=event.text, width=self._width())
        lines += self._spaced("tool", [line])
        self._last = "tool"
        return lines

    def _void(self, reason: str) -> list[RenderableType]:
        """Drop the text that was not printed yet, and say why what was printed comes again."""
        self._stream = MarkdownStream()
        self._said = self._thought = ""
        self._calls.clear()
        return self._note(reason)

    def _note(self, text: str, style: str = "note") -> list[RenderableType]:
        lines = self._spaced("note", [Styled(plain(text), style)])
        self._last = "note"
        return lines

    def _finish(self, answer: Answered) -> list[RenderableType]:
        self._calls.clear()
        if answer.outcome == "failed":
            return [*self._end_text(), *self._note(answer.text, "error")]
        lines: list[RenderableType] = []
        said = self._said.rstrip()
        if answer.text.startswith(self._said):
            lines += self._shown(self._stream.feed(plain(answer.text[len(self._said) :])))
        elif answer.text.startswith(said):  # a model's last newlines are not always kept
            rest = answer.text[len(said) :].strip()
            lines += self._shown(self._stream.feed(plain(f"\n\n{rest}")))
        else:  # what was shown is not what was said in the end
            lines += self._void("The answer starts over.")
            lines += self._shown(self._stream.feed(plain(answer.text)))
        lines += self._end_text()
        return [*lines, *(self._note(CUT_SHORT) if answer.error == "length" else [])]
