"""Who has a warm agent: as many as the limit says, the least recently used leaves, and no turn pays for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.agent.agent import Agent
from holdfast.core.keys import ChatKey
from holdfast.core.settings import ResidentSettings, Settings
from holdfast.gateway.mail import Mail
from holdfast.testing.gateways import Bench
from holdfast.testing.scripted import echo, until

from .events import Door, agent_of, open_small, session_of

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

TTL = 600.0
HUGE = 2**60


def bounds(limit: int = 99, idle_ttl: float = TTL, memory_budget: int = HUGE) -> Settings:
    return Settings(residents=ResidentSettings(limit=limit, idle_ttl=idle_ttl, memory_budget=memory_budget))


def key(name: str) -> ChatKey:
    return ChatKey("test", name)


def resident(bench: Bench) -> str:
    """The chats that have a warm agent, in the order of the alphabet."""
    return "".join(sorted(chat.chat for chat in bench.gateway.awake if agent_of(bench, chat)))


def agent(bench: Bench, name: str) -> Agent:
    found = agent_of(bench, key(name))
    assert found
    return found


async def begin(bench: Bench, door: Door, names: str) -> list[Mail]:
    """A long turn in each of these chats."""
    mails = [await bench.send("wait", key(name)) for name in names]
    await door.has(waiting=len(names))
    return mails


async def settled() -> None:
    """Give whoever is to leave the time to do so; an idle one over the limit lingers for a moment."""
    await anyio.sleep(1)


# ── the limit ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("case 15")
async def test_one_over_the_limit_and_the_oldest_goes(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo, settings=bounds(limit=3)) as bench:
        for name in "cab":
            await bench.say("hello", key(name))
        await settled()
        assert resident(bench) == "abc"
        await bench.say("hello", key("d"))
        await settled()
        assert resident(bench) == "abd"
        assert bench.model.leases == 3


@pytest.mark.proves("case 16")
async def test_one_that_was_used_again_is_not_the_oldest_any_more(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo, settings=bounds(limit=3)) as bench:
        for name in "abca":
            await bench.say("hello", key(name))
        for newcomer, left in (("d", "acd"), ("e", "ade"), ("f", "def")):
            await bench.say("hello", key(newcomer))
            await settled()
            assert resident(bench) == left


@pytest.mark.proves("case 20")
async def test_a_message_that_finds_its_agent_refreshes_the_order_before_it_is_answered(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=2)) as bench:
        for name in "ab":
            await bench.say("hello", key(name))
        found = agent(bench, "a")
        await begin(bench, door, "a")
        await bench.say("hello", key("c"))
        await settled()
        assert resident(bench) == "ac"  # though a is in its turn still: b is the oldest by now
        assert agent(bench, "a") is found


@pytest.mark.proves("case 27")
async def test_filled_to_the_limit_there_is_and_one_more_the_oldest_goes(tmp_path: Path) -> None:
    limit = ResidentSettings().limit
    assert limit == 128
    names = [f"{number:03}" for number in range(limit + 1)]
    async with open_small(tmp_path, echo, settings=bounds(limit)) as bench:
        for name in names[:limit]:
            await bench.say("hello", key(name))
        await settled()
        assert resident(bench) == "".join(names[:limit])
        first = session_of(bench, key(names[0])).id
        await bench.say("one more", key(names[-1]))
        await settled()
        assert resident(bench) == "".join(names[1:])
        assert bench.model.leases == limit
        again = await bench.say("I am back", key(names[0]))
        assert (again.text, again.session) == ("you said I am back", first)


@pytest.mark.proves("case 9")
@pytest.mark.parametrize("command", ["/reset", "/new"])
async def test_a_reset_removes_the_agent(tmp_path: Path, command: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello", key("a"))
        before = agent(bench, "a")
        await bench.say(command, key("a"))
        await until(lambda: not resident(bench))
        assert (len(bench.gateway.residents), bench.model.leases) == (0, 0)
        await bench.say("hello", key("a"))
        assert agent(bench, "a") is not before


@pytest.mark.proves("case 10")
@pytest.mark.parametrize("way", ["reset", "operator", "pressure"])
async def test_removing_one_leaves_the_others(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo, settings=bounds()) as bench:
        for name in "abc":
            await bench.say("x" * 1000 if name == "b" else "hello", key(name))
        others = [agent(bench, name) for name in "ac"]
        await settled()
        if way == "reset":
            await bench.say("/reset", key("b"))
        elif way == "operator":
            assert bench.gateway.residents.evict(session_of(bench, key("b")).id)
        else:
            assert bench.gateway.residents.relieve(1) == 1
        await settled()
        assert resident(bench) == "ac"
        for name, before in zip("ac", others, strict=True):
            await bench.say("again", key(name))
            assert agent(bench, name) is before


# ── the limit, and turns ────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 2", "case 21")
async def test_while_the_oldest_is_mid_turn_it_stays_and_nobody_newer_goes_instead(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=2)) as bench:
        (busy,) = await begin(bench, door, "a")
        for name in "bc":
            await bench.say("hello", key(name))
        with capture_logs() as logs:
            await anyio.sleep(TTL / 2)
        assert resident(bench) == "abc"
        assert not logs
        before = agent(bench, "a")
        door.open()
        assert (await busy.answered()).outcome == "ok"
        await settled()
        assert resident(bench) == "ac"  # its answer was a use: b is the least recently used now
        assert agent(bench, "a") is before


@pytest.mark.proves("invariant 2", "case 22")
async def test_two_over_the_oldest_busy_and_the_next_idle_exactly_the_idle_one_goes(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=3)) as bench:
        (busy,) = await begin(bench, door, "a")
        for name in "bcd":
            await bench.say("hello", key(name))
        await settled()
        assert resident(bench) == "abcd"
        await bench.say("hello", key("e"))
        await settled()
        assert resident(bench) == "acde"
        door.open()
        assert (await busy.answered()).outcome == "ok"
        await settled()
        assert resident(bench) == "ade"


@pytest.mark.proves("invariant 2", "case 23")
async def test_all_busy_none_goes_and_a_warning_says_mid_turn(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=2)) as bench:
        with capture_logs() as logs:
            mails = await begin(bench, door, "abcdef")
            await settled()
        assert resident(bench) == "abcdef"
        assert [line["log_level"] for line in logs if "mid-turn" in line["event"]] == ["warning"]  # one, not four
        door.open()
        assert {(await mail.answered()).outcome for mail in mails} == {"ok"}
        with capture_logs() as logs:
            await settled()
        assert len(resident(bench)) == 2
        assert not logs


@pytest.mark.proves("invariant 2", "case 28")
async def test_limit_four_all_busy_and_a_newcomer_five_stay_all_usable_and_settle_at_four(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=4)) as bench:
        mails = await begin(bench, door, "abcde")
        await settled()
        assert (resident(bench), bench.model.leases) == ("abcde", 5)
        agents = {name: agent(bench, name) for name in "abcde"}
        door.open()
        assert [(await mail.answered()).text for mail in mails] == ["you said wait"] * 5
        assert all(agent(bench, name) is agents[name] for name in "abcde")  # usable to the end of their turns
        await settled()
        assert (resident(bench), bench.model.leases) == ("bcde", 4)
        assert [(await bench.say("and now?", key(name))).outcome for name in "abcde"] == ["ok"] * 5


@pytest.mark.proves("invariant 2")
async def test_a_newcomer_never_waits_for_a_seat(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=1)) as bench:
        await begin(bench, door, "abc")
        began = anyio.current_time()
        for name in "defg":
            assert (await bench.say("hello", key(name))).text == "you said hello"
        assert anyio.current_time() == began  # not a moment
        assert door.inside == 3


@pytest.mark.proves("case 24")
@pytest.mark.parametrize("route", ["limit", "idle", "pressure", "operator"])
async def test_an_agent_under_construction_blocks_no_eviction_of_others(tmp_path: Path, route: str) -> None:
    site = anyio.Event()
    under_construction = False

    @asynccontextmanager
    async def around(_: Any) -> AsyncIterator[None]:
        if under_construction:
            await site.wait()
        yield

    async with open_small(tmp_path, echo, settings=bounds(limit=2)) as bench:
        bench.model.around = around
        await bench.say("hello", key("a"))
        under_construction = True
        mail = await bench.send("hello", key("b"))
        await until(lambda: bench.gateway.awake[key("b")].building is not None)
        under_construction = False
        if route == "limit":
            for name in "cd":
                await bench.say("hello", key(name))
        elif route == "idle":
            await anyio.sleep(TTL)
        elif route == "pressure":
            assert bench.gateway.residents.relieve(HUGE) == 1
        else:
            assert bench.gateway.residents.evict(session_of(bench, key("a")).id)
        await settled()
        assert resident(bench) == ("cd" if route == "limit" else "")
        assert bench.gateway.awake[key("b")].building
        site.set()
        assert (await mail.answered()).outcome == "ok"
