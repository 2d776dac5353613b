"""A chat while it is awake, and the conversation that it holds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from anyio import CancelScope

from holdfast.agent.agent import Agent
from holdfast.core.errors import StoreError, TryLater
from holdfast.core.events import AgentEvent, Retrying, Said, Text
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import Answer, UserMessage
from holdfast.core.protocols import Accepted, MessageRow, SessionRow
from holdfast.core.scopes import Keeper, Mailbox
from holdfast.gateway.mail import Mail

Opener = Callable[[], AbstractAsyncContextManager[Any]]


class Session:
    """One conversation. What is opened through `own` lives until it ends, not until its agent leaves."""

    def __init__(self, row: SessionRow, history: Sequence[MessageRow], keeper: Keeper, stack: AsyncExitStack) -> None:
        self.row = row
        self.begun = False
        """Whether the store knows it yet: a conversation is stored with its first message."""
        self.ephemeral = False
        """Lasts as long as one request, which carries its own history; nothing of it is stored."""
        self.next_seq = history[-1].seq + 1 if history else 0
        self.last_mail = next((row.mail for row in reversed(history) if isinstance(row.message, UserMessage)), "")
        """Whose message was the last to join: a replay after a crash must not add it twice."""
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


class AwakeChat:
    """A chat in memory: its mailbox, its undelivered answers and the conversation that is hosted there."""

    def __init__(self, key: ChatKey, *, mailbox_limit: int, ephemeral: bool) -> None:
        self.key = key
        self.ephemeral = ephemeral
        """Made for one request that carries its own history; nothing of it outlives its answer."""
        self.mailbox: Mailbox[Mail] = Mailbox()
        self.outgoing: Mailbox[Answer] = Mailbox()
        self.commands: list[Mail] = []
        """Those being carried out."""
        self.waking = False
        """The message that woke it is being stored, and brings along what is stored of the conversation."""
        self.woken: Accepted | None = None
        """What it brought, until the host takes it."""
        self.session: Session | None = None
        self.turn: Turn | None = None
        self.waits_for_slot: asyncio.Future[bool] | None = None
        """Set while the next turn waits for others to end."""
        self.end_reason = ""
        self.ends_only: SessionId | None = None
        """The one conversation that is to end; any, when none is named."""
        self._ended: asyncio.Future[bool] | None = None
        self._mailbox_limit = mailbox_limit
        self._holds = 0
        self._places = 0

    def __repr__(self) -> str:
        return f"<AwakeChat {self.key} {self.state}: {len(self.mailbox)} waiting, {self.session!r}>"

    @property
    def state(self) -> str:
        if self.turn:
            return "running"
        return "resident" if self.session and self.session.agent else "awake"

    @property
    def is_busy(self) -> bool:
        """Something is under way that a stopping gateway waits for."""
        return bool(self.turn or self.outgoing or self.commands)

    @property
    def expects_mail(self) -> bool:
        """Mail waits, or is being stored right now."""
        return bool(self.mailbox) or self._holds > 0

    @contextmanager
    def place(self, *, limited: bool) -> Iterator[None]:
        """Hold the chat awake while a message is being stored, and a place in its mailbox if it needs one."""
        if limited and len(self.mailbox) + self._places >= self._mailbox_limit:
            raise TryLater("Too many messages wait in this chat; try again when some are answered.", after=5)
        self._places += limited
        self.hold()
        try:
            yield
        finally:
            self._places -= limited
            self.release()

    def hold(self) -> None:
        """Stay awake until `release`, whatever the mailbox says."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self.mailbox.ring()

    def find(self, mail_id: str) -> Mail | None:
        """The mail of this id, while it waits or runs."""
        running = [self.turn.mail] if self.turn else []
        return next((mail for mail in (*running, *self.commands, *self.mailbox) if mail.incoming.id == mail_id), None)

    async def end(self, reason: str, session: SessionId | None = None) -> bool:
        """End the conversation: its host leaves every block of it, innermost first. Returns when that is
        stored, with whether there was one. The caller holds the chat awake."""
        self.end_reason = reason
        self.ends_only = session
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        if self.turn:
            self.turn.stop(reason)  # the turn settles its own mail; its host then sees the reason
        if self.waits_for_slot and not self.waits_for_slot.done():
            self.waits_for_slot.set_result(False)
        self.mailbox.ring()
        return await asyncio.shield(self._ended)

    def settle_end(self, result: "bool | StoreError") -> None:
        """The host has ended it: whoever asked for that goes on."""
        self.end_reason = ""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        if isinstance(result, StoreError):
            ended.set_exception(result)
        else:
            ended.set_result(result)


@asynccontextmanager
async def open_session(row: SessionRow, history: Sequence[MessageRow], keeper: Keeper) -> AsyncIterator[Session]:
    async with AsyncExitStack() as stack:
        yield Session(row, history, keeper, stack)
