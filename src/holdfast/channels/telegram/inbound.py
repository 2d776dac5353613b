"""From Telegram to the gateway: messages are fetched, and confirmed only once they are stored."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio
import structlog
from telegram import Bot, Message, Update, User
from telegram.constants import ChatType
from telegram.error import Conflict, InvalidToken, TelegramError

from holdfast.channels.telegram import Pace
from holdfast.channels.telegram.outbound import Flood, Outbound
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, Stopping, StoreError, TryLater
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Incoming
from holdfast.core.protocols import Accept
from holdfast.core.scopes import Mailbox, plain_errors

log = structlog.get_logger(__name__)

T = TypeVar("T")

ONLY_TEXT = "I only understand text for now."
STRANGER = "This bot talks only to people whom its operator has let in. To ask for that, tell them your number: {id}"

TELL_AGAIN = 3600.0
MOST_STRANGERS = 1000
MOST_NOTICES = 100
NOTICE_TRIES = 5


class Inbound:
    """Fetches a bot's messages, one after the other, so that those of a chat stay in order."""

    def __init__(self, bot: Bot, outbound: Outbound, allow: Iterable[str], clock: Clock, pace: Pace) -> None:
        self._bot = bot
        self._access = Access(allow, clock)
        self._notices = Notices(outbound, pace)
        self._clock = clock
        self._pace = pace
        self.taken = 0
        """Messages that were handed to the gateway."""

    def __repr__(self) -> str:
        return f"{self.taken} taken, {self._notices!r}"

    async def receive(self, accept: Accept) -> None:
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(self._notices.run)
                await self._fetch(accept)

    async def _fetch(self, accept: Accept) -> None:
        me = await self._insist(self._bot.get_me)
        log.info("receiving messages", channel="telegram", bot=me.username)
        offset: int | None = None

        async def poll() -> tuple[Update, ...]:
            return await self._poll(offset)

        while True:
            for update in await self._insist(poll):
                await self._take(update, me.id, accept)
                # What is below the offset of the next poll is confirmed by it, and not before. Not the highest so
                # far: after a quiet week Telegram may begin anew with any number.
                offset = update.update_id + 1

    async def _poll(self, offset: int | None) -> tuple[Update, ...]:
        try:
            return await self._bot.get_updates(offset, timeout=self._pace.poll, allowed_updates=[Update.MESSAGE])
        except Conflict as conflict:
            if "webhook" not in str(conflict):
                raise
            log.warning("removing the bot's webhook, since its messages are fetched", channel="telegram")
            await self._bot.delete_webhook()
            return ()

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until Telegram answers. Trouble is logged when it begins or turns into another, and when it is over."""
        told = ""
        for wait in self._pace.waits():
            try:
                answer = await ask()
            except TelegramError as error:
                trouble, wait = self._judged(error, wait)
                if trouble != told:
                    log.error(trouble, channel="telegram", cause=str(error))
                    told = trouble
                await anyio.sleep(wait)
            else:
                if told:
                    log.info("Telegram answers again", channel="telegram")
                return answer
        raise AssertionError("there is no last wait")

    def _judged(self, error: TelegramError, wait: float) -> tuple[str, float]:
        """What to tell the operator, and how long to wait."""
        match error:
            case InvalidToken():
                hint = (
                    "Telegram does not know the bot's token; set [channels.telegram] token to the one from @BotFather"
                )
                return hint, self._pace.refused_wait
            case Conflict():
                hint = "another program fetches this bot's messages; stop it, or give each of them a bot of its own"
                return hint, wait
            case Flood():
                return "Telegram asks to wait", max(wait, error.seconds)
        return "Telegram can't be reached; trying again until it can", wait

    async def _take(self, update: Update, bot: int, accept: Accept) -> None:
        """Deal with an update; when this returns, it may be confirmed."""
        message = update.message
        if message is None or message.from_user is None or message.chat.type != ChatType.PRIVATE:
            return
        if not self._access.allows(message.from_user):
            self._refuse(message, message.from_user)
        elif message.text is None:
            self._notices.say(str(message.chat.id), ONLY_TEXT)
        else:
            incoming = Incoming(
                id=MailId(f"telegram:{bot}:{update.update_id}"),
                chat=ChatKey("telegram", str(message.chat.id)),
                text=message.text,
                received=self._clock.now(),
                sender=str(message.from_user.id),
            )
            await self._hand_over(incoming, accept)

    def _refuse(self, message: Message, user: User) -> None:
        if self._access.is_to_be_told(user):
            log.warning("a stranger wrote", channel="telegram", user=user.id, name=user.username)
            self._notices.say(str(message.chat.id), STRANGER.format(id=user.id))

    async def _hand_over(self, incoming: Incoming, accept: Accept) -> None:
        for wait in self._pace.waits():
            try:
                await accept(incoming)
            except StoreError as error:
                log.error("can't store a message; trying again", mail=incoming.id, cause=str(error), wait=wait)
                await anyio.sleep(wait)
            except Stopping:
                await anyio.sleep(wait)  # not confirmed: it waits at Telegram's for the next start
            except HoldfastError as error:  # mostly `TryLater`: its sentence is for the sender
                log.warning("a message was not taken", mail=incoming.id, cause=str(error))
                self._notices.say(incoming.chat.chat, str(error))
                return
            else:
                self.taken += 1
                return


class Access:
    """Who may write to the bot: nobody but those on the list."""

    def __init__(self, allow: Iterable[str], clock: Clock) -> None:
        self._allowed = frozenset(entry.lower() for entry in allow)
        self._clock = clock
        self._told: OrderedDict[int, float] = OrderedDict()
        """When strangers were last told that they are, oldest first."""

    def allows(self, user: User) -> bool:
        if str(user.id) in self._allowed:
            return True
        return bool(user.username) and f"@{user.username}".lower() in self._allowed

    def is_to_be_told(self, user: User) -> bool:
        """Whether a stranger has not been told for an hour; who asks that does tell."""
        now = self._clock.now()
        if now - self._told.get(user.id, float("-inf")) < TELL_AGAIN:
            return False
        self._told[user.id] = now
        self._told.move_to_end(user.id)
        if len(self._told) > MOST_STRANGERS:
            self._told.popitem(last=False)
        return True


class Notices:
    """Sentences of the channel's own. They are not stored, hold nobody up, and are given up after a few tries."""

    def __init__(self, outbound: Outbound, pace: Pace) -> None:
        self._outbound = outbound
        self._pace = pace
        self._waiting: Mailbox[tuple[str, str]] = Mailbox()

    def __repr__(self) -> str:
        return f"{len(self._waiting)} notices waiting"

    def say(self, chat: str, text: str) -> None:
        if (chat, text) in self._waiting:
            return  # once is enough
        if len(self._waiting) >= MOST_NOTICES:
            log.warning("too many notices wait; this one is dropped", chat=chat, text=text)
            return
        self._waiting.put((chat, text))

    async def run(self) -> None:
        while True:
            await self._waiting.arrival()
            await self._try(*self._waiting.take())

    async def _try(self, chat: str, text: str) -> None:
        cause = ""
        for _, wait in zip(range(NOTICE_TRIES), self._pace.waits(), strict=False):
            try:
                await self._outbound.say(chat, text)
            except TryLater as reason:
                cause, wait = str(reason), max(wait, reason.after)
                if wait > self._pace.longest_wait:
                    break
                await anyio.sleep(wait)
            except HoldfastError as reason:
                cause = str(reason)
                break
            else:
                return
        log.warning("a notice was not delivered", chat=chat, text=text, cause=cause)
