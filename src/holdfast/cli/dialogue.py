"""The terminal chat: what is typed goes to the gateway, and the answers are shown in their order."""

import asyncio
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import anyio
from anyio import TASK_STATUS_IGNORED, create_task_group
from anyio.abc import TaskGroup, TaskStatus
from rich.console import Console, RenderableType
from rich.text import Text

from holdfast.cli.chat_view import AnswerView
from holdfast.cli.client import Accepted, CommandHelp, Conversation, GatewayClient, PastMessage, Question
from holdfast.cli.exchange import Happening, follow
from holdfast.cli.plain import one_line, plain
from holdfast.cli.rendering import said_by_you
from holdfast.cli.terminal import Terminal, open_history
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Answered

LOCAL = (CommandHelp("quit", "Leave this chat; it is kept."),)
_LEAVE = ("/quit", "/exit")
_COMMAND = re.compile(r"/[a-z][a-z_]*(\s.*)?", re.DOTALL | re.IGNORECASE)
_PAST_EXCHANGES = 3
_PAST_LINES = 10
LEAVE_HINT = "Ctrl-C again or Ctrl-D leaves; the conversation is kept."


class _Asked:
    """A message that was typed, and what has come of it so far."""

    def __init__(self, text: str, message_id: str, width: Callable[[], int]) -> None:
        self.text = text
        self.id = message_id
        self.view = AnswerView(width)
        self.events: asyncio.Queue[Happening] = asyncio.Queue()
        self.accepted = False


class Dialogue:
    """One terminal chat. Messages are sent as they are typed; the gateway keeps their order."""

    def __init__(
        self,
        client: GatewayClient,
        chat: str,
        console: Console,
        commands: Sequence[CommandHelp],
        history_file: Path,
        new_id: Callable[[], str],
    ) -> None:
        self._client = client
        self._chat = chat
        self._new_id = new_id
        self._terminal = Terminal(
            console,
            open_history(history_file),
            [*commands, *LOCAL],
            foot=self._foot,
            on_interrupt=self._interrupt,
        )
        self._group: TaskGroup
        self._outgoing: asyncio.Queue[_Asked] = asyncio.Queue()
        self._waiting: deque[_Asked] = deque()
        self._arrived = asyncio.Event()
        self._current: _Asked | None = None
        self._since = 0.0
        self._stopping = False
        self._hint = ""

    @property
    def busy(self) -> bool:
        return self._current is not None or bool(self._waiting)

    async def run(self) -> None:
        """Talk until the user leaves."""
        self._terminal.print([""])
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async with create_task_group() as self._group:
                self._group.start_soon(self._leave_at, signals)
                self._group.start_soon(self._send)
                self._group.start_soon(self._show)
                while (text := await self._terminal.read()) is not None and text.lower() not in _LEAVE:
                    self._hint = ""
                    if _COMMAND.fullmatch(text):
                        self._group.start_soon(self._command, text)
                    else:
                        self._ask(text)
                self._group.cancel_scope.cancel()

    async def stop(self) -> None:
        """Stop the answer that is under way."""
        try:
            await self._client.settle(self._chat, "/stop", self._new_id())
        except HoldfastError as error:
            self._terminal.print([Text(str(error), "error")])

    def say_what_is_left(self) -> None:
        """Tell one who leaves what becomes of messages without an answer."""
        under_way = [asked for asked in (self._current, *self._waiting) if asked]
        for asked in under_way:
            if not asked.accepted:
                self._terminal.print([Text(f"Not sent: {one_line(asked.text)}", "error")])
        if any(asked.accepted for asked in under_way):
            self._terminal.print([Text("The answer goes on without you; the same chat shows it later.", "note")])

    def resume(self, conversation: Conversation, under_way: Question | None) -> None:
        """Show the last few exchanges, and go on with an answer that is under way."""
        said = [past for past in conversation.messages if past.role in ("user", "assistant") and past.text.strip()]
        if under_way:
            while said and said[-1] != PastMessage("user", under_way.text):
                said.pop()  # what this answer has come to so far is told again
            del said[-1:]
        starts = [number for number, past in enumerate(said) if past.role == "user"][-_PAST_EXCHANGES:]
        if starts:
            title = conversation.session.title if conversation.session else ""
            self._terminal.print(["", Text(f"resuming: {one_line(title or said[starts[0]].text, 60)}", "note"), ""])
        for past in said[starts[0] :] if starts else ():
            if past.role == "user":
                self._terminal.print([said_by_you(_beginning(past.text)), ""])
            else:
                view = AnswerView(lambda: self._terminal.width)
                self._terminal.print([*view.feed(Answered("", _beginning(past.text), "ok")), ""])
        if under_way:
            self._ask(under_way.text, under_way.id)

    # ── what goes out ───────────────────────────────────────────────────────────────────────────

    def _ask(self, text: str, message_id: str = "") -> None:
        asked = _Asked(text, message_id or self._new_id(), lambda: self._terminal.width)
        self._waiting.append(asked)
        self._outgoing.put_nowait(asked)
        self._arrived.set()

    async def _send(self) -> None:
        while True:
            asked = await self._outgoing.get()
            await self._group.start(self._follow, asked)  # the next is sent when this one is safe

    async def _follow(self, asked: _Asked, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        try:
            async with aclosing(follow(self._client, self._chat, asked.text, asked.id)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        asked.accepted = True
                        task_status.started()
                    asked.events.put_nowait(event)
        except HoldfastError as error:
            asked.events.put_nowait(Answered("", str(error), "failed"))
            if not asked.accepted:
                task_status.started()

    async def _command(self, text: str) -> None:
        """A command has a lane of its own: it never waits behind an answer."""
        view = AnswerView(lambda: self._terminal.width)
        try:
            answer = await self._client.settle(self._chat, text, self._new_id())
        except HoldfastError as error:
            answer = Answered("", str(error), "failed")
        lines = [Text(plain(answer.text))] if answer.outcome == "ok" else view.feed(answer)
        self._terminal.print(["", said_by_you(text), *lines, ""])

    async def _leave_at(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            self._terminal.leave()

    # ── what is shown ───────────────────────────────────────────────────────────────────────────

    async def _show(self) -> None:
        while True:
            while self._waiting:
                await self._show_answer(self._waiting.popleft())
            self._arrived.clear()
            await self._arrived.wait()

    async def _show_answer(self, asked: _Asked) -> None:
        self._current, self._since = asked, anyio.current_time()
        self._terminal.print(["", said_by_you(asked.text), ""])
        while not asked.view.outcome:
            lines: list[RenderableType] = []
            with anyio.move_on_after(1):  # the time that is shown goes on
                lines += asked.view.feed(await asked.events.get())
            while not asked.events.empty():
                lines += asked.view.feed(asked.events.get_nowait())
            if asked.view.outcome:
                lines.append("")
                self._current, self._stopping = None, False
            if lines:
                self._terminal.print(lines)
            else:
                self._terminal.refresh()

    def _foot(self) -> list[RenderableType]:
        lines: list[RenderableType] = []
        if self._current:
            seconds = int(anyio.current_time() - self._since)
            doing = "stopping" if self._stopping else f"{seconds} s, Ctrl-C stops" if seconds else "…"
            lines += [*self._current.view.unfinished, Text(doing, "note", no_wrap=True)]
        width = self._terminal.width
        lines += [Text(f"next: {one_line(asked.text, width - 7)}", "note", no_wrap=True) for asked in self._waiting]
        return [*lines, Text(self._hint, "note")] if self._hint else lines

    def _interrupt(self) -> None:
        if self._current and not self._stopping:
            self._stopping = True
            self._group.start_soon(self.stop)
        elif self._current or (self._hint and not self._terminal.clear()):
            self._terminal.leave()
        elif not self._terminal.clear():
            self._hint = LEAVE_HINT
        self._terminal.refresh()


def _beginning(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines if len(lines) <= _PAST_LINES else [*lines[:_PAST_LINES], "", "…"])
