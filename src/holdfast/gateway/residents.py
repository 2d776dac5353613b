"""Which sessions have a warm agent, least recently used first, and how they are asked to leave."""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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
        self.mailbox = mailbox
        self.idle_since: float | None = None
        self._leave = False
        self._timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Seat of {self.session}: {'mid-turn' if self.idle_since is None else 'idle'}, {self.agent!r}>"

    @property
    def idle(self) -> bool:
        return self.idle_since is not None

    def ask_to_leave(self) -> bool:
        """False while the agent is in the middle of a turn: then it stays."""
        if self.idle:
            self._leave = True
            self.mailbox.ring()
        return self.idle

    def linger(self, then: Callable[[], None]) -> None:
        """Be looked at again in a moment, if it is still idle then."""
        if self._lingering:  # from an earlier time: it had come back within the limit
            self._lingering.cancel()
        self._lingering = asyncio.get_running_loop().call_later(LINGER, then)

    def limit_wait(self, ttl: float) -> None:
        """How long an idle one may wait in all."""
        if self._timer:
            self._timer.cancel()
        if self.idle_since is not None:
            self._timer = asyncio.get_running_loop().call_at(self.idle_since + ttl, self.ask_to_leave)

    async def wait(self, ttl: float) -> bool:
        """Until its bell rings; false when someone asked it to leave, or it has waited for too long."""
        self.idle_since, self._leave = asyncio.get_running_loop().time(), False
        self.limit_wait(ttl)
        try:
            await self.mailbox.arrival()
        finally:
            self.idle_since = None
            for timer in (self._timer, self._lingering):
                if timer:
                    timer.cancel()
            self._timer = self._lingering = None
        return not self._leave


class Residents:
    """The order of residents, in two parts: within the limit, and the oldest, which are over it.

    The limit is soft: a turn is never refused, delayed or cut short for it. Who is over the limit
    leaves once it has been idle for a moment; a busy one stays, and no newer one pays for it. Choosing who is O(1).
    """

    def __init__(self, limit: int, idle_ttl: float) -> None:
        self.limit = limit
        self.idle_ttl = idle_ttl
        self._within: OrderedDict[SessionId, Seat] = OrderedDict()
        self._over: OrderedDict[SessionId, Seat] = OrderedDict()
        self._idle = Idle()
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
                self._let_return()

    async def stays(self, seat: Seat) -> bool:
        """Whether the agent stays: at once when there is mail, else after waiting for a ring of its bell.

        Both the end of a turn and the next message are a use. So who was over the limit while it was busy is not
        sent away right after its answer, when it is likeliest to be needed again; the least recently used is.
        """
        self._touch(seat)
        if not seat.mailbox:
            with self._idle.holding(seat):
                stays = await seat.wait(self.idle_ttl)
            if not stays and not seat.mailbox:
                return False
            self._touch(seat)
        return True

    def change(self, limit: int, idle_ttl: float) -> None:
        """Other bounds from now on, for those who are here too."""
        self.limit, self.idle_ttl = limit, idle_ttl
        while len(self._within) > limit:
            self._displace_oldest()
        while self._over and len(self._within) < limit:
            self._let_return()
        for seat in self:
            seat.limit_wait(idle_ttl)

    def _touch(self, seat: Seat) -> None:
        if self._over.pop(seat.session, None) is None:
            self._within.move_to_end(seat.session)
        else:
            self._sit(seat)

    def _sit(self, seat: Seat) -> None:
        """Take the newest place; the oldest within the limit may have to make room for it."""
        self._within[seat.session] = seat
        if len(self._within) > self.limit:
            self._displace_oldest()

    def _displace_oldest(self) -> None:
        oldest, displaced = self._within.popitem(last=False)
        self._over[oldest] = displaced
        if displaced.idle:
            displaced.linger(lambda: self._send_away(displaced))
        else:
            self._warn()

    def _let_return(self) -> None:
        """There is room again for the newest of those over the limit."""
        if self._over:
            session, returning = self._over.popitem()
            self._within[session] = returning
            self._within.move_to_end(session, last=False)

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
        while excess > 0 and (seat := self._idle.take_largest()):
            excess -= seat.agent.context.size
            asked += seat.ask_to_leave()
        return asked


class Idle:
    """Those who wait, the largest first: a heap, O(log n) a step.

    The entry of one who stops waiting stays, empty, until it comes up or most of the heap is like that.
    """

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []
        """`[-bytes, number, seat or None]` each; the number keeps seats from being compared."""
        self._number = 0
        self._empty = 0

    def __repr__(self) -> str:
        return f"<Idle: {len(self._heap) - self._empty} wait>"

    @contextmanager
    def holding(self, seat: Seat) -> Iterator[None]:
        self._number += 1
        entry = [-seat.agent.context.size, self._number, seat]
        heapq.heappush(self._heap, entry)
        try:
            yield
        finally:
            if entry[2] is not None:
                entry[2] = None
                self._empty += 1
                if self._empty * 2 > len(self._heap):
                    self._heap = [kept for kept in self._heap if kept[2] is not None]
                    heapq.heapify(self._heap)
                    self._empty = 0

    def take_largest(self) -> Seat | None:
        while self._heap:
            entry = heapq.heappop(self._heap)
            seat: Seat | None = entry[2]
            if seat is not None:
                entry[2] = None
                return seat
            self._empty -= 1
        return None
