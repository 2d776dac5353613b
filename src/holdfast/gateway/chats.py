"""A chat while it is awake: what waits there, and what is asked of the task that hosts it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from anyio import CancelScope

from holdfast.core.errors import TryLater
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import Answer
from holdfast.core.protocols import Accepted
from holdfast.core.scopes import Mailbox
from holdfast.gateway.mail import Mail
from holdfast.gateway.sessions import Session, Turn

T = TypeVar("T")


class Request:
    """Something that the host is to do, in its own task, and whoever waits for it."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, result: Any) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # whoever asked may have left


class Ending(Request):
    """The wish that a conversation ends; done with whether there was one."""

    def __init__(self, reason: str, only: SessionId | None, then: Callable[[], Awaitable[Any]] | None) -> None:
        super().__init__()
        self.reason = reason
        self.only = only
        """The one that is to end; any, when none is named."""
        self.then = then
        """What follows before anything else happens in the chat."""

    def concerns(self, session: Session) -> bool:
        return self.only in (None, session.id)


class Errand(Request):
    """Something to do with the conversation while no turn runs and no agent is there."""

    def __init__(self, do: Callable[[Session], Awaitable[Any]]) -> None:
        super().__init__()
        self.do = do


class AwakeChat:
    """A chat in memory: its mailbox, its undelivered answers and the conversation that is hosted there."""

    def __init__(self, key: ChatKey, *, ephemeral: bool) -> None:
        self.key = key
        self.ephemeral = ephemeral
        """Made for one request that carries its own history; nothing of it outlives its answer."""
        self.mailbox: Mailbox[Mail] = Mailbox()
        self.outgoing: Mailbox[Answer] = Mailbox()
        self.commands: list[Mail] = []
        """Those being carried out."""
        self.lane = asyncio.Lock()
        """Theirs, one after the other: a /model that follows a /new is meant for the new conversation."""
        self.unanswered = 0
        """Messages that were taken, or are being stored, and have no answer yet."""
        self.waking = False
        """The message that woke it is being stored, and brings along what is stored of the conversation."""
        self.woken: Accepted | None = None
        """What it brought, until the host takes it."""
        self.session: Session | None = None
        self.turn: Turn | None = None
        self.building: CancelScope | None = None
        """Set while an agent is being built."""
        self.waits_for_slot: asyncio.Future[bool] | None = None
        """Set while the next turn waits for others to end."""
        self.ending: Ending | None = None
        self.errands: deque[Errand] = deque()
        self._hosted: asyncio.Future[Session] | None = None
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

    @property
    def is_called_away(self) -> bool:
        """The host has something to do for which the agent has to leave."""
        return bool(self.ending or self.errands)

    @contextmanager
    def place(self, limit: int) -> Iterator[None]:
        """Hold the chat awake, and a place in its mailbox, while a message is being stored."""
        if len(self.mailbox) + self._places >= limit:
            raise TryLater("Too many messages wait in this chat; try again when some are answered.", after=5)
        self._places += 1
        self.hold()
        try:
            yield
        finally:
            self._places -= 1
            self.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
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

    # ── what others ask of the host; whoever asks holds the chat awake ──────────────────────────

    async def conversation(self) -> Session:
        """The conversation, as soon as it is in memory."""
        while self.session is None:
            if self._hosted is None:
                self._hosted = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._hosted)
        return self.session

    async def between_turns(self, do: Callable[[Session], Awaitable[T]]) -> T:
        """Do something with the conversation while no turn runs; its next agent is built afterwards."""
        errand = Errand(do)
        self.errands.append(errand)
        self.call_away()
        result: T = await asyncio.shield(errand.done)
        return result

    async def end(
        self, reason: str, session: SessionId | None = None, then: Callable[[], Awaitable[Any]] | None = None
    ) -> bool:
        """End the conversation: its host leaves every block of it, innermost first. Returns when that is
        stored, with whether there was one."""
        while self.ending:
            await asyncio.wait([self.ending.done])
        if session and self.session and self.session.id != session:
            return False  # it has ended meanwhile, and its successor is not to pay for it
        self.ending = Ending(reason, session, then)
        if self.turn:
            self.turn.stop(reason)  # the turn settles its own mail; its host then sees the reason
        self.call_away()
        ended: bool = await asyncio.shield(self.ending.done)
        return ended

    def call_away(self) -> None:
        """Let the host look around, wherever it waits, unless a turn runs."""
        if self.waits_for_slot and not self.waits_for_slot.done():
            self.waits_for_slot.set_result(False)
        if self.building:
            self.building.cancel()
        self.mailbox.ring()

    # ── what the host does about it ─────────────────────────────────────────────────────────────

    @contextmanager
    def hosting(self, session: Session) -> Iterator[None]:
        """The conversation is in memory for as long as this block lasts."""
        self.session = session
        if self._hosted and not self._hosted.done():
            self._hosted.set_result(session)
        self._hosted = None
        try:
            yield
        finally:
            self.session = None

    async def run_errand(self, session: Session) -> None:
        errand = self.errands.popleft()
        try:
            errand.settle(await errand.do(session))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            errand.fail(error)

    def settle_end(self, result: "bool | Exception") -> None:
        """The host has ended it, or failed to: whoever asked for that goes on."""
        ending, self.ending = self.ending, None
        if ending is not None:
            ending.fail(result) if isinstance(result, Exception) else ending.settle(result)

    def disappoint(self, error: Exception) -> None:
        """The conversation can't be had: so hear all who asked something of it."""
        self.settle_end(error)
        while self.errands:
            self.errands.popleft().fail(error)
        hosted, self._hosted = self._hosted, None
        if hosted and not hosted.done():
            hosted.set_exception(error)
            hosted.exception()
