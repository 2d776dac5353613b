"""Which sessions have a warm agent, least recently used first, and how they are asked to leave."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from holdfast.agent.agent import Agent
from holdfast.core.keys import SessionId
from holdfast.core.scopes import Mailbox

log = structlog.get_logger(__name__)

WARN_EVERY = 60.0
LINGER = 0.1
"""How long an idle agent over the limit stays: where more chats are busy than there are seats, each would otherwise
leave between an answer and the message that follows it at once, and be built anew for it."""


class Seat:
    """A resident's place in the order."""

    def __init__(self, session: SessionId, agent: Agent, mailbox: Mailbox[Any]) -> None:
        self.session = session
        self.agent = agent
        self.idle = False
        self._leave = False
        self._lingering: asyncio.TimerHandle | None = None
        self.mailbox = mailbox

    def ask_to_leave(self) -> bool:
        """False while the agent is in the middle of a turn: then it stays."""
        if self.idle:
            self._leave = True
            self.mailbox.ring()
        return self.idle

    def linger(self, then: Callable[[], None]) -> None:
        """Be looked at again in a moment, if it is still idle then."""
        if self._lingering is None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER, then)

    async def wait(self, ttl: float) -> bool:
        """Until its bell rings; false when someone asked it to leave, or it has waited for too long."""
        self.idle, self._leave = True, False
        timer = asyncio.get_running_loop().call_later(ttl, self.ask_to_leave)
        try:
            await self.mailbox.arrival()
        finally:
            timer.cancel()
            if self._lingering:
                self._lingering.cancel()
                self._lingering = None
            self.idle = False
        return not self._leave


class Residents:
    """The order of residents, in two parts: within the limit, and the oldest, which are over it.

    The limit is soft: a turn is never refused, delayed or cut short for it. Who is over the limit
    leaves once it has been idle for a moment; a busy one stays, and no newer one pays for it. Every step is O(1).
    """

    def __init__(self, limit: int, idle_ttl: float) -> None:
        self.limit = limit
        self.idle_ttl = idle_ttl
        self._within: OrderedDict[SessionId, Seat] = OrderedDict()
        self._over: OrderedDict[SessionId, Seat] = OrderedDict()
        self._next_warning = 0.0

    def __len__(self) -> int:
        return len(self._within) + len(self._over)

    def __iter__(self) -> Iterator[Seat]:
        """Least recently used first."""
        yield from self._over.values()
        yield from self._within.values()

    def __repr__(self) -> str:
        idle = sum(seat.idle for seat in self)
        return f"<Residents {len(self)}/{self.limit}: {len(self) - idle} mid-turn, {idle} idle>"

    @asynccontextmanager
    async def take(self, session: SessionId, agent: Agent, mailbox: Mailbox[Any]) -> AsyncIterator[Seat]:
        seat = Seat(session, agent, mailbox)
        self._sit(seat)
        try:
            yield seat
        finally:
            if self._over.pop(session, None) is None:
                del self._within[session]
                if self._over:  # there is room again for the newest of those over
                    restored, returning = self._over.popitem()
                    self._within[restored] = returning
                    self._within.move_to_end(restored, last=False)

    async def stays(self, seat: Seat) -> bool:
        """Whether the agent stays: at once when there is mail, else after waiting for a ring of its bell.

        Both the end of a turn and the next message are a use. So who was over the limit while it was busy is not
        sent away right after its answer, when it is likeliest to be needed again; the least recently used is.
        """
        self._touch(seat)
        if not seat.mailbox:
            if not await seat.wait(self.idle_ttl) and not seat.mailbox:
                return False
            self._touch(seat)
        return True

    def _touch(self, seat: Seat) -> None:
        if self._over.pop(seat.session, None) is None:
            self._within.move_to_end(seat.session)
        else:
            self._sit(seat)

    def _sit(self, seat: Seat) -> None:
        """Take the newest place; the oldest within the limit may have to make room for it."""
        self._within[seat.session] = seat
        if len(self._within) > self.limit:
            oldest, displaced = self._within.popitem(last=False)
            self._over[oldest] = displaced
            if displaced.idle:
                displaced.linger(lambda: self._send_away(displaced))
            else:
                self._warn()

    def _send_away(self, seat: Seat) -> None:
        if seat.session in self._over:
            seat.ask_to_leave()

    def _warn(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_warning:  # not once a turn
            self._next_warning = now + WARN_EVERY
            log.warning("over the limit of residents: the oldest are mid-turn", residents=repr(self))

    def evict(self, session: SessionId) -> bool:
        """Ask one to leave. False when it is not resident or mid-turn."""
        seat = self._over.get(session) or self._within.get(session)
        return seat is not None and seat.ask_to_leave()

    def relieve(self, excess: int) -> int:
        """Under memory pressure: ask idle agents to leave, largest first, until they held `excess` bytes."""
        asked = 0
        for seat in sorted((s for s in self if s.idle), key=lambda s: -s.agent.context.size):
            if excess <= 0:
                break
            excess -= seat.agent.context.size
            asked += seat.ask_to_leave()
        return asked
