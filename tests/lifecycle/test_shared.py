"""What the whole process shares, tool definitions and model transports: no conversation's event touches it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.app import _model_config
from holdfast.core.clock import Ids
from holdfast.core.keys import ChatKey
from holdfast.core.ledger import Entry, Ledger
from holdfast.core.settings import Secret
from holdfast.gateway import open_gateway
from holdfast.gateway.descriptors import open_descriptors
from holdfast.models.home import open_home
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import open_transports
from holdfast.storage import open_store
from holdfast.testing.gateways import Bench
from holdfast.testing.models import ScriptedModelServer, open_model_server
from holdfast.testing.scripted import ScriptedModel, echo, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.catalogue import Catalogue, ToolSet
from holdfast.tools.files import TOOLS

from .events import ENDINGS, EVICTIONS, SETTINGS, agent_of, end, evict, open_small, shut_down

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

ANOTHER = ChatKey("test", "another")


async def say(bench: Bench, text: str, answer: str) -> None:
    assert answer in (await bench.say(text)).text


EVENTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "turn": partial(say, text="again", answer="again"),
    **{f"evict by {route}": partial(evict, route=route) for route in EVICTIONS},
    "model": partial(say, text="/model other", answer="on the model is other"),
    "reasoning": partial(say, text="/reasoning high", answer="effort is high"),
    "undo": partial(say, text="/undo", answer="undone"),
    **{f"end by {way}": partial(end, way=way) for way in ENDINGS},
}


# ── tool definitions ────────────────────────────────────────────────────────────────────────────


def tools_of(bench: Bench, chat: ChatKey) -> ToolSet:
    agent = agent_of(bench, chat)
    assert agent
    return agent.tools


@pytest.mark.proves(
    "definitions/turn",
    "definitions/evict",
    "definitions/model",
    "definitions/reasoning",
    "definitions/undo",
    "definitions/end",
)
@pytest.mark.parametrize("event", EVENTS)
async def test_the_tool_definitions_are_the_same_objects_before_and_after(tmp_path: Path, event: str) -> None:
    """Also for a chat that comes later, and to the very bytes that the model is sent."""
    chat = ChatKey("test", "chat")
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        tools, sent = tools_of(bench, chat), bench.model.requests[-1][1]
        assert len(tools) == len(TOOLS)
        await EVENTS[event](bench)
        await bench.say("after it")
        assert tools_of(bench, chat) is tools
        await bench.say("hello", ANOTHER)
        assert tools_of(bench, ANOTHER) is tools
        assert all(request[1] is sent for request in bench.model.requests)


# ── model transports, over real sockets ─────────────────────────────────────────────────────────


class Wired(NamedTuple):
    bench: Bench
    server: ScriptedModelServer
    ledger: Ledger

    def pools(self) -> list[Entry]:
        """An entry of the ledger is there exactly as long as its pool."""
        return [entry for entry in self.ledger if entry.kind == "socket pool"]

    def connections(self) -> int:
        """The pool's sockets that are really open."""
        return len([held for held in self.ledger.holders() if held in (open_descriptors() or {})])


@asynccontextmanager
async def open_wired(folder: Path, server: ScriptedModelServer) -> AsyncIterator[Wired]:
    """A gateway on a real wire. A pool that nobody leases stays for two hours, which no event here lasts."""
    clock, chance, ledger = VirtualClock(asyncio.get_running_loop()), random.Random(0), Ledger()
    choice = ModelChoice(provider="custom", name="first", base_url=server.base_url, api_key=Secret("a key"))
    async with (
        open_store(folder / "holdfast.db", ledger=Ledger(), clock=clock, inline=True) as store,
        open_transports(ledger, idle=7200) as transports,
        open_home() as home,
        open_gateway(
            settings=SETTINGS,
            store=store,
            model=_model_config(choice, transports, home),
            catalogue=Catalogue(TOOLS),
            channels={},
            sessions_folder=folder / "sessions",
            clock=clock,
            chance=chance,
        ) as gateway,
    ):
        yield Wired(Bench(gateway, store, ScriptedModel(echo), Ids(clock, chance), clock), server, ledger)


@pytest.mark.proves(
    "transports/turn",
    "transports/evict",
    "transports/model",
    "transports/reasoning",
    "transports/undo",
    "transports/end",
)
@pytest.mark.parametrize("event", EVENTS)
async def test_the_transport_is_the_same_before_and_after(tmp_path: Path, event: str) -> None:
    """One pool and one connection for everybody, whatever happens to those who lease it."""
    async with open_model_server() as server, open_wired(tmp_path, server) as wired:
        await wired.bench.say("hello")
        (pool,) = wired.pools()
        assert wired.connections() == server.connected == 1
        await EVENTS[event](wired.bench)
        assert wired.pools()[0] is pool
        for chat in (ChatKey("test", "chat"), ANOTHER):
            assert (await wired.bench.say("after it", chat)).text.endswith("after it")
        assert wired.pools() == [pool]
        assert wired.pools()[0] is pool
        assert wired.connections() == server.connected == server.connections == 1


@pytest.mark.proves("transports/shutdown")
async def test_shutdown_closes_the_transports(tmp_path: Path) -> None:
    async with open_model_server() as server:
        async with open_wired(tmp_path, server) as wired:
            await wired.bench.say("hello")
            held = set(wired.ledger.holders())
            await shut_down(wired.bench)
            assert wired.connections() == server.connections == len(held) == 1
        assert wired.pools() == []
        assert not held & set(open_descriptors() or {})
        await until(lambda: server.connections == 0)
