"""Server-sent events: a turn's events in batches, and how they are written."""

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.api.exchange import Exchange
from holdfast.core.events import Answered, Event
from holdfast.gateway.mail import Mail

KEEP_ALIVE_EVERY = 15.0
KEEP_ALIVE = b": alive\n\n"

_encode = msgspec.json.Encoder().encode


def data(value: object) -> bytes:
    """One event without a name."""
    return b"data: " + _encode(value) + b"\n\n"


def comment(text: str) -> bytes:
    """Something for people who look at the wire; programs pass over it."""
    return b": " + text.replace("\n", " ").encode() + b"\n\n"


class Onlooker:
    """Looks on at one turn, from its first event to its answer, at the pace at which the client reads."""

    def __init__(self, exchange: Exchange, mail: Mail) -> None:
        self.exchange = exchange
        self.mail = mail
        self.over = False
        """Whether the answer was in the last batch."""
        self._seen = 0

    async def batch(self) -> Sequence[Event]:
        """Whatever has happened since the last batch; nothing after a time of silence.

        Raises what ended the exchange, and what kept the mail from being answered.
        """
        try:
            events = await self.exchange.wait(partial(self.mail.after, self._seen), self.exchange.shared.for_news)
        except TimeoutError:
            return ()
        self._seen += len(events)
        self.over = isinstance(events[-1], Answered)
        return events

    def rewind(self) -> None:
        """Begin again with the first event."""
        self._seen = 0
        self.over = False
