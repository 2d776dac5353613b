"""Sending stored answers to channels that push: in order, each until it has arrived."""

import anyio
import structlog

from holdfast.core import failpoints
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, StoreError, TryLater
from holdfast.core.messages import Answer
from holdfast.core.protocols import Channel, Store
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.patience import insist

log = structlog.get_logger(__name__)

LONGEST_WAIT = 60.0
MOST_BUGS = 5


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
        if await self._insist(answer):
            await self._note_sent(answer)

    async def _insist(self, answer: Answer) -> bool:
        """Send until it has arrived; false when it is left in the outbox for the next start."""
        wait, bugs = 1.0, 0
        while True:
            try:
                failpoints.reach(self._before)
                await self._channel.send(answer)
                failpoints.reach(self._after)
                return True
            except (TryLater, StoreError) as reason:
                wait = max(wait, reason.after if isinstance(reason, TryLater) else 0.0)
                log.warning("not delivered yet", chat=str(answer.chat), answer=answer.id, cause=str(reason), wait=wait)
            except HoldfastError as reason:
                log.error("can't be delivered", chat=str(answer.chat), answer=answer.id, cause=str(reason))
                return True
            except Exception:  # a channel's bug must cost neither the answer nor the lane
                log.exception("a channel broke while sending", chat=str(answer.chat), answer=answer.id, wait=wait)
                bugs += 1
                if bugs == MOST_BUGS:
                    return False
            await anyio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _note_sent(self, answer: Answer) -> None:
        """Before the next one is sent: an answer that is not known to be sent would be sent again."""

        def failed(error: StoreError) -> None:
            log.error("can't note that an answer was sent; trying again", answer=answer.id, cause=str(error))

        await insist(lambda: self._store.sent(answer.id, self._clock.now()), failed, longest_wait=LONGEST_WAIT)
