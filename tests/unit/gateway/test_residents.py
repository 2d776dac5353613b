"""Who has a warm agent: least recently used leaves first, and never in the middle of a turn."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core.keys import ChatKey
from holdfast.core.messages import Message
from holdfast.core.settings import ResidentSettings, Settings
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import Emit, Gate, echo, until

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


def chats(names: str) -> list[ChatKey]:
    return [ChatKey("test", name) for name in names]


def resident(bench: Bench) -> str:
    return "".join(sorted(chat.chat for chat in bench.gateway.awake))


def limited(limit: int, idle_ttl: float = 3600) -> Settings:
    return Settings(residents=ResidentSettings(limit=limit, idle_ttl=idle_ttl))


async def test_the_least_recently_used_leaves_first(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=limited(3)) as bench:
        for chat in chats("abc"):
            await bench.say("hello", chat)
        await bench.say("again", ChatKey("test", "a"))
        await bench.say("hello", ChatKey("test", "d"))
        await until(lambda: resident(bench) == "acd")


async def test_idle_past_its_time_leaves_and_a_fresh_one_stays(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=limited(9, idle_ttl=100)) as bench:
        await bench.say("hello", ChatKey("test", "a"))
        await anyio.sleep(60)
        await bench.say("hello", ChatKey("test", "b"))
        await anyio.sleep(60)
        assert resident(bench) == "b"
        assert bench.model.leases == 1


async def test_all_busy_none_leaves_and_it_settles_when_turns_end(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=limited(4)) as bench:
        with capture_logs() as logs:
            mails = [await bench.send("hello", chat) for chat in chats("abcde")]
            await gate.has(waiting=5)
        assert len(bench.gateway.residents) == 5
        assert [entry["log_level"] for entry in logs if "mid-turn" in entry["event"]] == ["warning"]
        gate.open()
        for mail in mails:
            assert (await mail.answered()).outcome == "ok"
        await until(lambda: len(bench.gateway.residents) == 4)
        assert resident(bench) == "bcde"


async def test_a_busy_oldest_stays_and_nobody_newer_pays_for_it_while_it_is_busy(tmp_path: Path) -> None:
    gate = Gate()

    async def script(messages: object, emit: object) -> str:
        return await gate(messages, emit) if len(gate_chats) == 1 else "quick"  # type: ignore[arg-type]

    gate_chats = ["a"]
    async with open_bench(tmp_path, script, settings=limited(2)) as bench:
        busy = await bench.send("hello", ChatKey("test", "a"))
        await gate.has(waiting=1)
        gate_chats.append("others are quick")
        for chat in chats("bc"):
            await bench.say("hello", chat)
        await anyio.sleep(1)
        assert resident(bench) == "abc"
        gate.open()
        await busy.answered()
        await until(lambda: resident(bench) == "ac")  # b is the least recently used now


async def test_an_operator_can_ask_one_to_leave_but_not_mid_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mail = await bench.send("hello")
        await gate.has(waiting=1)
        session = bench.gateway.awake[CHAT].session
        assert session
        assert not bench.gateway.residents.evict(session.id)
        gate.open()
        assert (await mail.answered()).outcome == "ok"
        await until(lambda: bench.gateway.residents.evict(session.id))
        await until(lambda: not bench.gateway.awake)
        assert bench.model.leases == 0


async def test_under_memory_pressure_the_largest_idle_one_leaves_first(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        for chat, size in zip(chats("abc"), (10, 10_000, 100), strict=True):
            await bench.say("x" * size, chat)
        await anyio.sleep(1)
        assert bench.gateway.residents.relieve(1) == 1
        await until(lambda: resident(bench) == "ac")


async def test_the_same_agent_answers_again_while_it_is_warm(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("one")
        session = bench.gateway.awake[CHAT].session
        assert session
        agent = session.agent
        await bench.say("two")
        assert session.agent is agent


async def test_pressure_goes_by_what_agents_hold_now_and_leaves_the_busy_alone(tmp_path: Path) -> None:
    gate = Gate()
    held = False

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        return await gate(messages, emit) if held else await echo(messages, emit)

    async with open_bench(tmp_path, script) as bench:
        residents = bench.gateway.residents
        for chat, size in zip(chats("abcd"), (100, 300, 200, 5000), strict=True):
            await bench.say("x" * size, chat)
        await bench.say("x" * 400, ChatKey("test", "a"))  # a has grown larger than b and c
        held = True
        busy = await bench.send("hello", ChatKey("test", "d"))
        await gate.has(waiting=1)
        left = []
        for _ in range(3):
            assert residents.relieve(1) == 1
            await until(lambda: len(residents) == 3 - len(left))
            left.append(resident(bench))
        assert left == ["bcd", "cd", "d"]
        assert residents.relieve(1) == 0
        gate.open()
        assert (await busy.answered()).outcome == "ok"


async def test_the_order_by_size_stays_small_however_often_agents_are_used(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        for _ in range(50):
            for chat in chats("abc"):
                await bench.say("hello", chat)
        assert len(bench.gateway.residents._idle._heap) <= 8


async def test_a_lower_limit_and_a_shorter_time_hold_at_once(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=limited(4, idle_ttl=1000)) as bench:
        for chat in chats("abcd"):
            await bench.say("hello", chat)
            await anyio.sleep(10)
        bench.gateway.change(limited(3, idle_ttl=1000))
        await until(lambda: resident(bench) == "bcd")
        bench.gateway.change(limited(3, idle_ttl=25))
        await anyio.sleep(1)
        assert resident(bench) == "cd"
        await anyio.sleep(10)
        assert resident(bench) == "d"
        bench.gateway.change(limited(3, idle_ttl=1000))
        await anyio.sleep(500)
        assert resident(bench) == "d"


async def test_a_higher_limit_lets_those_over_it_stay(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=limited(1)) as bench:
        mails = [await bench.send("hello", chat) for chat in chats("abc")]
        await gate.has(waiting=3)
        bench.gateway.change(limited(3))
        gate.open()
        for mail in mails:
            await mail.answered()
        await anyio.sleep(10)
        assert resident(bench) == "abc"
