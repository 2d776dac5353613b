"""The lease of a model: an agent's own, from its building to its leaving, and closed once, while nobody waits."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, UserMessage
from holdfast.core.protocols import ToolContext
from holdfast.core.settings import ExpirySettings
from holdfast.gateway.accept import CLOSE_GRACE
from holdfast.gateway.mail import Mail
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import Emit, calls, echo, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.function import tool

from .events import (
    ENDINGS,
    EVICTIONS,
    EXPIRES_AFTER,
    SETTINGS,
    agent_of,
    end,
    evict,
    expire_now,
    open_small,
    session_of,
    shut_down,
)
from .leases import Leases

pytestmark = pytest.mark.anyio

OTHER = ChatKey("test", "other")
AT_ONCE = 0.5
ONE_EXPIRES = replace(SETTINGS, expiry=ExpirySettings(policy="none", rules=("test:chat idle 1d",)))


# ── the row of the lease ────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("lease/turn")
async def test_an_agent_keeps_its_lease_over_turns(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        for _ in range(3):
            await bench.say("hello")
            await anyio.sleep(60)
            assert leases.states == ["open"]


@pytest.mark.virtual
@pytest.mark.proves("lease/evict", "case 33")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_an_eviction_releases_the_lease_and_the_next_turn_takes_a_new_one(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        await evict(bench, route)
        await until(lambda: leases.states[0] == "closed")
        newcomers = leases.states[1:]
        assert newcomers == ["open"] * len(bench.gateway.residents)
        assert (await bench.say("again")).text == "you said again"
        assert leases.states[len(newcomers) + 1] == "open"


@pytest.mark.virtual
@pytest.mark.proves("lease/model", "case 8", "case 64")
async def test_another_model_releases_the_lease_of_the_old_one(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        old = agent_of(bench)
        await bench.say("/model other")
        await until(lambda: leases.states == ["closed"])  # at once, not with the next message
        await bench.say("hello")
        new = agent_of(bench)
        assert new
        assert old
        assert new.signature != old.signature
        assert leases.states == ["closed", "open"]
        assert bench.model.leased == ["scripted", "other"]


@pytest.mark.virtual
@pytest.mark.proves("case 64", "invariant 10")
@pytest.mark.parametrize("part", ["provider", "name", "base_url", "wire", "credential_digest"])
async def test_each_part_of_what_tells_models_apart_makes_a_new_agent(tmp_path: Path, part: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        old = agent_of(bench)
        hosting = bench.gateway._hosting
        hosting.model = replace(hosting.model, **{part: "another"})
        assert (await bench.say("hello")).outcome == "ok"
        assert leases.states == ["closed", "open"]
        assert agent_of(bench) is not old
        hosting.model = replace(hosting.model, reasons=False)
        await bench.say("hello")
        assert leases.states == ["closed", "open"]  # what tells nothing apart changes nothing


@pytest.mark.virtual
@pytest.mark.proves("lease/reasoning")
async def test_another_effort_keeps_the_lease(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        await bench.say("/reasoning high")
        await anyio.sleep(60)
        await bench.say("hello")
        assert leases.states == ["open"]
        assert bench.model.efforts == ["", "high"]


@pytest.mark.virtual
@pytest.mark.proves("lease/undo")
async def test_an_undo_releases_the_lease(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        assert "undone" in (await bench.say("/undo")).text
        await until(lambda: leases.states == ["closed"])
        assert (await bench.say("again")).text == "you said again"


@pytest.mark.virtual
@pytest.mark.proves("lease/end", "case 9", "case 10")
@pytest.mark.parametrize("way", ENDINGS)
async def test_the_end_releases_the_lease_and_nobody_elses(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo, settings=ONE_EXPIRES) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        await bench.say("hello", OTHER)
        ended, other = agent_of(bench), agent_of(bench, OTHER)
        await end(bench, way)
        await until(lambda: leases.states == ["closed", "open"])
        assert agent_of(bench, OTHER) is other
        await bench.say("hello")
        assert agent_of(bench) not in (ended, None)
        assert leases.states == ["closed", "open", "open"]


@pytest.mark.virtual
@pytest.mark.proves("lease/end")
async def test_a_request_that_brings_its_own_history_releases_its_lease_with_its_answer(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        request = bench.incoming("hello", ChatKey("api", "request/1"), history=[UserMessage("earlier")])
        assert (await (await bench.gateway.accept(request)).answered()).text == "you said hello"
        await until(lambda: leases.states == ["closed"])


@pytest.mark.virtual
@pytest.mark.proves("lease/shutdown", "invariant 3")
@pytest.mark.parametrize("drained", [True, False])
async def test_a_gateway_that_leaves_closes_every_lease_once(tmp_path: Path, drained: bool) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench, close=1)
        await bench.say("hello")
        await bench.say("hello", OTHER)
        if drained:
            await shut_down(bench)
    assert leases.states == ["closed", "closed"]
    assert leases.closes == 2


# ── an agent still being built ──────────────────────────────────────────────────────────────────


async def build(bench: Bench, leases: Leases, chat: ChatKey = CHAT) -> Mail:
    """A message for which an agent is being built, until `leases.go`."""
    leases.held_up = True
    mail = await bench.send("build", chat)
    await until(lambda: leases.states[-1:] == ["opening"])
    assert bench.gateway.awake[chat].building
    return mail


@pytest.mark.virtual
@pytest.mark.proves("building/evict", "case 24")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_one_that_is_being_built_blocks_nobody_elses_eviction(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        building = await build(bench, leases, OTHER)
        await evict(bench, route)
        await until(lambda: leases.states[:2] == ["closed", "opening"])
        leases.go.set()
        assert (await building.answered()).text == "you said build"


@pytest.mark.virtual
@pytest.mark.proves("building/model")
async def test_one_that_is_being_built_is_abandoned_for_another_model(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        mail = await build(bench, leases)
        with anyio.fail_after(AT_ONCE):
            assert "other" in (await bench.say("/model other")).text
            assert (await mail.answered()).text == "you said build"
        assert leases.states == ["abandoned", "open"]
        assert bench.model.leased == ["other"]


@pytest.mark.virtual
@pytest.mark.proves("building/reasoning")
async def test_one_that_is_being_built_is_built_on_for_another_effort(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        mail = await build(bench, leases)
        await bench.say("/reasoning high")
        await anyio.sleep(1)
        assert leases.states == ["opening"]
        leases.go.set()
        assert (await mail.answered()).text == "you said build"
        assert leases.states == ["open"]
        assert bench.model.efforts == ["high"]


@pytest.mark.virtual
@pytest.mark.proves("building/end")
@pytest.mark.parametrize("way", ["new", "reset", "operator"])
async def test_one_that_is_being_built_is_abandoned_with_its_conversation(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        await evict(bench)
        dropped = await build(bench, leases)
        with anyio.fail_after(AT_ONCE):
            await end(bench, way)
            assert (await dropped.answered()).outcome == "stopped"
        await until(lambda: leases.states == ["closed", "abandoned"])
        assert (await bench.say("next")).text == "you said next"
        assert len(bench.model.requests) == 2


@pytest.mark.virtual
@pytest.mark.proves("building/end")
async def test_no_conversation_expires_while_its_agent_is_being_built(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await bench.say("hello")
        await evict(bench)
        mail = await build(bench, leases)
        assert isinstance(bench.clock, VirtualClock)
        bench.clock.jump(EXPIRES_AFTER + 1)
        assert await expire_now(bench) == 0
        leases.go.set()
        assert (await mail.answered()).text == "you said build"


@pytest.mark.virtual
@pytest.mark.proves("building/shutdown")
@pytest.mark.parametrize("drained", [True, False])
async def test_one_that_is_being_built_is_abandoned_by_a_gateway_that_leaves(tmp_path: Path, drained: bool) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench)
        await build(bench, leases)
        left = anyio.current_time()
        if drained:
            await shut_down(bench)
    assert anyio.current_time() - left < AT_ONCE
    assert leases.states == ["abandoned"]
    async with open_small(tmp_path, echo) as bench:
        await until(lambda: not bench.gateway.unanswered)
        assert [message.text for message in await bench.said()] == ["build", "you said build"]


# ── closed once, and off everyone's path ────────────────────────────────────────────────────────

LEAVINGS: dict[str, Callable[[Bench], Awaitable[Any]]] = {
    **{route: partial(evict, route=route) for route in EVICTIONS},
    "model": lambda bench: bench.say("/model other"),
    "undo": lambda bench: bench.say("/undo"),
    "new": end,
}


@pytest.mark.virtual
@pytest.mark.proves("invariant 3")
@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_a_slow_close_delays_nobody_not_even_the_next_turn(tmp_path: Path, leaving: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench, close=10)
        await bench.say("hello")
        asked = anyio.current_time()
        await LEAVINGS[leaving](bench)
        await until(lambda: leases.states[0] == "closing")
        assert leaving in EVICTIONS or anyio.current_time() - asked < AT_ONCE
        began = anyio.current_time()
        await bench.say("hello", OTHER)
        await bench.say("hello")
        assert anyio.current_time() - began < AT_ONCE
        assert leases.states[0] == "closing"
        left = anyio.current_time()
    assert anyio.current_time() - left <= CLOSE_GRACE + AT_ONCE
    assert leases.closes == len(leases.states)


@pytest.mark.virtual
@pytest.mark.proves("invariant 3", "building/end", "building/model")
@pytest.mark.parametrize("command", ["/new", "/model other"])
async def test_nor_does_one_that_is_slow_to_undo_what_it_began(tmp_path: Path, command: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        leases = Leases(bench, close=10)
        await build(bench, leases)
        with anyio.fail_after(AT_ONCE):
            await bench.say(command)
            assert (await bench.say("next")).text == "you said next"
        assert leases.states == ["closing", "open"]
    assert leases.closes == 2


@pytest.mark.virtual
@pytest.mark.proves("case 17")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_what_leaves_is_released_softly_and_off_the_callers_path(tmp_path: Path, route: str) -> None:
    """An eviction takes the lease alone; what the session owns is closed by its end."""
    lamp: list[str] = []

    @asynccontextmanager
    async def lit() -> AsyncIterator[None]:
        lamp.append("on")
        yield
        lamp.append("off")

    @tool(toolset="test")
    async def light(context: ToolContext) -> str:
        """Light the lamp."""
        await context.own("lamp", lit)
        return "lit"

    async def script(messages: Sequence[Message], emit: Emit) -> AssistantMessage | str:
        return calls(("light", "{}")) if messages[-1].text == "light" else await echo(messages, emit)

    async with open_small(tmp_path, script, tools=[light]) as bench:
        leases = Leases(bench, close=10)
        await bench.say("light")
        session = session_of(bench)
        await evict(bench, route)  # returns while the lease is still being closed
        await until(lambda: leases.states[0] == "closing")
        assert session_of(bench) is session
        with anyio.fail_after(AT_ONCE):
            await bench.say("light")
        assert lamp == ["on"]
        await end(bench)
        await until(lambda: lamp == ["on", "off"])
