"""An accepted message and the events of its turn, for whoever looks on."""

import asyncio
from collections.abc import AsyncIterator, Callable

from holdfast.core.events import Answered, Event
from holdfast.core.messages import Answer, Incoming


class Mail:
    """One accepted message. Onlookers see its turn from the beginning, however late they come.

    Each onlooker reads at its own pace from one shared list, so a slow one holds up nobody. All of it
    is gone when the last one who holds the mail lets go of it.
    """

    __slots__ = ("_events", "_failure", "_on_done", "_waiters", "answer", "incoming", "number", "watched")

    def __init__(
        self,
        incoming: Incoming,
        *,
        number: int = 0,
        watched: bool = False,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self.incoming = incoming
        self.number = number
        """In the order of acceptance: tells what came before a /new from what came after it."""
        self.watched = watched
        """Someone wants to see words as they come."""
        self.answer: Answer | None = None
        self._on_done = on_done
        self._failure: BaseException | None = None
        self._events: list[Event] = []
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        state = "answered" if self.answer else "failed" if self._failure else f"{len(self._events)} events"
        return f"<Mail {self.incoming.id} of {self.incoming.chat}: {state}>"

    @property
    def done(self) -> bool:
        return self.answer is not None or self._failure is not None

    def publish(self, event: Event) -> None:
        if self.answer is None:  # what a turn says after its end is nobody's any more
            self._events.append(event)
            self._ring()

    def settle(self, answer: Answer) -> None:
        """The answer is stored: the last event."""
        self.publish(Answered(answer.id, answer.text, answer.outcome, answer.error, answer.session, answer.usage))
        self.answer = answer
        self._let_go()

    def fail(self, failure: BaseException) -> None:
        """Those who wait are let go with an error; the message itself stays in the inbox."""
        self._failure = failure
        self._let_go()
        self._ring()

    def _let_go(self) -> None:
        if self._on_done:
            self._on_done()
            self._on_done = None

    async def answered(self) -> Answer:
        while self.answer is None:
            if self._failure:
                raise self._failure
            await self._wait()
        return self.answer

    async def events(self) -> AsyncIterator[Event]:
        """Every event from the first to `Answered`."""
        seen = 0
        while True:
            while seen < len(self._events):
                event = self._events[seen]
                seen += 1
                yield event
                if isinstance(event, Answered):
                    return
            if self._failure:
                raise self._failure
            await self._wait()

    async def after(self, seen: int) -> list[Event]:
        """The events that follow the first `seen` ones, as soon as there are any. A cancel loses nothing."""
        while len(self._events) <= seen:
            if self._failure:
                raise self._failure
            await self._wait()
        return self._events[seen:]

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _ring(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():  # cancelled, that is
                waiter.set_result(None)
