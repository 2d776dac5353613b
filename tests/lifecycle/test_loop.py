"""The loop never stalls: while something blocks, everybody else is served."""

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core import failpoints
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import ToolContext
from holdfast.testing.gateways import CHAT, open_bench
from holdfast.testing.processes import running_gateway
from holdfast.testing.scripted import calls, until
from holdfast.tools.function import tool

pytestmark = pytest.mark.anyio

LONGEST_GAP = 0.25
BEAT = 0.01


class Heartbeat:
    """How long the loop was away at most, in real time."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.beats = 0

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            await anyio.sleep(BEAT)
            now = time.monotonic()
            self.longest = max(self.longest, now - before)
            self.beats += 1
            before = now


@asynccontextmanager
async def open_heartbeat() -> AsyncIterator[Heartbeat]:
    heart = Heartbeat()
    async with anyio.create_task_group() as group:
        group.start_soon(heart.run)
        yield heart
        group.cancel_scope.cancel()


def wait_for(condition: Callable[[], bool], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@tool(toolset="test")
def sleep_long(context: ToolContext) -> str:
    """Sleep as only a blocking call can."""
    time.sleep(2)
    return "slept"


async def sleepy(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return f"it {last.text}"
    return calls(("sleep_long", "{}")) if last.text == "sleep" else "here I am"


@pytest.mark.proves("invariant 15")
async def test_a_tool_that_sleeps_two_seconds_does_not_stall_the_loop(tmp_path: Path) -> None:
    """With a blocking tool; meanwhile others get their answers."""
    async with open_bench(tmp_path, sleepy, tools=[sleep_long]) as bench, open_heartbeat() as heart:
        began = time.monotonic()
        sleeping = await bench.send("sleep")
        for number in range(10):
            assert (await bench.say("hello", ChatKey("test", f"{number}"))).text == "here I am"
        assert not sleeping.done
        assert (await sleeping.answered()).text == "it slept"
        assert time.monotonic() - began >= 2
    assert heart.longest < LONGEST_GAP
    assert heart.beats > 2 / LONGEST_GAP


@pytest.mark.proves("invariant 15")
async def test_thirty_that_sleep_at_once_take_as_long_as_one(tmp_path: Path) -> None:
    """Blocking tools wait beside each other, not one behind the other."""
    async with open_bench(tmp_path, sleepy, tools=[sleep_long]) as bench, open_heartbeat() as heart:
        began = time.monotonic()
        mails = [await bench.send("sleep", ChatKey("test", f"{number}")) for number in range(30)]
        assert {(await mail.answered()).text for mail in mails} == {"it slept"}
        assert time.monotonic() - began < 4
    assert heart.longest < LONGEST_GAP


@pytest.mark.proves("invariant 15")
async def test_a_store_that_sleeps_two_seconds_does_not_stall_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has something to store waits for it; those who only read don't."""
    asleep = threading.Event()

    def sleep() -> None:
        asleep.set()
        time.sleep(2)

    async with open_bench(tmp_path, sleepy, tools=[sleep_long], inline=False) as bench, open_heartbeat() as heart:
        await bench.say("hello")
        with monkeypatch.context() as disk:
            disk.setitem(failpoints._armed, "store.accept.before", sleep)
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(bench.say, "and now?")
                await until(asleep.is_set)
                for _ in range(10):
                    assert len(await bench.said()) == 2
                assert time.monotonic() - began < 2
        assert time.monotonic() - began >= 2
        assert len(await bench.said()) == 4
    assert heart.longest < LONGEST_GAP


@pytest.mark.proves("invariant 4")
async def test_a_stop_does_not_wait_for_a_tool_that_blocks(tmp_path: Path) -> None:
    """The turn is over at once; the thread finishes alone, and nobody hears its result."""
    inside, go = threading.Event(), threading.Event()

    @tool(toolset="test")
    def sleep_long(context: ToolContext) -> str:
        """Hang until it is let go."""
        inside.set()
        assert go.wait(60)
        return "slept"

    async with open_bench(tmp_path, sleepy, tools=[sleep_long]) as bench:
        try:
            mail = await bench.send("sleep")
            await until(inside.is_set)
            assert bench.gateway.stop(CHAT)
            with anyio.fail_after(1):
                assert (await mail.answered()).outcome == "stopped"
            assert (await bench.say("hello")).text == "here I am"
        finally:
            go.set()
        assert not any("slept" in message.text for message in await bench.said())


HANGS = """
import time
from pathlib import Path
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

@tool(toolset="test")
def hang(context: ToolContext) -> str:
    "Hang."
    Path("inside").touch()
    time.sleep(3600)
    return ""

TOOLS = (hang,)
"""


@pytest.mark.proves("invariant 14")
def test_a_tool_that_hangs_does_not_keep_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to stop, and told again, it closes everything and is gone."""
    (tmp_path / "tools_that_hang.py").write_text(HANGS)
    monkeypatch.chdir(tmp_path)  # where it finds the module
    with running_gateway(tmp_path, {"HOLDFAST_TOOLS__MODULES": "tools_that_hang"}) as gateway:
        gateway.ask("/api/chats/web/a/messages", {"text": "use hang with {}", "id": "1"})
        wait_for(lambda: (tmp_path / "inside").exists())
        os.kill(gateway.pid, signal.SIGTERM)
        wait_for(lambda: "the same again hurries" in gateway.output)
        began = time.monotonic()
        assert gateway.terminate() == 0
        assert time.monotonic() - began < 10
        assert "left, though a tool still works in a thread" in gateway.output
