"""What was set for a conversation: kept by everything but its end. By reflection, so that nothing is left out."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.messages import AssistantMessage, Message, UserMessage
from holdfast.core.protocols import Controls
from holdfast.gateway.sessions import Session
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.models import open_model_server
from holdfast.testing.processes import running_gateway
from holdfast.testing.scripted import calls, echo, until
from holdfast.testing.virtual import run_virtual

from .events import ENDINGS, EVICTIONS, agent_of, awake, end, evict, open_small, session_of, shut_down

pytestmark = pytest.mark.anyio

MARK = "set-for-this-conversation"
OTHER = "From here on the model is other; earlier answers were given by scripted."
KEY = "sk-the-whole-secret-0123456789"


def filled() -> Controls:
    """Controls in which every field is set, also one that is added next year."""
    return Controls(**{field.name: something(field.name, field.type) for field in msgspec.structs.fields(Controls)})


def something(name: str, kind: Any) -> Any:
    known = {str: f"{MARK}-{name}", tuple[str, ...]: (f"{MARK}-{name}",), bool: True, int: 7, float: 7.5}
    if kind not in known:
        pytest.fail(f"Controls.{name} is a {kind}: say here how it is filled, so that its life is tested")
    return known[kind]


class Witness:
    """Says what the user said, and keeps the session of CHAT as it was while that was answered."""

    bench: Bench
    session: Session
    controls: Controls
    state: dict[str, Any]

    async def __call__(self, messages: Sequence[Message], emit: Any) -> str:
        if agent_of(self.bench):
            self.session = session_of(self.bench)
            self.controls = self.session.controls
            self.state = vars(self.session).copy()
        return await echo(messages, emit)


@asynccontextmanager
async def open_witnessed(folder: Path) -> AsyncIterator[tuple[Bench, Witness]]:
    witness = Witness()
    folder.mkdir(exist_ok=True)
    await anyio.sleep(1)  # a next start is later
    async with open_small(folder, witness) as bench:
        witness.bench = bench
        yield bench, witness


async def set_controls(bench: Bench, controls: Controls) -> None:
    chat = bench.gateway.awake[CHAT]
    with chat.held():
        await bench.gateway.conversations.control(chat, session_of(bench), controls)


async def set_everything(bench: Bench) -> Controls:
    """Set all that can be set in a conversation that has begun, and has a warm agent afterwards."""
    wanted = filled()
    assert all(getattr(wanted, name) != getattr(Controls(), name) for name in Controls.__struct_fields__)
    await bench.say("hello")
    await set_controls(bench, wanted)
    await bench.say("with another model")
    await set_controls(bench, wanted)  # once more, as a turn uses some of it up
    assert agent_of(bench)
    return wanted


async def stored(bench: Bench) -> Controls:
    row = await bench.store.open_session(CHAT)
    assert row
    return row.controls


def told(bench: Bench) -> list[tuple[str, ...]]:
    """The notes that came with each of the user's messages, as the model was last sent them."""
    messages = [msgspec.json.decode(raw, type=Message) for raw in bench.model.requests[-1][2]]
    return [message.notes for message in messages if isinstance(message, UserMessage)]


def cells(folder: Path) -> list[str]:
    """Every text that is stored, in whatever table."""
    with closing(sqlite3.connect(folder / "holdfast.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [str(cell) for table in tables for row in db.execute(f"SELECT * FROM '{table}'") for cell in row]


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


# ── what each event does to them ────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("overrides/turn", "overrides/model", "notes/turn", "notes/model")
async def test_another_model_answers_every_turn_from_then_on_and_is_told_so_once(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        await bench.say("/model other")
        assert await stored(bench) == Controls(model="other", notes=(OTHER,))
        for text in ("one", "two"):
            await bench.say(text)
            assert await stored(bench) == Controls(model="other") == session_of(bench).controls
        assert bench.model.leased == ["scripted", "other"]
        assert told(bench) == [(), (OTHER,), ()]


@pytest.mark.virtual
@pytest.mark.proves("overrides/reasoning", "notes/reasoning")
async def test_another_effort_holds_from_then_on_and_leaves_the_note_where_it_is(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        await bench.say("/model other")
        await bench.say("/reasoning high")
        assert await stored(bench) == Controls(model="other", reasoning="high", notes=(OTHER,))
        await bench.say("one")
        await bench.say("two")
        assert bench.model.efforts == ["", "high", "high"]
        assert told(bench) == [(), (OTHER,), ()]
        assert await stored(bench) == Controls(model="other", reasoning="high")


@pytest.mark.virtual
@pytest.mark.proves("overrides/undo", "notes/undo")
async def test_undo_leaves_all_that_was_set(tmp_path: Path) -> None:
    async with open_witnessed(tmp_path) as (bench, witness):
        wanted = await set_everything(bench)
        await session_of(bench).own("something", nothing)  # so that it stays in memory
        assert "undone" in (await bench.say("/undo")).text
        assert await stored(bench) == wanted
        await bench.say("on we go")
        assert witness.controls == wanted
        assert len(told(bench)) == 2


@pytest.mark.virtual
@pytest.mark.proves("overrides/evict", "notes/evict", "invariant 5")
@pytest.mark.parametrize("owns", [True, False], ids=["awake", "dormant"])
@pytest.mark.parametrize("route", EVICTIONS)
async def test_all_that_was_set_survives_eviction(tmp_path: Path, route: str, owns: bool) -> None:
    async with open_witnessed(tmp_path) as (bench, witness):
        wanted = await set_everything(bench)
        if owns:
            await session_of(bench).own("something", nothing)
        await evict(bench, route)
        await until(lambda: (awake(bench) is not None) == owns)
        assert await stored(bench) == wanted
        await bench.say("here again")
        assert witness.controls == wanted
        assert bench.model.leased[-1] == wanted.model
        assert bench.model.efforts[-1] == wanted.reasoning
        assert told(bench)[-1] == wanted.notes


@pytest.mark.virtual
@pytest.mark.proves("overrides/shutdown", "overrides/crash", "notes/shutdown", "notes/crash", "invariant 5")
@pytest.mark.parametrize("leave", ["shutdown", "crash"])
async def test_all_that_was_set_survives_the_process(tmp_path: Path, leave: str) -> None:
    async with open_witnessed(tmp_path) as (bench, _):
        wanted = await set_everything(bench)
        if leave == "shutdown":
            await shut_down(bench)
    async with open_witnessed(tmp_path) as (bench, witness):
        await bench.say("here again")
        assert witness.controls == wanted
        assert (bench.model.leased, bench.model.efforts) == ([wanted.model], [wanted.reasoning])
        assert told(bench)[-1] == wanted.notes


@pytest.mark.virtual
@pytest.mark.proves("overrides/end", "notes/end", "invariant 5")
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "dormant"])
@pytest.mark.parametrize("way", ENDINGS)
async def test_nothing_that_was_set_survives_the_end(tmp_path: Path, way: str, resident: bool) -> None:
    async with open_witnessed(tmp_path) as (bench, witness):
        wanted = await set_everything(bench)
        if not resident:
            await evict(bench)
            await until(lambda: awake(bench) is None)
        await end(bench, way)
        await bench.say("a new one")
        for name in Controls.__struct_fields__:
            assert getattr(witness.controls, name) != getattr(wanted, name)
        assert (bench.model.leased[-1], bench.model.efforts[-1], told(bench)) == ("scripted", "", [()])
        await bench.say("/resume")
        await bench.say("the old one")
        assert witness.controls == Controls()


@pytest.mark.virtual
@pytest.mark.proves("overrides/end", "notes/end", "invariant 5")
@pytest.mark.parametrize("way", ENDINGS)
async def test_nothing_that_was_set_is_stored_after_the_end(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        await set_controls(bench, filled())
        assert sum(MARK in cell for cell in cells(tmp_path)) == 1
        await end(bench, way)
        assert [cell for cell in cells(tmp_path) if MARK in cell] == []


# ── a note that a crash cut off ─────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("notes/crash")
@pytest.mark.parametrize("steps", [0, 1])
async def test_a_note_whose_turn_was_cut_off_is_told_once(tmp_path: Path, steps: int) -> None:
    """Once it was stored with the message, it goes with that; before, it is told when the message is taken up."""
    reached = anyio.Event()

    async def hang(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
        if len(messages) == 1:
            return "hello"
        if len(messages) == 3 and steps:
            return calls(("list_files", "{}"))
        reached.set()
        await anyio.sleep_forever()
        return ""

    async with open_small(tmp_path, hang) as bench:
        await bench.say("hello")
        await bench.say("/model other")
        await bench.send("work")
        await reached.wait()
        assert len(await bench.said()) == (5 if steps else 2)
    await anyio.sleep(1)
    async with open_small(tmp_path, echo) as bench:
        await until(lambda: not bench.gateway.unanswered)
        await bench.say("and now?")
        assert told(bench) == [(), (OTHER,), ()]
        assert await stored(bench) == Controls(model="other")


# ── the conversation itself ─────────────────────────────────────────────────────────────────────

KEPT = {"row", "begun", "ephemeral", "next_seq", "last_mail", "notes_given", "last_used"}
"""Lasts as long as the conversation."""
OUT = {"agent", "history"}
"""Leaves with the agent."""
HELD = {"_keeper", "_stack", "_owned", "_lock"}
"""What it holds other things by, as long as it is in memory."""


def lasting(state: dict[str, Any]) -> dict[str, Any]:
    """What lasts of a session's fields. Each has to be said above to be one or the other."""
    assert set(state) == KEPT | OUT | HELD, "say above how long each field of a session lives"
    row = replace(state["row"], last_used=0.0)  # as old as the row was read; the session's own is the one that counts
    return {name: state[name] for name in KEPT} | {"row": row}


@pytest.mark.virtual
@pytest.mark.proves("invariant 5")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_each_field_of_a_session_survives_eviction_while_it_owns_something(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await set_everything(bench)
        session = session_of(bench)
        await session.own("something", nothing)
        before = vars(session).copy()
        await evict(bench, route)
        assert session_of(bench) is session
        assert lasting(vars(session)) == lasting(before)
        assert all(vars(session)[name] is before[name] for name in HELD)
        assert all(vars(session)[name] is None for name in OUT)


@pytest.mark.proves("invariant 5")
def test_each_field_of_a_session_comes_back_from_dormancy_as_if_it_had_never_gone(tmp_path: Path) -> None:
    """Of twins of which one went dormant, the next turn sees the same."""

    async def live(folder: Path, *, leaves: bool) -> dict[str, Any]:
        async with open_witnessed(folder) as (bench, witness):
            await set_everything(bench)
            known = session_of(bench)
            if leaves:
                assert bench.gateway.residents.evict(known.id)
            await anyio.sleep(1)
            assert (awake(bench) is None) == leaves
            await bench.say("once more")
            assert (witness.session is not known) == leaves
            return lasting(witness.state)

    stayed = run_virtual(partial(live, tmp_path / "one", leaves=False))
    assert run_virtual(partial(live, tmp_path / "two", leaves=True)) == stayed


@pytest.mark.virtual
@pytest.mark.proves("invariant 5")
@pytest.mark.parametrize("way", ENDINGS)
async def test_no_field_of_a_session_survives_its_end(tmp_path: Path, way: str) -> None:
    """The next conversation is as one in a chat where nobody ever was."""
    async with open_witnessed(tmp_path / "virgin") as (bench, witness):
        await bench.say("hello")
        virgin = lasting(witness.state)
    async with open_witnessed(tmp_path / "used") as (bench, witness):
        await set_everything(bench)
        if way != "expiry":  # what still runs keeps a conversation from expiring
            await session_of(bench).own("something", nothing)
        used = witness.state
        await anyio.sleep(1)
        await end(bench, way)
        mail = await bench.send("hello")
        await mail.answered()
        state, again = witness.state, lasting(witness.state)
    assert (again["last_mail"], state["_owned"]) == (mail.incoming.id, {})
    assert again["last_used"] >= used["last_used"] + 1
    assert again["row"].id != used["row"].id
    assert not any(state[name] is used[name] for name in HELD - {"_keeper"})
    for fields in (again, virgin):
        del fields["last_mail"], fields["last_used"]
        row = replace(fields["row"], id="", created=0.0)
        # Of an expiry the people are told with the next answer; that is the new conversation's own.
        fields["row"] = replace(row, controls=replace(row.controls, notices=())) if way == "expiry" else row
    assert again == virgin


# ── for real: another process, a real kill ──────────────────────────────────────────────────────


@pytest.mark.proves("overrides/crash")
async def test_a_killed_process_leaves_what_was_set_and_never_a_key(tmp_path: Path) -> None:
    async with open_model_server() as server:
        settings = {
            "HOLDFAST_MODEL__PROVIDER": "custom",
            "HOLDFAST_MODEL__NAME": "first",
            "HOLDFAST_MODEL__BASE_URL": server.base_url,
            "HOLDFAST_MODEL__API_KEY": KEY,
        }
        await anyio.to_thread.run_sync(partial(talk_and_kill, tmp_path, settings))
    last = server.requests[-1]
    assert (last.body["model"], last.body["reasoning_effort"]) == ("other", "high")
    assert last.headers["authorization"] == f"Bearer {KEY}"
    assert any("other" in cell and "high" in cell for cell in cells(tmp_path))
    assert not [cell for cell in cells(tmp_path) if KEY in cell]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []


def talk_and_kill(home: Path, settings: dict[str, str]) -> None:
    with running_gateway(home, settings) as gateway:
        for text in ("hello", "/model other", "/reasoning high"):
            gateway.say("a", text)
        gateway.kill()
        gateway.start()
        gateway.say("a", "here again")
        gateway.kill()
