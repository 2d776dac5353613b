"""One message and its answer, over as many connections as it takes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

import anyio
import msgspec

from holdfast.cli.client import Accepted, GatewayAway, GatewayClient, Streamed
from holdfast.core.errors import TryLater
from holdfast.core.events import Answered, Event, Reasoning, Started, Text, ToolFinished

FIRST_WAIT = 0.1
LONGEST_WAIT = 3.0


class Away(msgspec.Struct, frozen=True):
    """The gateway can't be reached or has too much to do; it is tried again by itself."""

    reason: str


class Back(msgspec.Struct, frozen=True):
    """The gateway is there again."""


class StartsOver(msgspec.Struct, frozen=True):
    """The answer is made anew; its text since the last tool call is void."""


Happening: TypeAlias = Streamed | Away | Back | StartsOver


async def follow(
    client: GatewayClient, chat: str, text: str, message_id: str, *, patience: float = float("inf")
) -> AsyncGenerator[Happening, None]:
    """Say something and see what comes of it, to the end.

    When the connection breaks it is made again with the same id, so that nothing is lost or doubled,
    and what was seen before is left out. Raises `GatewayAway` or `TryLater` when the gateway has been
    away for `patience` seconds, and `RequestRefused` at once.
    """
    seen = _Seen()
    deadline = 0.0
    wait = FIRST_WAIT
    while True:
        try:
            async with aclosing(client.ask(chat, text, message_id)) as events:
                async for event in events:
                    if deadline and not isinstance(event, Accepted):
                        yield Back()
                        deadline, wait = 0.0, FIRST_WAIT
                    for new in seen.unseen(event):
                        yield new
                    if isinstance(event, Answered):
                        return
        except (GatewayAway, TryLater) as reason:
            now = anyio.current_time()
            if not deadline:
                deadline = now + patience
                yield Away(str(reason))
            elif now >= deadline:
                raise
            wait = max(wait, min(reason.after, 30.0)) if isinstance(reason, TryLater) else wait
        await anyio.sleep(min(wait, max(0.0, deadline - anyio.current_time())))
        wait = min(wait * 2, LONGEST_WAIT)
        seen.rewind()


class _Seen:
    """What was seen of an answer. After a new connection, it tells the repeated from the new.

    A gateway that is still the same tells everything again. One that was started anew goes on from the
    turn's last step, and what its model says there may be the same or not.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._again: list[Event] | None = None
        self._accepted = False

    def rewind(self) -> None:
        """Another connection begins."""
        self._again = []

    def unseen(self, event: Streamed) -> list[Happening]:
        """What is new in this event."""
        if isinstance(event, Accepted):
            known, self._accepted = self._accepted, True
            return [] if known else [event]
        if isinstance(event, Started | Answered):
            return [event]
        if self._again is None:
            _join(self._events, event)
            return [event]
        _join(self._again, event)
        return self._compared(self._again)

    def _compared(self, again: list[Event]) -> list[Happening]:
        for start in (0, self._last_step()):
            known = self._events[start:]
            if _begins_with(known, again):
                return []
            if _begins_with(again, known):
                self._events, self._again = self._events[:start] + again, None
                return list(_after(again, known))
        self._events, self._again = again, None
        return [StartsOver(), *again]

    def _last_step(self) -> int:
        """Where the events after the last tool call begin."""
        ends = [number for number, event in enumerate(self._events, 1) if isinstance(event, ToolFinished)]
        return ends[-1] if ends else 0


def _join(events: list[Event], event: Event) -> None:
    """Add an event; words that follow words become one."""
    last = events[-1] if events else None
    if isinstance(event, Text | Reasoning) and isinstance(last, Text | Reasoning) and type(last) is type(event):
        events[-1] = type(event)(last.text + event.text)
    else:
        events.append(event)


def _begins_with(events: list[Event], beginning: list[Event]) -> bool:
    if not beginning:
        return True
    last = len(beginning) - 1
    return len(events) > last and events[:last] == beginning[:last] and _goes_on(events[last], beginning[last])


def _goes_on(event: Event, known: Event) -> bool:
    """Whether an event is what is known of it, maybe with more words."""
    if isinstance(event, Text | Reasoning) and isinstance(known, Text | Reasoning):
        return type(event) is type(known) and event.text.startswith(known.text)
    return event == known


def _after(events: list[Event], beginning: list[Event]) -> list[Event]:
    """What follows the beginning."""
    if not beginning:
        return events
    cut, known = events[len(beginning) - 1], beginning[-1]
    rest = events[len(beginning) :]
    if isinstance(cut, Text | Reasoning) and isinstance(known, Text | Reasoning) and cut.text != known.text:
        return [type(cut)(cut.text[len(known.text) :]), *rest]
    return rest
