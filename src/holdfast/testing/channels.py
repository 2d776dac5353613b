"""For those who write channels: a contract suite that any `Channel` can be run through.

    async def test_it_keeps_the_contract() -> None:
        await check_channel(MyMessenger())

`MyMessenger` drives a real server of the platform, or one that behaves as it does; see `Messenger`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio

from holdfast.core.errors import HoldfastError, StoreFull, TryLater
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import Channel
from holdfast.core.scopes import plain_errors

PATIENCE = 20.0
LONG = "\n".join(f"{number}: {'all work and no play ' * 9}" for number in range(200))


class Messenger(Protocol):
    """The platform on the other side of a channel, as one person there sees it, and as the suite drives it.

    The channels that it opens should wait only briefly before they try something again.
    """

    def open_channel(self, *, allow: bool) -> AbstractAsyncContextManager[Channel]:
        """The channel, with the person on its allow-list; or with an empty one."""
        ...

    def say(self, text: str) -> None:
        """The person writes."""
        ...

    def heard(self) -> list[str]:
        """The messages that the person got, in order."""
        ...

    def unacknowledged(self) -> int:
        """How many messages the platform would deliver again."""
        ...

    def down(self) -> AbstractAsyncContextManager[None]:
        """Inside the block the platform can't be reached."""
        ...

    def gone(self) -> AbstractAsyncContextManager[None]:
        """Inside the block the person can't be written to, by the platform's own word."""
        ...


class Inbox:
    """What the gateway is to a channel: takes messages in, or has reasons not to."""

    def __init__(self) -> None:
        self.offered: list[Incoming] = []
        self.stored: dict[MailId, Incoming] = {}
        self.refusals: list[HoldfastError] = []
        """Raised one by one before anything is stored."""
        self.gate = anyio.Event()
        self.gate.set()

    async def accept(self, incoming: Incoming) -> None:
        self.offered.append(incoming)
        if self.refusals:
            raise self.refusals.pop(0)
        self.stored.setdefault(incoming.id, incoming)
        await self.gate.wait()

    @property
    def texts(self) -> list[str]:
        return [incoming.text for incoming in self.stored.values()]


async def check_channel(messenger: Messenger) -> None:
    """What every channel must keep to. Raises `AssertionError`, whose message says what it does not."""
    for check in (
        _check_order,
        _check_acknowledging,
        _check_repeating,
        _check_a_full_disk,
        _check_too_much,
        _check_strangers,
        _check_an_outage,
        _check_answers,
        _check_an_answer_in_an_outage,
        _check_an_answer_to_nobody,
    ):
        await check(messenger)


async def _check_order(messenger: Messenger) -> None:
    async with _receiving(messenger) as (channel, inbox):
        for text in ("one", "two", "three"):
            messenger.say(text)
        await _until(lambda: len(inbox.stored) == 3, "three messages were sent, and not as many taken")
    assert inbox.texts == ["one", "two", "three"], "messages must be taken in the order in which they were sent"
    for incoming in inbox.offered:
        assert incoming.chat.channel == channel.name, "a chat's address begins with the channel's name"
        assert incoming.sender, "a message says who sent it"
        assert incoming.received > 0, "a message says when it came"
        assert incoming.history is None, "people in a chat don't carry their own history"


async def _check_acknowledging(messenger: Messenger) -> None:
    async with _receiving(messenger) as (_, inbox):
        inbox.gate = anyio.Event()
        messenger.say("being stored")
        await _until(lambda: bool(inbox.offered), "the message was not offered")
        await anyio.sleep(0.05)  # nothing else to wait for: it is what must not happen
        assert messenger.unacknowledged(), "a message must not be acknowledged before it is stored"
        inbox.gate.set()


async def _check_repeating(messenger: Messenger) -> None:
    inbox = Inbox()
    async with _receiving(messenger, inbox, dies=True):
        inbox.gate = anyio.Event()
        messenger.say("stored, then the process died")
        await _until(lambda: bool(inbox.stored), "the message was not offered")
    inbox.gate.set()
    async with _receiving(messenger, inbox):
        await _until(lambda: len(inbox.offered) > 1, "what was never acknowledged must be offered again")
    assert len(inbox.stored) == 1, "a message that comes again must have the same id"


async def _check_a_full_disk(messenger: Messenger) -> None:
    async with _receiving(messenger) as (_, inbox):
        inbox.refusals = [StoreFull("The disk is full."), StoreFull("The disk is full.")]
        messenger.say("hard to store")
        messenger.say("the next")
        await _until(lambda: len(inbox.stored) == 2, "what could not be stored must be offered again")
    assert inbox.texts == ["hard to store", "the next"], "what could not be stored must not be overtaken"


async def _check_too_much(messenger: Messenger) -> None:
    before = len(messenger.heard())
    async with _receiving(messenger) as (_, inbox):
        inbox.refusals = [TryLater("There is too much to do.", after=30)]
        messenger.say("too much")
        messenger.say("enough")
        await _until(
            lambda: messenger.heard()[before:] == ["There is too much to do."], "the sender must be told what was wrong"
        )
        await _until(lambda: inbox.texts == ["enough"], "a refused message must hold up nobody")


async def _check_strangers(messenger: Messenger) -> None:
    async with _receiving(messenger, allow=False) as (_, inbox):
        messenger.say("let me in")
    assert not inbox.offered, "an empty allow-list must let nobody in"


async def _check_an_outage(messenger: Messenger) -> None:
    async with _receiving(messenger) as (_, inbox):
        messenger.say("before")
        await _until(lambda: len(inbox.stored) == 1, "the message was not offered")
        async with messenger.down():
            messenger.say("during")
            await anyio.sleep(0.05)
        messenger.say("after")
        await _until(lambda: len(inbox.stored) == 3, "after an outage a channel must receive again by itself")
    assert inbox.texts == ["before", "during", "after"], "an outage must not change the order"


async def _check_answers(messenger: Messenger) -> None:
    async with _known_chat(messenger) as (channel, chat):
        before = len(messenger.heard())
        await _deliver(channel, _answer(chat, "**Hello** <b>&amp; \U0001f44b🏽"))
        assert len(messenger.heard()) == before + 1, "an answer that was sent must have arrived, once"
        assert "Hello" in messenger.heard()[-1], "an answer must arrive as it was sent"
        before += 1
        await _deliver(channel, _answer(chat, LONG))
        parts = messenger.heard()[before:]
        assert "\n".join(parts).split() == LONG.split(), "a long answer must arrive whole, in order and once"


async def _check_an_answer_in_an_outage(messenger: Messenger) -> None:
    async with _known_chat(messenger) as (channel, chat):
        before = len(messenger.heard())
        async with messenger.down():
            try:
                await channel.send(_answer(chat, "at last"))
            except TryLater:
                pass  # as it should be
            else:
                raise AssertionError("an answer that can't be delivered yet must raise TryLater")
        await _deliver(channel, _answer(chat, "at last"))
        assert messenger.heard()[before:] == ["at last"], "after an outage an answer must arrive, once"


async def _check_an_answer_to_nobody(messenger: Messenger) -> None:
    async with _known_chat(messenger) as (channel, chat), messenger.gone():
        before = len(messenger.heard())
        try:
            await channel.send(_answer(chat, "to nobody"))
        except TryLater as error:
            raise AssertionError("what will never be delivered must not raise TryLater") from error
        except HoldfastError:
            pass  # as it should be
        else:
            raise AssertionError("what can't be delivered must raise a HoldfastError")
        assert len(messenger.heard()) == before, "nothing can have arrived"


@asynccontextmanager
async def _receiving(
    messenger: Messenger, inbox: Inbox | None = None, *, allow: bool = True, dies: bool = False
) -> AsyncIterator[tuple[Channel, Inbox]]:
    """A channel that receives. At the end everything is acknowledged, unless the process is to die before that."""
    inbox = inbox or Inbox()
    async with messenger.open_channel(allow=allow) as channel:
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(_receive, channel, inbox)
                try:
                    yield channel, inbox
                    if not dies:
                        await _until(lambda: not messenger.unacknowledged(), "what was dealt with must be acknowledged")
                finally:
                    group.cancel_scope.cancel()


async def _receive(channel: Channel, inbox: Inbox) -> None:
    await channel.receive(inbox.accept)
    raise AssertionError("a channel must receive until it is cancelled")


@asynccontextmanager
async def _known_chat(messenger: Messenger) -> AsyncIterator[tuple[Channel, ChatKey]]:
    """A channel, and the chat with the person, who has to say something first."""
    async with _receiving(messenger) as (channel, inbox):
        messenger.say("hello")
        await _until(lambda: bool(inbox.stored), "the message was not offered")
        yield channel, inbox.offered[0].chat


async def _deliver(channel: Channel, answer: Answer) -> None:
    """As the gateway does it: again and again, until it is done."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await channel.send(answer)
            except TryLater as error:
                await anyio.sleep(min(error.after, 0.1))
            else:
                return


def _answer(chat: ChatKey, text: str) -> Answer:
    return Answer(f"answer to {chat}", MailId("a message"), chat, text, created=0.0)


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    with anyio.move_on_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the suite looks from outside, where nobody rings a bell
            await anyio.sleep(0.001)
        return
    raise AssertionError(otherwise)
