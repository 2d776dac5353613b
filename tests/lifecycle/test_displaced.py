"""A turn, or a wish, that was overtaken touches nothing of the conversation that follows."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.errors import NotFound
from holdfast.core.events import Answered, Event, Text
from holdfast.core.messages import Answer, AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import Accept, MessageRow, ToolContext
from holdfast.gateway.mail import Mail
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import calls, echo, until
from holdfast.tools.function import FunctionTool

from .events import evict, open_small, session_of

pytestmark = pytest.mark.anyio

BEGINS = {
    "/new": "A new conversation begins; the old one is kept.",
    "/resume": "The earlier conversation goes on: earlier.",
}


class Messenger:
    """A channel that keeps what arrived."""

    name = "test"

    def __init__(self) -> None:
        self.arrived: list[str] = []

    async def receive(self, accept: Accept) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        self.arrived.append(answer.text)


class Work:
    """What a turn is at when it is displaced, and would go on with if it could."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.begun = 0
        self._go_on = threading.Event()

    async def script(self, messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return "the work is done"
        if last.text != "work":
            return await echo(messages, emit)
        if self.kind in ("in a tool", "in a thread"):
            return calls(("toil", "{}"), text="I begin")
        if self.kind == "streaming":
            emit(Text("half a sent"))
        await self._toil()
        emit(Text("ence"))
        return "the work is done"

    async def _toil(self) -> str:
        self.begun += 1
        await until(self._go_on.is_set, within=3600)
        return "toiled"

    @property
    def tool(self) -> FunctionTool:
        async def toil(context: ToolContext) -> str:
            """Work until told to go on."""
            return await self._toil()

        def toil_in_thread(context: ToolContext) -> str:
            """Work until told to go on, deaf to anything else."""
            self.begun += 1
            assert self._go_on.wait(30)
            return "toiled"

        toil_in_thread.__name__ = "toil"
        function = toil_in_thread if self.kind == "in a thread" else toil
        return FunctionTool(function, toolset="test", concurrent=False)

    def go_on(self) -> None:
        self._go_on.set()


async def events_of(mail: Mail) -> list[Event]:
    return [event async for event in mail.events()]


async def rows_of(bench: Bench) -> list[MessageRow]:
    woken = await bench.store.wake(CHAT)
    return woken.history if woken else []


async def displace(folder: Path, work: Work, command: str) -> None:
    """Displace a turn in the middle of its work, let that go on, and see that nobody hears of it."""
    messenger = Messenger()
    async with open_small(folder, work.script, tools=[work.tool], channels={"test": messenger}) as bench:
        for text in ("earlier", "/new", "hello"):
            await bench.say(text)
        mail = await bench.send("work", watched=True)
        await until(lambda: work.begun == 1)
        displaced, requests = session_of(bench).id, len(bench.model.requests)
        await until(lambda: len(messenger.arrived) == 3)
        assert (await bench.say(command)).text == BEGINS[command]
        seen, kept = await events_of(mail), await bench.store.history(displaced)
        work.go_on()
        await anyio.sleep(0.1)
        assert len(bench.model.requests) == requests, "it asks no model any more"
        assert await events_of(mail) == seen
        assert isinstance(seen[-1], Answered)
        assert seen[-1].outcome == "stopped"
        await bench.say("next")
        await until(lambda: len(messenger.arrived) == 5)
        assert messenger.arrived[3:] == [BEGINS[command], "you said next"]
        rows = await rows_of(bench)
        earlier = ["earlier", "you said earlier"] if command == "/resume" else []
        assert [row.message.text for row in rows] == [*earlier, "next", "you said next"]
        assert len(bench.model.requests[-1][2]) == len(earlier) + 1
        assert await bench.store.history(displaced) == kept, "what it had said stays where it belongs"
        assert kept[-1].mail == mail.incoming.id
        row = await bench.store.session(displaced)
        assert row
        assert row.end_reason == command.removeprefix("/")


@pytest.mark.virtual
@pytest.mark.proves("invariant 6")
@pytest.mark.parametrize("command", BEGINS)
@pytest.mark.parametrize("kind", ["silent", "streaming", "in a tool"])
async def test_a_displaced_turn_never_touches_its_successor(tmp_path: Path, kind: str, command: str) -> None:
    await displace(tmp_path, Work(kind), command)


@pytest.mark.proves("invariant 6")
@pytest.mark.parametrize("command", BEGINS)
async def test_nor_does_one_whose_tool_is_deaf(tmp_path: Path, command: str) -> None:
    """In real time: its thread goes on, and nobody hears its result."""
    await displace(tmp_path, Work("in a thread"), command)


@pytest.mark.virtual
@pytest.mark.proves("invariant 6")
@pytest.mark.parametrize("steps", range(6))
async def test_an_operators_end_that_comes_too_late_leaves_the_successors_mail_alone(
    tmp_path: Path, steps: int
) -> None:
    """/new is still at it when the operator ends the same conversation; a message for the new one waits."""
    work = Work("silent")
    async with open_small(tmp_path, work.script) as bench:
        await bench.send("work")
        await until(lambda: work.begun == 1)
        displaced = session_of(bench).id
        await bench.send("/new")
        for _ in range(steps):
            await asyncio.sleep(0)
        mail = await bench.send("next")
        try:
            await bench.gateway.end(displaced)
        except NotFound:
            assert steps
        assert (await mail.answered()).text == "you said next"


@pytest.mark.virtual
@pytest.mark.proves("invariant 6")
async def test_nor_does_it_close_what_the_successor_has_opened(tmp_path: Path) -> None:
    opened = []

    @asynccontextmanager
    async def thing() -> AsyncIterator[None]:
        opened.append("open")
        yield
        opened.append("closed")

    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        displaced = session_of(bench).id
        await bench.say("/new")
        await bench.say("next")
        await session_of(bench).own("thing", thing)
        chat = bench.gateway.awake[CHAT]
        assert await chat.end("expired", displaced) is False
        await evict(bench)
        assert bench.gateway.awake[CHAT] is chat
        assert opened == ["open"]
