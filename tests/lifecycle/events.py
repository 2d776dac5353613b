"""The events of the table, each done to a conversation the way the world does it, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from holdfast.agent.agent import Agent
from holdfast.core.keys import ChatKey
from holdfast.core.messages import Message
from holdfast.core.protocols import Channel, Tool
from holdfast.core.settings import ExpirySettings, ResidentSettings, Settings
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.expiry import expire
from holdfast.gateway.sessions import Session
from holdfast.gateway.watch import relieve
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import Emit, Gate, Script, echo, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.files import TOOLS

IDLE_TTL = 600.0
EXPIRES_AFTER = 86400.0
SETTINGS = Settings(
    residents=ResidentSettings(limit=2, idle_ttl=IDLE_TTL),
    expiry=ExpirySettings(policy="idle 1d"),
)
"""Two seats, ten minutes; conversations expire after a day."""


@asynccontextmanager
async def open_small(
    folder: Path,
    script: Script,
    *,
    settings: Settings = SETTINGS,
    tools: Sequence[Tool] = TOOLS,
    channels: Mapping[str, Channel] | None = None,
) -> AsyncIterator[Bench]:
    """A gateway in which every event is near, on virtual time."""
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bench(folder, script, settings=settings, tools=tools, channels=channels, clock=clock) as bench:
        yield bench


class Door(Gate):
    """A model that lets everything pass but "wait", which waits until it is opened."""

    async def __call__(self, messages: Sequence[Message], emit: Emit) -> str:
        return await (super().__call__(messages, emit) if messages[-1].text == "wait" else echo(messages, emit))


def awake(bench: Bench, chat: ChatKey = CHAT) -> AwakeChat | None:
    return bench.gateway.awake.get(chat)


def session_of(bench: Bench, chat: ChatKey = CHAT) -> Session:
    """The conversation in memory; there must be one."""
    found = bench.gateway.awake[chat].session
    assert found
    return found


def agent_of(bench: Bench, chat: ChatKey = CHAT) -> Agent | None:
    """The warm agent, if there is one."""
    found = bench.gateway.awake.get(chat)
    return found.session.agent if found and found.session else None


# ── eviction, by every route ────────────────────────────────────────────────────────────────────


async def _by_limit(bench: Bench) -> None:
    for name in ("first newcomer", "second newcomer"):
        await bench.say("hello", ChatKey("test", name))


async def _by_idle_time(bench: Bench) -> None:
    await anyio.sleep(IDLE_TTL + 1)


async def _by_pressure(bench: Bench) -> None:
    assert relieve(bench.gateway, budget=1)


async def _by_operator(bench: Bench) -> None:
    assert bench.gateway.residents.evict(session_of(bench).id)


EVICTIONS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "limit": _by_limit,
    "idle": _by_idle_time,
    "pressure": _by_pressure,
    "operator": _by_operator,
}


async def evict(bench: Bench, route: str = "pressure") -> None:
    """Let the agent of CHAT go, by a route; returns when it has gone."""
    assert agent_of(bench)
    await EVICTIONS[route](bench)
    await until(lambda: agent_of(bench) is None)


# ── the end of a conversation, by every way ─────────────────────────────────────────────────────


async def _by_new(bench: Bench) -> None:
    await bench.say("/new")


async def _by_reset(bench: Bench) -> None:
    await bench.say("/reset")


async def _by_expiry(bench: Bench) -> None:
    assert isinstance(bench.clock, VirtualClock)
    bench.clock.jump(EXPIRES_AFTER)
    await anyio.sleep(61)  # the watcher comes round every minute


async def _by_operators_end(bench: Bench) -> None:
    row = await bench.store.open_session(CHAT)
    assert row
    await bench.gateway.end(row.id)


ENDINGS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "new": _by_new,
    "reset": _by_reset,
    "expiry": _by_expiry,
    "operator": _by_operators_end,
}


async def end(bench: Bench, way: str = "new") -> None:
    """End the open conversation of CHAT; returns when that is stored."""
    row = await bench.store.open_session(CHAT)
    assert row
    await ENDINGS[way](bench)
    ended = await bench.store.session(row.id)
    assert ended
    assert ended.ended is not None


async def expire_now(bench: Bench) -> int:
    """One round of the watcher."""
    return await expire(bench.gateway)


# ── the end of the process ──────────────────────────────────────────────────────────────────────


async def shut_down(bench: Bench) -> None:
    """Before leaving the bench's block: what SIGTERM does. Leaving it without this is a crash that closes files."""
    await bench.gateway.drain(20)
