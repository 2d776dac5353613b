"""Sending stored answers to channels that push: in order, each until it has arrived."""

import anyio
import structlog

from holdfast.core import failpoints
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.messages import Answer
from holdfast.core.protocols import Channel, Store
from holdfast.gateway.sessions import AwakeChat

log = structlog.get_logger(__name__)

LONGEST_WAIT = 60.0


class Delivery:
    """The lane from the outbox to one channel. One answer at a time in each chat keeps their order."""

    def __init__(self, channel: Channel, store: Store, clock: Clock) -> None:
        self._channel = channel
        self._store = store
        self._clock = clock
        self._before = failpoints.register(f"channel.{channel.name}.send.before")
        self._after = failpoints.register(f"channel.{channel.name}.send.after")

    async def run(self, chat: AwakeChat) -> None:
        while True:
            while chat.outgoing:
                await self._send(chat.outgoing.peek())
                chat.outgoing.take()
                chat.mailbox.ring()  # the host may wait for the last one to be gone
            await chat.outgoing.arrival()

    async def _send(self, answer: Answer) -> None:
        wait = 1.0
        while True:
            try:
                failpoints.reach(self._before)
                await self._channel.send(answer)
                failpoints.reach(self._after)
            except TryLater as reason:
                wait = max(wait, reason.after)
                log.warning("not delivered yet", chat=str(answer.chat), answer=answer.id, cause=str(reason), wait=wait)
                await anyio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT)
            except HoldfastError as reason:
                log.error("can't be delivered", chat=str(answer.chat), answer=answer.id, cause=str(reason))
                break
            except Exception:  # a channel's bug costs one answer its delivery, not the chat its lane
                log.exception("a channel broke while sending", chat=str(answer.chat), answer=answer.id)
                break
            else:
                break
        self._store.sent(answer.id, self._clock.now())
