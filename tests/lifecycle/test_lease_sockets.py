"""The lease of a model over real sockets: what leaves is closed, and nothing of it is left."""

import gc
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.app import _model_config
from holdfast.core.clock import Ids, SystemClock
from holdfast.core.keys import ChatKey
from holdfast.core.ledger import Ledger
from holdfast.core.messages import UserMessage
from holdfast.gateway import open_gateway
from holdfast.gateway.watch import relieve
from holdfast.models.home import open_home
from holdfast.models.openai_chat import ChatModel
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import Transports, open_transports
from holdfast.storage import open_store
from holdfast.testing.gateways import Bench
from holdfast.testing.models import ScriptedModelServer, ask_for, open_model_server
from holdfast.testing.replies import calls as calls_tool
from holdfast.testing.replies import says
from holdfast.testing.scripted import ScriptedModel, echo, until
from holdfast.tools.catalogue import Catalogue
from holdfast.tools.files import TOOLS

from .events import SETTINGS, agent_of, evict, open_small, session_of
from .leases import Leases

pytestmark = pytest.mark.anyio


class Wired(NamedTuple):
    bench: Bench
    transports: Transports


@asynccontextmanager
async def open_wired(folder: Path, server: ScriptedModelServer, *, idle: float = 60) -> AsyncIterator[Wired]:
    """A gateway on the real model format, whose server is in this process, too."""
    choice = ModelChoice(provider="custom", name="first", base_url=server.base_url)
    clock, chance = SystemClock(), random.Random(0)
    async with (
        open_store(folder / "holdfast.db", ledger=Ledger(), clock=clock, inline=True) as store,
        open_transports(Ledger(), idle=idle) as transports,
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
        yield Wired(Bench(gateway, store, ScriptedModel(echo), Ids(clock, chance), clock), transports)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the folder of the moment


def live_clients() -> int:
    gc.collect()
    return sum(isinstance(thing, ChatModel) for thing in gc.get_objects())


@pytest.mark.virtual
@pytest.mark.proves("invariant 3")
async def test_three_hundred_other_models_are_three_hundred_leases_one_after_the_other(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        for number in range(300):
            await bench.say(f"/model m{number}")
            await bench.say("hello")
            assert leases.states.count("open") == bench.model.leases == 1
        assert leases.most == 1
        assert len(leases.states) == len(set(bench.model.leased)) == 300
    assert leases.closes == 300
    assert set(leases.states) == {"closed"}


@pytest.mark.proves("invariant 3")
async def test_three_hundred_other_models_leave_one_client_and_not_one_descriptor_more(tmp_path: Path) -> None:
    async with open_model_server(otherwise=says("ok")) as server, open_wired(tmp_path, server) as (bench, transports):
        open_before: set[int] = set()
        for number in range(300):
            await bench.say(f"/model m{number}")
            assert (await bench.say("hello")).text == "ok"
            assert ": open, 1 leased, 0 in flight" in repr(transports)
            if number >= 10:
                open_before.add(descriptors())
        assert len(open_before) == 1
        assert live_clients() == 1
        assert [request.body["model"] for request in server.requests] == [f"m{number}" for number in range(300)]
        assert server.connected == 1  # they all went over one connection
    assert live_clients() == 0


@pytest.mark.proves("case 53", "case 33", "lease/evict")
async def test_an_evicted_client_is_closed_and_can_ask_nothing_more(tmp_path: Path) -> None:
    async with open_model_server() as server, open_wired(tmp_path, server, idle=0.05) as (bench, transports):
        before = descriptors()
        await bench.say("hello")
        agent = agent_of(bench)
        assert agent
        client = agent.model
        await evict(bench, "operator")
        await until(lambda: "1 leased" not in repr(transports))
        with pytest.raises(RuntimeError, match="this lease was released"):
            await client.answer(ask_for(client, UserMessage("still there?")), lambda event: None)
        await until(lambda: server.connections == 0)  # by time alone: nobody says anything
        await until(lambda: descriptors() == before)
        await until(lambda: repr(transports) == "<Transports 0/16: none>")
        assert (await bench.say("again")).text == "You said: again"


@pytest.mark.proves("case 26", "turn/evict")
async def test_after_an_attempted_eviction_a_busy_agents_client_still_works(tmp_path: Path) -> None:
    async with (
        open_model_server(calls_tool(("list_files", {}), stall_after=0)) as server,
        open_wired(tmp_path, server) as (bench, _),
    ):
        mail = await bench.send("list")
        await server.until(lambda server: server.stalled == 1)
        agent = agent_of(bench)
        assert not bench.gateway.residents.evict(session_of(bench).id)
        assert relieve(bench.gateway, budget=1) == 0
        for newcomer in ("first", "second", "third"):
            await bench.say("hello", ChatKey("test", newcomer))
        assert agent_of(bench) is agent
        server.resume()
        assert "The folder is empty" in (await mail.answered()).text
        assert (await bench.say("hello")).text == "You said: hello"
        assert agent_of(bench) is agent
