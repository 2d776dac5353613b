"""The terminal of a chat: a line to type on at its foot, and above it what is printed for good.

People may type at any time. Printing takes the foot away, writes, and lets it come back below, all in
one go, so that the two never mix.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, FormattedText, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal
from rich.console import Console, RenderableType

from holdfast.cli.client import CommandHelp
from holdfast.cli.rendering import last_rows, print_lines

_STYLE = Style.from_dict(
    {
        "you": "ansicyan bold",
        "completion-menu": "noreverse bg:default",
        "completion-menu.completion": "noreverse bg:default",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "noreverse bg:default italic",
        "completion-menu.meta.completion.current": "noreverse bg:default italic bold",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:default reverse",
    }
)
_HISTORY_SIZE = 1_000_000


class Terminal:
    """Reads lines and prints above them. Lives as long as the chat."""

    def __init__(
        self,
        console: Console,
        history: History,
        commands: Sequence[CommandHelp],
        *,
        foot: Callable[[], Sequence[RenderableType]],
        on_interrupt: Callable[[], None],
    ) -> None:
        self.console = console
        self._foot = foot
        self._on_interrupt = on_interrupt
        self._leaving = False
        self._apart = False
        self._session: PromptSession[str | None] = PromptSession(
            history=history,
            completer=_CommandCompleter(commands),
            complete_while_typing=Condition(self._is_command),
            key_bindings=self._keys(),
            style=_STYLE,
            multiline=True,
            prompt_continuation="  ",
            erase_when_done=True,
            enable_suspend=True,
            output=_output(),
        )
        self._session.app.min_redraw_interval = 0.02

    @property
    def width(self) -> int:
        return self.console.width

    async def read(self) -> str | None:
        """The next thing that was typed; None when the user leaves."""
        while not self._leaving:
            try:
                text = await self._session.prompt_async(self._message)
            except EOFError:  # the terminal is gone
                return None
            if text is None or text.strip():
                return text and text.strip()
        return None

    def print(self, lines: Iterable[RenderableType]) -> None:
        """Write lines above the foot, for good. Empty lines set things apart and never add up."""
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
        for line in lines:
            if line != "" or not self._apart:
                print_lines(self.console, [line])
            self._apart = line == ""
        if app.is_running:
            app._redraw()  # at once, so that nobody sees it gone

    def refresh(self) -> None:
        """Let the foot show what has changed."""
        self._session.app.invalidate()

    def clear(self) -> bool:
        """Drop what is being typed; False when there was nothing."""
        there = bool(self._session.default_buffer.text)
        self._session.default_buffer.reset()
        return there

    def leave(self) -> None:
        """Let `read` come to its end."""
        self._leaving = True
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(result=None)

    def _message(self) -> StyleAndTextTuples:
        prompt: StyleAndTextTuples = FormattedText([("class:you", "› ")])
        lines = [] if self._session.app.is_done or is_dumb_terminal() else self._foot()
        if not lines:
            return prompt
        return [*to_formatted_text(ANSI(last_rows(self.console, lines) + "\n")), *prompt]

    def _is_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(_: KeyPressEvent) -> None:
            self._on_interrupt()

        @keys.add("c-d", filter=Condition(lambda: not self._session.default_buffer.text))
        def _(_: KeyPressEvent) -> None:
            self.leave()

        return keys


def _output() -> Output | None:
    """The terminal, which is never asked for the cursor's place.

    Nothing here needs it, and the reply comes too late when something was printed in between. None leaves
    a terminal that can do nothing to the plainest prompt there is.
    """
    if is_dumb_terminal():
        return None
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


class _CommandCompleter(Completer):
    """Completes slash commands, with their help beside them."""

    def __init__(self, commands: Sequence[CommandHelp]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        text = document.text
        if not text.startswith("/") or " " in text or "\n" in text:
            return
        for command in self._commands:
            if f"/{command.name}".startswith(text.lower()):
                yield Completion(f"/{command.name}", -len(text), display_meta=command.help)


def open_history(file: Path) -> History:
    """What was typed in earlier chats, kept in a file that only its owner can read."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file.chmod(0o600)
        if file.stat().st_size > _HISTORY_SIZE:
            _keep_newest_half(file)
    except OSError:
        return InMemoryHistory()  # a chat is worth having without it
    return FileHistory(file)


def _keep_newest_half(file: Path) -> None:
    data = file.read_bytes()
    cut = data.find(b"\n\n", len(data) // 2)
    draft = file.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
        opened.write(data[cut + 1 :] if cut >= 0 else b"")
    draft.replace(file)
