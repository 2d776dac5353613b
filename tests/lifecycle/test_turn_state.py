"""The state of a turn: one object, which goes at once, whichever way the turn ends."""

import gc
import threading
import weakref
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from msgspec.structs import replace

from holdfast.core.errors import GiveUp, Stopping
from holdfast.core.events import Answered, Text
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import ToolContext
from holdfast.core.settings import LimitSettings
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.mail import Mail
from holdfast.gateway.sessions import Turn
from holdfast.gateway.turns import INTERRUPTED
from holdfast.gateway.watch import relieve
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import Emit, calls, echo, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.function import tool

from .events import (
    EVICTIONS,
    EXPIRES_AFTER,
    SETTINGS,
    Door,
    agent_of,
    end,
    expire_now,
    open_small,
    session_of,
    shut_down,
)

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

ONE_AT_A_TIME = replace(SETTINGS, limits=LimitSettings(turns=1))
"""A turn that kept its place would hold up everyone else."""


class Trapdoor(Door):
    """A door behind which the model may fail."""

    error: Exception | None = None

    async def __call__(self, messages: Sequence[Message], emit: Emit) -> str:
        said = await super().__call__(messages, emit)
        error, self.error = self.error, None
        if error:
            raise error
        return said


async def start(bench: Bench, door: Door, chat: ChatKey = CHAT) -> tuple[Mail, Turn]:
    """A turn that waits at the door."""
    waiting = door.inside
    mail = await bench.send("wait", chat, watched=True)
    await door.has(waiting + 1)
    turn = bench.gateway.awake[chat].turn
    assert turn
    return mail, turn


def fields(thing: object) -> dict[str, Any]:
    """All that it holds; of a collection, how much."""
    return {name: len(value) if isinstance(value, Sized) else value for name, value in vars(thing).items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def nothing_runs(bench: Bench, chat: AwakeChat) -> bool:
    """Nobody who looks for a turn in CHAT finds a part of one."""
    looks = (chat.turn, chat.state == "running", bench.gateway.attach(CHAT), bench.gateway.stop(CHAT))
    return not any(looks)


# ── the ways out ────────────────────────────────────────────────────────────────────────────────

OUTCOMES = {"answer": "ok", "error": "failed", "bug": "failed"}
OUTCOMES |= dict.fromkeys(("stop", "cancel", "time", "new"), "stopped")


async def leave(bench: Bench, door: Trapdoor, way: str) -> None:
    """Have the turn of CHAT, which waits at the door, end in a way."""
    match way:
        case "answer" | "error" | "bug":
            door.error = {"error": GiveUp("The model gives up."), "bug": RuntimeError("a bug")}.get(way)
            door.open()
        case "stop":
            assert (await bench.say("/stop")).text == "Stopped."
        case "cancel":
            assert bench.gateway.stop(CHAT)
        case "time":
            await anyio.sleep(bench.gateway.settings.turn.stall + 10)
        case "new":
            with anyio.fail_after(1):
                await end(bench)


@pytest.mark.proves("turn/turn", "invariant 4", "case 42")
@pytest.mark.parametrize("way", OUTCOMES)
async def test_whichever_way_a_turn_ends_all_of_its_state_goes_at_once(tmp_path: Path, way: str) -> None:
    door = Trapdoor()
    async with open_small(tmp_path, door, settings=ONE_AT_A_TIME) as bench:
        await bench.say("hello")
        chat = bench.gateway.awake[CHAT]
        await until(lambda: not chat.mailbox and not chat.turn)
        before = fields(chat)
        mail, turn = await start(bench, door)
        assert turn.started == pytest.approx(bench.clock.now(), abs=1)
        assert changed(before, fields(chat)) == {"turn", "unanswered"}
        gone = weakref.ref(turn)
        del turn
        await leave(bench, door, way)
        assert (await mail.answered()).outcome == OUTCOMES[way]
        assert nothing_runs(bench, chat)
        await until(lambda: not chat.commands)
        assert changed(before, fields(chat)) <= {"session"}
        gc.collect()
        assert gone() is None
        assert (await bench.say("next", ChatKey("test", "another"))).text == "you said next"
        assert (await bench.say("next")).text == "you said next"


@pytest.mark.proves("turn/turn", "invariant 4")
async def test_what_a_turn_says_after_its_end_is_heard_by_nobody(tmp_path: Path) -> None:
    """Neither by its own onlookers, who have seen its answer, nor by the next turn's."""
    sinks: list[Emit] = []

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        sinks.append(emit)
        return await door(messages, emit)

    door = Door()
    async with open_small(tmp_path, script) as bench:
        first, _ = await start(bench, door)
        bench.gateway.stop(CHAT)
        await first.answered()
        second, turn = await start(bench, door)
        sinks[0](Text("late"))
        assert turn.words == []
        door.open()
        assert (await second.answered()).text == "you said wait"
        for mail in (first, second):
            events = await mail.after(0)
            assert Text("late") not in events
            assert isinstance(events[-1], Answered)


@pytest.mark.proves("turn/evict")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_no_route_of_eviction_reaches_a_running_turn(tmp_path: Path, route: str) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        mail, turn = await start(bench, door)
        agent, before = agent_of(bench), fields(turn)
        if route == "pressure":
            assert relieve(bench.gateway, budget=1) == 0
        elif route == "operator":
            assert not bench.gateway.residents.evict(session_of(bench).id)
        else:
            await EVICTIONS[route](bench)
        await anyio.sleep(10)
        assert bench.gateway.awake[CHAT].turn is turn
        assert changed(before, fields(turn)) == set()
        assert agent_of(bench) is agent
        door.open()
        assert (await mail.answered()).text == "you said wait"


async def works(messages: Sequence[Message], emit: Emit) -> AssistantMessage | str:
    """Uses a tool before it answers "work"."""
    return calls(("look", "{}")) if messages[-1].text == "work" else await echo(messages, emit)


@pytest.mark.proves("turn/model", "turn/reasoning")
async def test_another_model_or_effort_is_for_the_next_turn(tmp_path: Path) -> None:
    """The running one keeps its state, and its second step is like its first."""
    go = anyio.Event()

    @tool(toolset="test")
    async def look(context: ToolContext) -> str:
        """Look."""
        await go.wait()
        return "seen"

    async with open_small(tmp_path, works, tools=[look]) as bench:
        mail = await bench.send("work")
        await until(lambda: len(bench.model.requests) == 1)
        chat, agent = bench.gateway.awake[CHAT], agent_of(bench)
        turn = chat.turn
        assert turn
        before = fields(turn)
        await bench.say("/model other")
        await bench.say("/reasoning high")
        assert chat.turn is turn
        assert changed(before, fields(turn)) == set()
        assert agent_of(bench) is agent
        go.set()
        assert (await mail.answered()).text == "you said seen"
        assert (bench.model.leased, bench.model.efforts) == (["scripted"], ["", ""])
        await bench.say("next")
        assert (bench.model.leased, bench.model.efforts) == (["scripted", "other"], ["", "", "high"])


@pytest.mark.proves("turn/undo")
async def test_nothing_is_undone_while_a_turn_runs(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        await bench.say("hello")
        mail, turn = await start(bench, door)
        assert "on its way" in (await bench.say("/undo")).text
        assert bench.gateway.awake[CHAT].turn is turn
        door.open()
        await mail.answered()
        assert [message.text for message in await bench.said()][::2] == ["hello", "wait"]


@pytest.mark.proves("turn/end")
@pytest.mark.parametrize("way", ["new", "reset", "operator"])
async def test_the_end_of_a_conversation_ends_its_turn(tmp_path: Path, way: str) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        await bench.say("hello")
        mail, _ = await start(bench, door)
        chat = bench.gateway.awake[CHAT]
        with anyio.fail_after(1):
            await end(bench, way)
        assert nothing_runs(bench, chat)
        assert (await mail.answered()).outcome == "stopped"
        assert door.inside == 0


@pytest.mark.proves("turn/end")
async def test_no_conversation_expires_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        await bench.say("hello")
        mail, turn = await start(bench, door)
        assert isinstance(bench.clock, VirtualClock)
        bench.clock.jump(EXPIRES_AFTER + 1)
        assert await expire_now(bench) == 0
        assert bench.gateway.awake[CHAT].turn is turn
        door.open()
        assert (await mail.answered()).text == "you said wait"


async def open_later(door: Door) -> None:
    await anyio.sleep(10)
    door.open()


@pytest.mark.proves("turn/shutdown", "invariant 4")
async def test_a_gateway_that_leaves_waits_for_a_turn_and_then_it_is_gone(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench, anyio.create_task_group() as group:
        mail, _ = await start(bench, door)
        chat, began = bench.gateway.awake[CHAT], anyio.current_time()
        group.start_soon(open_later, door)
        await shut_down(bench)
        assert 10 <= anyio.current_time() - began < 11
        assert nothing_runs(bench, chat)
        assert (await mail.answered()).text == "you said wait"


@pytest.mark.proves("turn/shutdown", "turn/crash", "invariant 4")
@pytest.mark.parametrize("drained", [True, False])
async def test_a_turn_that_the_process_leaves_is_gone_and_its_message_waits_for_the_next(
    tmp_path: Path, drained: bool
) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        mail, turn = await start(bench, door)
        chat = bench.gateway.awake[CHAT]
        if drained:
            await shut_down(bench)
    assert chat.turn is None
    with pytest.raises(Stopping):
        await mail.answered()
    await anyio.sleep(100)
    async with open_small(tmp_path, door) as bench:
        await door.has(waiting=1)
        again = bench.gateway.attach(CHAT)
        assert again
        assert again.incoming == mail.incoming
        taken_up = bench.gateway.awake[CHAT].turn
        assert taken_up
        assert taken_up.started >= turn.started + 100
        door.open()
        assert (await again.answered()).text == "you said wait"


@pytest.mark.proves("turn/crash")
async def test_what_is_stored_of_a_turn_says_what_was_interrupted(tmp_path: Path) -> None:
    @tool(toolset="test")
    async def look(context: ToolContext) -> str:
        """Never come back."""
        looks.append(context.session)
        await anyio.sleep_forever()
        return ""

    looks: list[str] = []
    async with open_small(tmp_path, works, tools=[look]) as bench:
        await bench.send("work")
        await until(lambda: bool(looks))
    async with open_small(tmp_path, works, tools=[look]) as bench:
        await until(lambda: not bench.gateway.unanswered)
        *_, told, _ = await bench.said()
        assert told == ToolMessage("call_0", "look", INTERRUPTED, failed=True)
        assert len(looks) == 1
        assert nothing_runs(bench, bench.gateway.awake[CHAT])


# ── letting go of it ────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("case 43", "invariant 4")
async def test_stopping_twice_or_what_never_ran_is_harmless(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        assert not bench.gateway.stop(CHAT)  # never heard of
        await bench.say("hello")
        assert not bench.gateway.stop(CHAT)
        assert (await bench.say("/stop")).text == "Nothing is running."
        mail, turn = await start(bench, door)
        turn.stop("stop")
        turn.stop("stall")
        assert (await mail.answered()).text == "(Stopped.)"
        successor, its_turn = await start(bench, door)
        turn.stop("stop")
        await anyio.sleep(1)
        assert bench.gateway.awake[CHAT].turn is its_turn
        assert its_turn.stop_reason == ""
        door.open()
        assert (await successor.answered()).text == "you said wait"


@pytest.mark.proves("case 44")
async def test_the_state_of_other_sessions_is_untouched(tmp_path: Path) -> None:
    door, other = Door(), ChatKey("test", "other")
    async with open_small(tmp_path, door) as bench:
        mail, _ = await start(bench, door)
        others, turn = await start(bench, door, other)
        before, all_before = fields(turn), fields(bench.gateway.awake[other])
        bench.gateway.stop(CHAT)
        await mail.answered()
        assert bench.gateway.awake[other].turn is turn
        assert changed(before, fields(turn)) == set()
        assert changed(all_before, fields(bench.gateway.awake[other])) == set()
        assert not others.done
        door.open()
        assert (await others.answered()).text == "you said wait"


GROWS = {"row", "next_seq", "last_mail", "last_used", "begun"}
"""What a turn adds to its session on purpose: a title and messages, and when it was."""


@pytest.mark.proves("case 45")
@pytest.mark.parametrize("way", [way for way in OUTCOMES if way != "new"])
async def test_state_that_lasts_across_turns_is_untouched(tmp_path: Path, way: str) -> None:
    """By reflection over the session, its agent and its settings, so that a field added next year is covered."""
    door = Trapdoor()
    async with open_small(tmp_path, door) as bench:
        await bench.say("hello")
        await bench.say("/reasoning low")
        session, agent = session_of(bench), agent_of(bench)
        before, of_agent, controls = fields(session), fields(agent), session.controls
        mail, _ = await start(bench, door)
        waiting = await bench.send("queued")
        await leave(bench, door, way)
        await mail.answered()
        assert (await waiting.answered()).text == "you said queued"
        assert session_of(bench) is session
        assert changed(before, fields(session)) <= GROWS
        assert session.controls == controls
        assert agent_of(bench) is agent
        assert changed(of_agent, fields(agent)) == set()


@pytest.mark.proves("case 46", "invariant 4")
async def test_many_threads_may_stop_many_turns_at_once(tmp_path: Path) -> None:
    door, chats = Door(), [ChatKey("test", f"{number}") for number in range(8)]
    together = threading.Barrier(len(chats))

    def stop_all(first: int) -> None:
        together.wait(10)
        for chat in (*chats[first:], *chats[:first]):
            anyio.from_thread.run_sync(bench.gateway.stop, chat)

    async with open_small(tmp_path, door) as bench:
        mails = [(await start(bench, door, chat))[0] for chat in chats]
        async with anyio.create_task_group() as group:
            for first in range(len(chats)):
                group.start_soon(anyio.to_thread.run_sync, stop_all, first)
        assert [(await mail.answered()).text for mail in mails] == ["(Stopped.)"] * len(chats)
        assert not any(chat.turn for chat in bench.gateway.awake.values())
        assert bench.gateway.unanswered == 0
        for chat in chats:
            assert (await bench.say("next", chat)).text == "you said next"
