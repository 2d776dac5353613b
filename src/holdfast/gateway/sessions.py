"""A conversation while it is in memory, and the turn that runs in it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from anyio import CancelScope

from holdfast.agent.agent import Agent
from holdfast.core.events import AgentEvent, Retrying, Said, Text
from holdfast.core.keys import SessionId
from holdfast.core.messages import UserMessage
from holdfast.core.protocols import Controls, MessageRow, Opener, SessionRow, Woken
from holdfast.core.scopes import Keeper
from holdfast.gateway.mail import Mail


class Session:
    """One conversation. What is opened through `own` lives until it ends, not until its agent leaves."""

    def __init__(self, row: SessionRow, woken: Woken | None, keeper: Keeper, stack: AsyncExitStack) -> None:
        self.row = row
        self.begun = woken is not None
        """Whether the store knows it yet: a conversation is stored with its first message."""
        self.ephemeral = False
        """Lasts as long as one request, which carries its own history; nothing of it is stored."""
        self.history = woken.history if woken else None
        """What was read together with it, until its first agent takes it."""
        self.next_seq = woken.next_seq if woken else 0
        self.last_mail, self.notes_given = _last_word(woken)
        self.last_used = row.last_used
        self.agent: Agent | None = None
        self._keeper = keeper
        self._stack = stack
        self._owned: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Session {self.row.id} of {self.row.chat}: {self.next_seq} messages, owns {self.owns or 'nothing'}>"

    @property
    def id(self) -> SessionId:
        return self.row.id

    @property
    def owns(self) -> list[str]:
        return list(self._owned)

    @property
    def controls(self) -> Controls:
        return self.row.controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        self.row = msgspec.structs.replace(self.row, controls=controls)

    async def own(self, name: str, opener: Opener) -> Any:
        """Open a terminal, a browser or a process once; it closes with the session."""
        async with self._lock:
            if name not in self._owned:
                self._owned[name] = await self._stack.enter_async_context(self._keeper.hold(opener()))
        return self._owned[name]

    def numbered(self, make: Callable[[int], MessageRow]) -> MessageRow:
        row = make(self.next_seq)
        self.next_seq += 1
        return row


def _last_word(woken: Woken | None) -> tuple[str, int]:
    """Whose message was the last to join, and with how many notes: a replay after a crash adds neither twice."""
    for row in reversed(woken.history if woken else ()):
        if isinstance(row.message, UserMessage):
            return row.mail, len(row.message.notes)
    return "", 0


@asynccontextmanager
async def open_session(row: SessionRow, woken: Woken | None, keeper: Keeper) -> AsyncIterator[Session]:
    async with AsyncExitStack() as stack:
        yield Session(row, woken, keeper, stack)


class Turn:
    """One message's way to its answer. All of a turn's state is here, and goes with it."""

    def __init__(self, mail: Mail, scope: CancelScope, started: float) -> None:
        self.mail = mail
        self.started = started
        self.last_event = asyncio.get_running_loop().time()
        self.words: list[str] = []
        """What the model has said since the last step, for when it is stopped in mid-sentence."""
        self.stop_reason = ""
        self._scope = scope

    def __repr__(self) -> str:
        return f"<Turn on {self.mail.incoming.id} since {self.started:.0f}>"

    def show(self, event: AgentEvent) -> None:
        """Let onlookers see what is not part of the conversation's record."""
        self.last_event = asyncio.get_running_loop().time()
        if isinstance(event, Text):
            self.words.append(event.text)
        elif isinstance(event, Retrying):
            self.words.clear()
        if not isinstance(event, Said):
            self.mail.publish(event)

    def stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._scope.cancel()
