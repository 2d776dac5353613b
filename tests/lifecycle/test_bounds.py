"""The bounds of warm agents besides their number: idle time and memory; and all three as they change while it runs."""

from pathlib import Path

import anyio
import pytest

from holdfast.testing.scripted import echo

from .events import Door, open_small, session_of
from .test_residents import HUGE, TTL, agent, begin, bounds, key, resident, settled

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

# ── idle time ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("case 18")
async def test_idle_past_its_time_goes_and_fresh_stays(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo, settings=bounds()) as bench:
        for name in "abc":
            await bench.say("hello", key(name))
        await anyio.sleep(TTL - 10)
        assert resident(bench) == "abc"
        await bench.say("again", key("b"))
        await anyio.sleep(11)
        assert resident(bench) == "b"
        await anyio.sleep(TTL - 12)
        assert resident(bench) == "b"
        await anyio.sleep(2)
        assert (resident(bench), bench.model.leases) == ("", 0)


@pytest.mark.proves("case 19")
async def test_one_that_has_never_been_idle_is_left_alone_by_every_sweep(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(memory_budget=1)) as bench:
        (first,) = await begin(bench, door, "a")
        await anyio.sleep(3 * TTL)
        assert bench.gateway.residents.relieve(HUGE) == 0
        assert not bench.gateway.residents.evict(session_of(bench, key("a")).id)
        await settled()
        assert resident(bench) == "a"
        door.open()
        assert (await first.answered()).outcome == "ok"


@pytest.mark.proves("invariant 2", "case 25")
async def test_the_idle_sweep_skips_the_busy(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds()) as bench:
        for name in "abc":
            await bench.say("hello", key(name))
        await anyio.sleep(TTL - 10)
        (busy,) = await begin(bench, door, "b")
        before = agent(bench, "b")
        await anyio.sleep(2 * TTL)
        assert resident(bench) == "b"
        door.open()
        assert (await busy.answered()).outcome == "ok"
        await anyio.sleep(TTL - 10)  # its time begins with its answer
        assert agent(bench, "b") is before
        await anyio.sleep(11)
        assert resident(bench) == ""


# ── memory ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 2")
async def test_under_memory_pressure_the_largest_go_first_be_they_newer_but_none_mid_turn(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds()) as bench:
        for name, size in zip("abcde", (10, 3000, 90_000, 20, 6000), strict=True):
            await bench.say("x" * size, key(name))
        (busy,) = await begin(bench, door, "c")
        held = {name: agent(bench, name).context.size for name in "abcde"}
        assert bench.gateway.residents.relieve(1) == 1
        await settled()
        assert resident(bench) == "abcd"  # e was the newest of those who are idle
        assert bench.gateway.residents.relieve(held["b"] + 1) == 2
        await settled()
        assert resident(bench) == "ac"  # b, and the larger of the small ones
        assert bench.gateway.residents.relieve(HUGE) == 1
        await settled()
        assert resident(bench) == "c"
        door.open()
        assert (await busy.answered()).outcome == "ok"


@pytest.mark.proves("invariant 2")
async def test_pressure_goes_by_what_agents_hold_by_now(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo, settings=bounds()) as bench:
        for name, size in zip("ab", (100, 5000), strict=True):
            await bench.say("x" * size, key(name))
        await bench.say("x" * 9000, key("a"))
        assert bench.gateway.residents.relieve(1) == 1
        await settled()
        assert resident(bench) == "b"


# ── other bounds, while it runs ─────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 2", "case 15")
async def test_another_limit_holds_at_once_and_costs_no_turn(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds(limit=5)) as bench:
        (busy,) = await begin(bench, door, "a")
        for name in "bcde":
            await bench.say("hello", key(name))
        bench.gateway.change(bounds(limit=2))
        await settled()
        assert resident(bench) == "ade"
        door.open()
        assert (await busy.answered()).outcome == "ok"
        await settled()
        assert resident(bench) == "ae"
        bench.gateway.change(bounds(limit=3))
        for name in "fg":
            await bench.say("hello", key(name))
        await settled()
        assert resident(bench) == "afg"


@pytest.mark.proves("case 18")
async def test_another_idle_time_holds_at_once_also_for_those_who_wait(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo, settings=bounds()) as bench:
        await bench.say("hello", key("a"))
        await anyio.sleep(100)
        await bench.say("hello", key("b"))
        bench.gateway.change(bounds(idle_ttl=50))
        await settled()
        assert resident(bench) == "b"
        bench.gateway.change(bounds(idle_ttl=5000))
        await anyio.sleep(4000)
        assert resident(bench) == "b"
        await anyio.sleep(1001)
        assert resident(bench) == ""


@pytest.mark.proves("invariant 2")
async def test_another_memory_budget_holds_at_the_watchers_next_look(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door, settings=bounds()) as bench:
        (busy,) = await begin(bench, door, "a")
        for name in "bc":
            await bench.say("hello", key(name))
        await anyio.sleep(60)
        assert resident(bench) == "abc"
        bench.gateway.change(bounds(memory_budget=1))
        await anyio.sleep(6)
        assert resident(bench) == "a"
        bench.gateway.change(bounds())
        await bench.say("hello", key("b"))
        await anyio.sleep(60)
        assert resident(bench) == "ab"
        door.open()
        assert (await busy.answered()).outcome == "ok"
