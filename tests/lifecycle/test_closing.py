"""Whatever fails or hangs when something is closed, everything else is closed as well, in time."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from holdfast import app
from holdfast.api import server
from holdfast.core import failpoints
from holdfast.core.keys import ChatKey
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import Accept, Channel, SessionRow, ToolContext
from holdfast.core.settings import ChannelSettings, ModelSettings, Secret, Settings, TelegramSettings, paths
from holdfast.gateway.accept import CLOSE_GRACE
from holdfast.gateway.endings import LONGEST
from holdfast.storage import lanes, open_store
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.models import ScriptedModelServer, open_model_server
from holdfast.testing.processes import TOKEN, GatewayProcess, running_gateway
from holdfast.testing.replies import says
from holdfast.testing.scripted import calls, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.function import tool

from .events import end

pytestmark = pytest.mark.anyio

OTHER = ChatKey("test", "other")


class Closers:
    """Notes what was closed. One of them raises or hangs when its turn comes."""

    def __init__(self, culprit: str, how: str) -> None:
        self.closed: list[str] = []
        self.culprit = culprit
        self.how = how

    @asynccontextmanager
    async def opening(self, name: str) -> AsyncIterator[None]:
        yield
        await self.close(name)

    async def close(self, name: str) -> None:
        if name == self.culprit and self.how == "hangs":
            await anyio.sleep_forever()
        self.closed.append(name)
        if name == self.culprit:
            raise OSError("it does not close")

    @property
    def tools(self) -> list[Any]:
        @tool(toolset="test")
        async def open_three(context: ToolContext) -> str:
            """Open three things that the conversation owns."""
            for name in ("first", "second", "third"):
                await context.own(name, partial(self.opening, f"{name} of {context.chat.chat}"))
            return "open"

        return [open_three]

    def lease(self, chat: ChatKey, _: str) -> AbstractAsyncContextManager[None]:
        return self.opening(f"lease of {chat.chat}")

    async def hook(self, row: SessionRow) -> None:
        await self.close(f"hook of {row.chat.chat}")

    async def later_hook(self, row: SessionRow) -> None:
        await self.close(f"later hook of {row.chat.chat}")


async def open_them(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
    return "done" if isinstance(messages[-1], ToolMessage) else calls(("open_three", "{}"))


def everything(chat: ChatKey, *, hooks: bool = False) -> set[str]:
    names = ["first", "second", "third", "lease", *(["hook", "later hook"] if hooks else [])]
    return {f"{name} of {chat.chat}" for name in names}


@asynccontextmanager
async def open_closers(folder: Path, closers: Closers) -> AsyncIterator[Bench]:
    """A gateway whose conversations own something and have a lease and hooks, all of which are noted."""
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bench(
        folder, open_them, tools=closers.tools, at_end=[closers.hook, closers.later_hook], clock=clock
    ) as bench:
        for chat in (OTHER, CHAT):
            bench.model.around = partial(closers.lease, chat)
            await bench.say("open", chat)
        yield bench


CULPRITS = ["first of chat", "second of chat", "third of chat", "lease of chat", "hook of chat"]


@pytest.mark.virtual
@pytest.mark.proves("invariant 14", "case 50")
@pytest.mark.parametrize("how", ["raises", "hangs"])
@pytest.mark.parametrize("culprit", CULPRITS)
async def test_at_the_end_of_a_conversation_one_close_stops_no_other(tmp_path: Path, culprit: str, how: str) -> None:
    closers = Closers(culprit, how)
    with capture_logs() as logs:
        async with open_closers(tmp_path, closers) as bench:
            began = anyio.current_time()
            await end(bench)
            assert (await bench.say("and now?")).outcome == "ok"
            assert anyio.current_time() == began  # nobody waited for any of it
            expected = everything(CHAT, hooks=True) - ({culprit} if how == "hangs" else set())
            longest = LONGEST if culprit.startswith("hook") else 0
            await anyio.sleep(longest + 0.1)
            assert set(closers.closed) == expected
            await anyio.sleep(CLOSE_GRACE)
            assert sorted(closers.closed) == sorted(expected)
            assert [line["log_level"] for line in logs if line["log_level"] != "info"] == ["error"]
            closers.culprit = ""


@pytest.mark.virtual
@pytest.mark.proves("invariant 14", "case 50")
@pytest.mark.parametrize("how", ["raises", "hangs"])
@pytest.mark.parametrize("culprit", CULPRITS[:4])
async def test_at_the_end_of_the_process_one_close_stops_no_other(tmp_path: Path, culprit: str, how: str) -> None:
    closers = Closers(culprit, how)
    with capture_logs() as logs:
        async with open_closers(tmp_path, closers) as bench:
            await bench.gateway.drain(20)
            assert closers.closed == []
            began = anyio.current_time()
    assert anyio.current_time() - began <= CLOSE_GRACE + 0.1
    expected = everything(CHAT) | everything(OTHER)
    assert sorted(closers.closed) == sorted(expected - ({culprit} if how == "hangs" else set()))
    assert [line["log_level"] for line in logs] == ["error"]


# ── the parts of the process ────────────────────────────────────────────────────────────────────


class Deaf:
    """A channel that hears nothing."""

    name = "telegram"

    async def receive(self, accept: Accept) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None: ...


@asynccontextmanager
async def open_deaf(ledger: Ledger, how: str) -> AsyncIterator[Channel]:
    with ledger.enter("socket pool", "the deaf one's"):
        yield Deaf()
        if how == "hangs":
            await anyio.sleep_forever()
        raise OSError("it does not close")


@pytest.mark.proves("invariant 14")
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_channel_that_does_not_close_stops_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def open_channel(_: object, ledger: Ledger, clock: object) -> AbstractAsyncContextManager[Channel]:
        return open_deaf(ledger, how)

    monkeypatch.setattr("holdfast.channels.telegram.open_channel", open_channel)
    monkeypatch.setattr(app, "CHANNEL_GRACE", 0.2)
    settings = Settings(
        model=ModelSettings(provider="demo"), channels=ChannelSettings(TelegramSettings(Secret("a-token")))
    )
    places, ledger = paths({"HOLDFAST_HOME": str(tmp_path)}), Ledger()
    with capture_logs() as logs:
        async with app.open_app(settings, places, port=0, ledger=ledger):
            assert "the deaf one's" in repr(ledger)
            began = time.monotonic()
    assert time.monotonic() - began < server.GRACE + 1
    assert len(ledger) == 0
    assert [line["log_level"] for line in logs if line["log_level"] != "info"] == ["error"]
    async with app.open_app(Settings(model=ModelSettings(provider="demo")), places, port=0, ledger=ledger):
        assert [entry.kind for entry in ledger].count("database") == 3  # the folder is free, and the store in order


@pytest.mark.proves("invariant 14")
async def test_a_disk_that_hangs_does_not_keep_the_store_from_being_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, works_again = threading.Event(), threading.Event()

    def hang() -> None:
        inside.set()
        assert works_again.wait(5)

    monkeypatch.setattr(lanes, "LAST_WORK", 0.2)
    ledger = Ledger()
    with capture_logs() as logs:
        try:
            async with open_bench(tmp_path, open_them, inline=False) as bench:
                monkeypatch.setitem(failpoints._armed, "store.accept.before", hang)
                bench.store.accept(bench.incoming("hello"))
                await until(inside.is_set)
                began = time.monotonic()
            assert time.monotonic() - began < 2
        finally:
            works_again.set()
    assert [line["thread"] for line in logs if "the disk hangs" in line["event"]] == ["store-writer-1"]
    await until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("store-")])
    async with open_store(tmp_path / "holdfast.db", ledger=ledger, clock=bench.clock) as store:
        assert [mail.text for mail in await store.waiting()] == ["hello"]  # it came to its end after all


# ── in the middle of a turn ─────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def stopped_mid_turn(home: Path) -> AsyncIterator[tuple[ScriptedModelServer, GatewayProcess]]:
    """Inside the block a turn is to begin; then the process is told to stop, and only then the model answers."""
    async with open_model_server(says("here it is", stall_after=0)) as model:
        own = {"PROVIDER": "custom", "NAME": "slow", "BASE_URL": model.base_url, "API_KEY": "a key"}
        with running_gateway(home, {f"HOLDFAST_MODEL__{name}": value for name, value in own.items()}) as gateway:
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_mid_turn, model, gateway)
                yield model, gateway
            assert await anyio.to_thread.run_sync(gateway.wait) == 0
            assert not gateway.alive


async def _stop_mid_turn(model: ScriptedModelServer, gateway: GatewayProcess) -> None:
    await model.until(lambda model: model.stalled == 1, within=20)
    os.kill(gateway.pid, signal.SIGTERM)
    await until(lambda: "the same again hurries" in gateway.output, within=20)
    model.resume()


@pytest.mark.proves("case 68")
@pytest.mark.parametrize("stream", [False, True])
async def test_told_to_stop_in_the_middle_of_a_turn_it_still_answers(tmp_path: Path, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": stream}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        stopped_mid_turn(tmp_path) as (model, gateway),
        aiohttp.ClientSession(gateway.url, headers=headers) as client,
        client.post("/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        text = await response.text()
    said = re.findall(r'"content":"([^"]*)"', text)  # in one piece or in several
    assert "".join(said) == "here it is"
    assert ("[DONE]" in text) == stream
    assert len(model.requests) == 1
