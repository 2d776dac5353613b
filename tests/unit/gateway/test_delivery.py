"""Answers of channels that push: sent in order, each until it has arrived, none lost by a restart."""

import asyncio
from pathlib import Path

import anyio
import pytest

from holdfast.core import failpoints
from holdfast.core.errors import HoldfastError, Stopping, TryLater
from holdfast.core.messages import Answer
from holdfast.core.protocols import Accept
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import echo, until

pytestmark = pytest.mark.anyio


class Messenger:
    """A channel that can be down, and keeps what arrived."""

    name = "test"

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.tries = 0
        self.down = False
        self.rejects = ""
        self.bugs = 0

    async def receive(self, accept: Accept) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        self.tries += 1
        if self.bugs:
            self.bugs -= 1
            raise KeyError("a bug of the channel's")
        if self.down:
            raise TryLater("the messenger is down", after=0)
        if self.rejects and self.rejects in answer.text:
            raise HoldfastError("the messenger will never take this")
        self.arrived.append(answer.text)


@pytest.mark.virtual
async def test_an_answer_waits_for_the_messenger_and_arrives_once(tmp_path: Path) -> None:
    messenger = Messenger()
    messenger.down = True
    async with open_bench(tmp_path, echo, channels={"test": messenger}) as bench:
        await bench.say("one")
        await bench.say("two")
        await anyio.sleep(30)
        assert messenger.arrived == []
        assert 3 < messenger.tries < 10  # it backs off
        assert len(await bench.store.unsent()) == 2
        messenger.down = False
        await anyio.sleep(60)
        assert messenger.arrived == ["you said one", "you said two"]
        assert await bench.store.unsent() == []


@pytest.mark.virtual
async def test_what_was_not_sent_is_sent_by_the_next_gateway(tmp_path: Path) -> None:
    down, up = Messenger(), Messenger()
    down.down = True
    async with open_bench(tmp_path, echo, channels={"test": down}) as bench:
        await bench.say("one")
        await bench.say("two")
    async with open_bench(tmp_path, echo, channels={"test": up}) as bench:
        await bench.say("three")
        await until(lambda: len(up.arrived) == 3)
        assert up.arrived == ["you said one", "you said two", "you said three"]
        assert len(bench.model.requests) == 1
    async with open_bench(tmp_path, echo, channels={"test": up}):
        await anyio.sleep(60)
        assert len(up.arrived) == 3


@pytest.mark.virtual
async def test_one_that_can_never_be_delivered_does_not_hold_up_the_next(tmp_path: Path) -> None:
    messenger = Messenger()
    messenger.rejects = "bad"
    async with open_bench(tmp_path, echo, channels={"test": messenger}) as bench:
        await bench.say("bad")
        await bench.say("good")
        await until(lambda: messenger.arrived == ["you said good"])


@pytest.mark.virtual
async def test_a_chat_stays_awake_until_its_last_answer_has_arrived(tmp_path: Path) -> None:
    messenger = Messenger()
    messenger.down = True
    async with open_bench(tmp_path, echo, channels={"test": messenger}) as bench:
        await bench.say("/help")
        await anyio.sleep(3000)
        assert bench.gateway.awake
        messenger.down = False
        await anyio.sleep(120)
        assert not bench.gateway.awake


@pytest.mark.virtual
async def test_what_new_displaced_is_said_to_nobody(tmp_path: Path) -> None:
    messenger = Messenger()

    async def slow(messages: object, emit: object) -> str:
        await anyio.sleep(60)
        return "too late"

    async with open_bench(tmp_path, slow, channels={"test": messenger}) as bench:
        await bench.send("old")
        await anyio.sleep(1)
        await bench.say("/new")
        await anyio.sleep(300)
        assert messenger.arrived == ["A new conversation begins; the old one is kept."]


def test_every_channels_sends_are_failpoints(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_bench(tmp_path, echo, channels={"test": Messenger()}):
            pass

    anyio.run(main)
    assert {"channel.test.send.before", "channel.test.send.after"} <= set(failpoints.names())


@pytest.mark.virtual
async def test_answers_of_a_channel_that_is_gone_wait_in_the_outbox_and_keep_nobody_awake(tmp_path: Path) -> None:
    down = Messenger()
    down.down = True
    async with open_bench(tmp_path, echo, channels={"test": down}) as bench:
        await bench.say("one")
    async with open_bench(tmp_path, echo) as bench:
        await anyio.sleep(60)
        assert not bench.gateway.awake
        assert len(await bench.store.unsent()) == 1


@pytest.mark.virtual
async def test_a_gateway_that_stops_lets_turns_end_and_their_answers_arrive(tmp_path: Path) -> None:
    messenger = Messenger()

    async def slow(messages: object, emit: object) -> str:
        await anyio.sleep(5)
        return "at last"

    async with open_bench(tmp_path, slow, channels={"test": messenger}) as bench:
        await bench.send("hello")
        await anyio.sleep(1)
        await bench.gateway.drain(20)
        assert messenger.arrived == ["at last"]
        with pytest.raises(Stopping):
            await bench.send("too late")
        assert await bench.store.waiting() == []


@pytest.mark.virtual
async def test_a_stopping_gateway_begins_no_new_turn_and_can_be_hurried(tmp_path: Path) -> None:
    async def slow(messages: object, emit: object) -> str:
        await anyio.sleep(100)
        return "at last"

    hurry = asyncio.Event()
    async with open_bench(tmp_path, slow) as bench:
        for number in range(3):
            await bench.send(str(number))
        await anyio.sleep(1)
        async with anyio.create_task_group() as group:
            started = anyio.current_time()
            group.start_soon(bench.gateway.drain, 1000, hurry)
            await anyio.sleep(150)
        assert anyio.current_time() - started == pytest.approx(150, abs=1)
        assert len(bench.model.requests) == 1
        assert len(await bench.store.waiting()) == 2
    async with open_bench(tmp_path, slow) as bench:
        await anyio.sleep(1)
        async with anyio.create_task_group() as group:
            group.start_soon(bench.gateway.drain, 1000, hurry)
            await anyio.sleep(5)
            hurry.set()
            started = anyio.current_time()
        assert anyio.current_time() - started < 1


@pytest.mark.virtual
async def test_an_answer_whose_sending_can_not_be_noted_is_not_sent_again(tmp_path: Path) -> None:
    messenger = Messenger()
    async with open_bench(tmp_path, echo, channels={"test": messenger}) as bench:
        failpoints.arm("store.sent.before=fail:1")
        try:
            await bench.say("one")
            await anyio.sleep(60)
        finally:
            failpoints.disarm()
        await bench.say("two")
        await anyio.sleep(60)
    async with open_bench(tmp_path, echo, channels={"test": messenger}):
        await anyio.sleep(60)
    assert messenger.arrived == ["you said one", "you said two"]


@pytest.mark.virtual
async def test_a_channels_bug_costs_no_answer(tmp_path: Path) -> None:
    messenger = Messenger()
    messenger.bugs = 2
    async with open_bench(tmp_path, echo, channels={"test": messenger}) as bench:
        await bench.say("one")
        await anyio.sleep(60)
        assert messenger.arrived == ["you said one"]
        messenger.bugs = 1000
        await bench.say("two")
        await anyio.sleep(600)
        assert len(await bench.store.unsent()) == 1  # left for the next start
    messenger.bugs = 0
    async with open_bench(tmp_path, echo, channels={"test": messenger}):
        await anyio.sleep(60)
    assert messenger.arrived == ["you said one", "you said two"]
