"""What an agent holds of its conversation: messages, tools and prompt go with it, and come back to the byte."""

import gc
import sqlite3
import weakref
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agent.agent import Agent
from holdfast.core.messages import Message, UserMessage
from holdfast.core.protocols import ToolSpec
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import echo
from holdfast.tools.files import TOOLS

from .events import ENDINGS, EVICTIONS, agent_of, end, evict, open_small, session_of, shut_down
from .lamps import Lamps

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


async def _by_model(bench: Bench) -> None:
    assert "other" in (await bench.say("/model other")).text


async def _by_undo(bench: Bench) -> None:
    assert "undone" in (await bench.say("/undo")).text


LEAVINGS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    **{route: partial(evict, route=route) for route in EVICTIONS},
    "model": _by_model,
    "undo": _by_undo,
}
"""All that an agent leaves for, and its conversation stays."""


def agent(bench: Bench) -> Agent:
    """The warm agent of CHAT."""
    found = agent_of(bench)
    assert found
    return found


def is_gone(ref: "weakref.ref[Any]") -> bool:
    gc.collect()
    return ref() is None


async def leave(bench: Bench, drained: bool) -> None:
    """Before the block is left: as by SIGTERM, or as by a crash."""
    if drained:
        await shut_down(bench)
    await anyio.sleep(1)  # the next start is later


def sent(bench: Bench, number: int = -1) -> list[Message]:
    """The messages of a request."""
    return [msgspec.json.decode(message, type=Message) for message in bench.model.requests[number][2]]


# ── what stays while the agent stays ────────────────────────────────────────────────────────────


@pytest.mark.proves("buffer/turn", "tools/turn", "prompt/turn", "case 7", "case 12")
@pytest.mark.proves("buffer/reasoning", "tools/reasoning", "prompt/reasoning", "case 11")
async def test_turns_and_another_effort_change_nothing_but_that_the_buffer_grows(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        first = agent(bench)
        held = (first.context, first.tools, first.prompt, first.model, first.signature)
        await bench.say("two")
        await bench.say("/reasoning high")
        await bench.say("three")
        assert agent(bench) is first
        now = (first.context, first.tools, first.prompt, first.model, first.signature)
        assert all(before is after for before, after in zip(held, now, strict=True))
        assert bench.model.efforts == ["", "", "high"]
        assert [len(messages) for *_, messages in bench.model.requests] == [1, 3, 5]
        (prefix,) = {(system, tools) for system, tools, _ in bench.model.requests}
        assert prefix[0] is bench.model.requests[0][0]  # not even encoded anew


# ── the message buffer ──────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("buffer/evict", "buffer/model", "buffer/undo")
@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_the_buffer_leaves_memory_and_comes_back_from_the_store(tmp_path: Path, leaving: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        await bench.say("two")
        buffer = weakref.ref(agent(bench).context)
        await LEAVINGS[leaving](bench)
        assert is_gone(buffer)
        stored = await bench.said()
        assert [message.text for message in stored][::2] == (["one"] if leaving == "undo" else ["one", "two"])
        assert (await bench.say("three")).text == "you said three"
        *before, last = sent(bench)
        assert before == stored
        assert isinstance(last, UserMessage)
        assert last.text == "three"
        assert bool(last.notes) == (leaving == "model")


@pytest.mark.proves("buffer/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_the_end_drops_the_buffer_and_keeps_what_is_stored(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        session, buffer = session_of(bench).id, weakref.ref(agent(bench).context)
        await end(bench, way)
        assert is_gone(buffer)
        await bench.say("two")
        assert sent(bench) == [UserMessage("two")]
        row = await bench.store.session(session)
        assert row
        assert row.ended is not None
        assert [row.message.text for row in await bench.store.history(session)] == ["one", "you said one"]


@pytest.mark.proves("buffer/shutdown", "buffer/crash")
@pytest.mark.parametrize("drained", [True, False])
async def test_the_next_process_reads_the_buffer_from_the_store(tmp_path: Path, drained: bool) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        buffer = weakref.ref(agent(bench).context)
        await leave(bench, drained)
    assert is_gone(buffer)
    async with open_small(tmp_path, echo) as bench:
        await bench.say("two")
        assert [message.text for message in sent(bench)] == ["one", "you said one", "two"]


# ── the tool set ────────────────────────────────────────────────────────────────────────────────


def tools_sent(bench: Bench, number: int = -1) -> list[str]:
    encoded = bench.model.requests[number][1]
    return [spec.name for spec in msgspec.json.decode(encoded, type=list[ToolSpec])] if encoded else []


@pytest.mark.proves("tools/evict", "tools/model", "tools/undo")
@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_the_tool_set_is_let_go_and_is_identical_when_it_is_built_anew(tmp_path: Path, leaving: str) -> None:
    """Whatever can work by then: other conversations have other tools, and theirs fill the catalogue."""
    lamps = Lamps("red", "green", "blue")
    async with open_small(tmp_path, echo, tools=lamps.tools) as bench:
        await bench.say("one")
        tools, fingerprint = weakref.ref(agent(bench).tools), agent(bench).tools.fingerprint
        await LEAVINGS[leaving](bench)
        await lamps.show_others(bench)
        assert is_gone(tools)
        lamps.lit = {"black"}
        await bench.say("two")
        assert bench.model.requests[-1][1] == bench.model.requests[0][1]
        assert tools_sent(bench) == ["red", "green", "blue"]
        assert agent(bench).tools.fingerprint == fingerprint


@pytest.mark.proves("tools/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_a_new_conversation_chooses_its_own_tools(tmp_path: Path, way: str) -> None:
    lamps = Lamps("red", "green", "blue")
    async with open_small(tmp_path, echo, tools=lamps.tools) as bench:
        await bench.say("one")
        tools = weakref.ref(agent(bench).tools)
        await end(bench, way)
        await lamps.show_others(bench)
        assert is_gone(tools)
        lamps.lit = {"black"}
        await bench.say("two")
        assert tools_sent(bench) == ["black"]


@pytest.mark.proves("tools/shutdown", "tools/crash")
@pytest.mark.parametrize("drained", [True, False])
async def test_the_next_process_gives_a_conversation_the_tools_it_began_with(tmp_path: Path, drained: bool) -> None:
    """Also when it has more of them, in another order, and those can't work at the moment."""
    lamps = Lamps("red", "green")
    async with open_small(tmp_path, echo, tools=lamps.tools) as bench:
        await bench.say("one")
        before = bench.model.requests[-1][1]
        await leave(bench, drained)
    lamps.lit = {"black"}
    async with open_small(tmp_path, echo, tools=[*TOOLS, *reversed(lamps.tools)]) as bench:
        await bench.say("two")
        assert bench.model.requests[-1][1] == before


# ── the system prompt ───────────────────────────────────────────────────────────────────────────


def doctor(folder: Path, prompt: str) -> None:
    """Change the stored prompt of the open conversation: what comes from the store is known by it."""
    with closing(sqlite3.connect(folder / "holdfast.db")) as database, database:
        done = database.execute("UPDATE sessions SET prompt = ? WHERE chat = ? AND ended IS NULL", (prompt, str(CHAT)))
        assert done.rowcount == 1


def prompt_sent(bench: Bench, number: int = -1) -> str:
    return str(msgspec.json.decode(bench.model.requests[number][0]))


@pytest.mark.proves("prompt/evict")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_the_prompt_comes_back_verbatim_from_the_store(tmp_path: Path, route: str) -> None:
    """It is not built anew: a newer version's wording is for new conversations."""
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        await evict(bench, route)
        doctor(tmp_path, "As an earlier version\n\tworded it: “ü”. ")
        await bench.say("two")
        assert prompt_sent(bench) == agent(bench).prompt == "As an earlier version\n\tworded it: “ü”. "


@pytest.mark.proves("prompt/evict", "prompt/model", "prompt/undo")
@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_the_prompt_is_the_same_to_the_byte_afterwards(tmp_path: Path, leaving: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        await LEAVINGS[leaving](bench)
        await bench.say("two")
        assert bench.model.requests[-1][0] == bench.model.requests[0][0]
        assert "Holdfast" in prompt_sent(bench)
        assert not {"scripted", "other"} & set(prompt_sent(bench).split())  # it names no model


@pytest.mark.proves("prompt/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_a_new_conversation_builds_a_prompt_of_its_own(tmp_path: Path, way: str) -> None:
    lamps = Lamps()
    async with open_small(tmp_path, echo, tools=lamps.tools) as bench:
        await bench.say("one")
        session = session_of(bench).id
        await evict(bench)
        doctor(tmp_path, "As an earlier version worded it.")
        await bench.say("two")
        lamps.lit = {"red"}
        await end(bench, way)
        await bench.say("three")
        assert prompt_sent(bench, 1) == "As an earlier version worded it."
        assert prompt_sent(bench) != prompt_sent(bench, 0)
        assert "You have tools." in prompt_sent(bench)
        row = await bench.store.session(session)
        assert row
        assert row.prompt == "As an earlier version worded it."  # the old one's stays with it


@pytest.mark.proves("prompt/shutdown", "prompt/crash")
@pytest.mark.parametrize("drained", [True, False])
async def test_the_next_process_sends_the_stored_prompt_verbatim(tmp_path: Path, drained: bool) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("one")
        before = bench.model.requests[-1][0]
        await leave(bench, drained)
    async with open_small(tmp_path, echo, tools=[]) as bench:
        await bench.say("two")
        assert bench.model.requests[-1][0] == before  # though this process would word it without tools
        await anyio.sleep(1)
    doctor(tmp_path, "As an earlier version worded it.")
    async with open_small(tmp_path, echo) as bench:
        await bench.say("three")
        assert prompt_sent(bench) == "As an earlier version worded it."
