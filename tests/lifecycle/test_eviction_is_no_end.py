"""An agent that leaves is not the end of its conversation: with real processes and a real shell."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.core.keys import ChatKey
from holdfast.core.settings import ExpirySettings, ResidentSettings, Settings
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import until

from .events import ENDINGS, EVICTIONS, IDLE_TTL, agent_of, awake, end, evict, open_small, session_of
from .workspace import TOOLS, alive, gone, obedient, start

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

OTHER = ChatKey("test", "other")
SETTINGS = Settings(
    residents=ResidentSettings(limit=2, idle_ttl=IDLE_TTL),
    expiry=ExpirySettings(rules=(f"{CHAT} idle 1d force",)),
)
"""Conversations of CHAT expire, whatever they own; those of OTHER don't."""


@asynccontextmanager
async def open_workspace(folder: Path) -> AsyncIterator[Bench]:
    await anyio.sleep(1)  # a next start is later
    async with open_small(folder, obedient, settings=SETTINGS, tools=TOOLS) as bench:
        yield bench


async def shell(bench: Bench, command: str, chat: ChatKey = CHAT) -> str:
    return (await bench.say(f"shell {command}", chat)).text


async def settle_in(bench: Bench, folder: Path, chat: ChatKey = CHAT) -> tuple[list[int], str]:
    """A process in the background, and a shell that is elsewhere and knows something; the shell's number."""
    family = await start(bench, chat=chat)
    await shell(bench, f"mkdir -p '{folder}/elsewhere'; cd '{folder}/elsewhere'; WORD=kept", chat)
    return family, await shell(bench, "echo $$", chat)


# ── eviction ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 1", "case 31", "case 35", "processes/evict")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_after_any_eviction_the_process_and_the_shell_are_there_with_a_fresh_client(
    tmp_path: Path, route: str
) -> None:
    async with open_workspace(tmp_path) as bench:
        family, pid = await settle_in(bench, tmp_path)
        session, before = session_of(bench), agent_of(bench)
        opened = len(bench.model.leased)
        await evict(bench, route)
        await until(lambda: bench.model.leases == len(bench.gateway.residents))
        assert session_of(bench) is session
        assert alive(*family, int(pid))
        assert await shell(bench, "pwd; echo $WORD $$") == f"{tmp_path}/elsewhere\nkept {pid}"
        assert await start(bench) == family
        assert agent_of(bench) not in (None, before)
        assert len(bench.model.leased) > opened
        assert session_of(bench).owns == ["server", "shell"]


@pytest.mark.proves("invariant 1", "case 31")
async def test_evicted_again_and_again_it_owns_the_same(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as bench:
        family, pid = await settle_in(bench, tmp_path)
        for route in (*EVICTIONS, *EVICTIONS):
            await evict(bench, route)
            assert await shell(bench, "echo $$") == pid
        assert alive(*family)
        assert len(session_of(bench).owns) == 2


# ── the end ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("case 61", "processes/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_the_end_closes_all_that_was_started_under_whichever_name(tmp_path: Path, way: str) -> None:
    async with open_workspace(tmp_path) as bench:
        started = [pid for name in ("server", "session", "../server", "1") for pid in await start(bench, name)]
        others, _ = await settle_in(bench, tmp_path, OTHER)
        assert alive(*started)
        await end(bench, way)
        await until(lambda: gone(*started))
        assert alive(*others)
        assert not set(started) & set(await start(bench))  # the next conversation has its own


@pytest.mark.proves("invariant 1", "case 34")
@pytest.mark.parametrize("way", ENDINGS)
async def test_eviction_and_end_differ_exactly_in_what_the_conversation_owns(tmp_path: Path, way: str) -> None:
    async with open_workspace(tmp_path) as bench:
        owned = {chat: await settle_in(bench, tmp_path / chat.chat, chat) for chat in (OTHER, CHAT)}
        rows = {chat: await bench.store.open_session(chat) for chat in owned}
        assert bench.gateway.residents.evict(session_of(bench, OTHER).id)
        await end(bench, way)
        family, pid = owned[CHAT]
        await until(lambda: awake(bench) is None and not bench.model.leases and gone(*family, int(pid)))

        async def state(chat: ChatKey) -> dict[str, bool]:
            family, pid = owned[chat]
            row = rows[chat]
            stored = row and await bench.store.session(row.id)
            assert stored
            return {
                "has an agent": agent_of(bench, chat) is not None,
                "has its history": len(await bench.store.history(stored.id)) >= 6,
                "is open": stored.ended is None,
                "process": alive(*family),
                "shell": alive(int(pid)),
            }

        evicted, ended = await state(OTHER), await state(CHAT)
        same = {"has an agent": False, "has its history": True}
        assert evicted == {**same, "is open": True, "process": True, "shell": True}
        assert ended == {**same, "is open": False, "process": False, "shell": False}


# ── all that is neither ─────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("processes/turn", "processes/model", "processes/reasoning", "processes/undo")
@pytest.mark.parametrize("event", ["another turn", "/model other", "/reasoning high", "/undo"])
async def test_nothing_else_that_happens_in_a_conversation_touches_its_processes(tmp_path: Path, event: str) -> None:
    async with open_workspace(tmp_path) as bench:
        family, pid = await settle_in(bench, tmp_path)
        told = len(await bench.said())
        assert (await bench.say(event)).outcome == "ok"
        now = agent_of(bench)
        assert now is None or now.config.name == ("other" if "model" in event else "scripted")
        assert session_of(bench).controls.reasoning == ("high" if "reasoning" in event else "")
        assert len(await bench.said()) - told == {"another turn": 2, "/undo": -4}.get(event, 0)
        assert alive(*family, int(pid))
        assert await start(bench) == family
        assert await shell(bench, "echo $WORD $$") == f"kept {pid}"


@pytest.mark.proves("processes/shutdown")
async def test_with_the_gateway_its_processes_end_and_the_conversation_stays_open(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as bench:
        family, pid = await settle_in(bench, tmp_path)
        session = session_of(bench).id
        await bench.gateway.drain(20)
        assert alive(*family, int(pid))
    await until(lambda: gone(*family, int(pid)))
    async with open_workspace(tmp_path) as bench:
        assert not set(family) & set(await start(bench))
        assert session_of(bench).id == session
