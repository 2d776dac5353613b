"""Sessions come and go, and the process is as it was: no object, no entry, no task of any of them is left."""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from weakref import ref

import anyio
import pytest

from holdfast.core.errors import GiveUp
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.core.protocols import ToolContext
from holdfast.core.settings import ResidentSettings, Settings
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import Emit, Gate, ScriptedModel, calls, echo, until
from holdfast.tools.function import tool

from .events import EVICTIONS, agent_of, awake, evict, open_small, session_of

pytestmark = pytest.mark.anyio

SETTINGS = Settings(residents=ResidentSettings(limit=16, idle_ttl=600))


def named(number: int) -> ChatKey:
    return ChatKey("test", f"chat-{number}-of-many")


@tool(toolset="test")
async def keep(context: ToolContext) -> str:
    """Own something until the conversation ends."""
    return str(await context.own("thing", anyio.create_task_group))


async def moody(messages: Sequence[Message], emit: Emit) -> AssistantMessage | str:
    last = messages[-1]
    if last.text == "hang":
        await anyio.sleep_forever()
    if last.text == "fail":
        raise GiveUp("no", code="refused")
    if last.text == "own":
        return calls(("keep", "{}"))
    return "kept" if isinstance(last, ToolMessage) else await echo(messages, emit)


# ── ways to come and to go ──────────────────────────────────────────────────────────────────────


async def talk(bench: Bench, chat: ChatKey) -> None:
    await bench.say("hello", chat)


async def begin_anew(bench: Bench, chat: ChatKey) -> None:
    await bench.say("hello", chat)
    await bench.say("/new", chat)


async def own_and_end(bench: Bench, chat: ChatKey) -> None:
    await bench.say("own", chat)
    await bench.say("/reset", chat)


async def be_stopped(bench: Bench, chat: ChatKey) -> None:
    hanging, waiting = await bench.send("hang", chat, watched=True), await bench.send("and then", chat)
    await until(lambda: bench.gateway.attach(chat) is hanging)
    await bench.say("/stop", chat)
    await waiting.answered()


async def be_dropped(bench: Bench, chat: ChatKey) -> None:
    hanging, waiting = await bench.send("hang", chat), await bench.send("and then", chat)
    await bench.say("/new", chat)
    assert [(await mail.answered()).outcome for mail in (hanging, waiting)] == ["stopped", "stopped"]


async def get_no_answer(bench: Bench, chat: ChatKey) -> None:
    assert (await bench.say("fail", chat)).outcome == "failed"


async def hang_up(bench: Bench, chat: ChatKey) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await bench.send("hello", chat)


async def look_on_for_a_while(bench: Bench, chat: ChatKey) -> None:
    mail = await bench.send("hang", chat, watched=True)
    with anyio.move_on_after(1):
        await mail.answered()
    bench.gateway.stop(chat)
    await mail.answered()


async def bring_its_own_history(bench: Bench, chat: ChatKey) -> None:
    await (await bench.gateway.accept(bench.incoming("hello", chat, history=[UserMessage("before")]))).answered()


async def change_its_mind(bench: Bench, chat: ChatKey) -> None:
    for text in ("hello", "/model other", "again", "/reasoning low", "/undo", "/new", "/resume", "/status"):
        await bench.say(text, chat)


WAYS: list[Callable[[Bench, ChatKey], Coroutine[Any, Any, None]]] = [
    *(talk, begin_anew, own_and_end, be_stopped, be_dropped),
    *(get_no_answer, hang_up, look_on_for_a_while, bring_its_own_history, change_its_mind),
]


async def come_and_go(bench: Bench, chats: Sequence[ChatKey]) -> None:
    """Each chat in one of the ways, some of them at the same time; returns when all are asleep."""
    async with anyio.create_task_group() as group:
        for number, chat in enumerate(chats):
            group.start_soon(WAYS[number % len(WAYS)], bench, chat)
    await anyio.sleep(SETTINGS.residents.idle_ttl + 1)
    bench.model.requests.clear()  # what the test itself keeps of them
    bench.model.leased.clear()
    bench.model.efforts.clear()


def alive() -> Counter[str]:
    """All objects there are, by their types."""
    gc.collect()
    return Counter(f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.get_objects())


# ── what is left ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("invariant 7")
async def test_after_three_hundred_sessions_no_object_of_any_of_them_is_alive(tmp_path: Path) -> None:
    others = alive()  # what a test before this one may still hold
    async with open_small(tmp_path, moody, settings=SETTINGS, tools=[keep]) as bench:
        for first in (0, 50):  # what is made once, be it by looking, is made
            await come_and_go(bench, [named(number) for number in range(first, first + 50)])
            before, tasks = alive(), len(asyncio.all_tasks())
        await come_and_go(bench, [named(number) for number in range(100, 400)])
        after = alive()
        assert len(await bench.store.sessions(limit=1000)) >= 300  # there were that many
        of_sessions = ("AwakeChat", "Session", "Turn", "Mail", "Seat", "Agent", "Context", "_Held", "Ending", "Errand")
        ours = {name for name in after if name.startswith("holdfast") and name.endswith(of_sessions)}
        assert [name for name in ours if after[name] > others[name]] == []
        most = 300 // len(WAYS) - 1  # one for each that went in one of the ways would be more
        assert {name: count - before[name] for name, count in after.items() if count - before[name] > most} == {}
        assert len(asyncio.all_tasks()) == tasks
        assert (bench.gateway.unanswered, bench.gateway.busy, bench.model.leases) == (0, 0, 0)


def reachable(root: object) -> Iterator[object]:
    """Everything that can be got at from an object, but for what belongs to the program and to the test."""
    seen = {id(asyncio.current_task())}  # the test itself, which remembers what it looks for
    waiting: deque[object] = deque([root])
    while waiting:
        found = waiting.popleft()
        if id(found) in seen or isinstance(found, type | ModuleType | ScriptedModel | asyncio.AbstractEventLoop):
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, FunctionType):
            waiting.extend((found.__closure__, found.__defaults__, found.__kwdefaults__))  # not its module
        else:
            waiting.extend(gc.get_referents(found))
            waiting.extend(found if isinstance(found, dict) else ())  # keys that are texts are not among those


def told_of(root: object, words: set[str]) -> list[object]:
    """What is reachable that names one of these."""
    return [found for found in reachable(root) if isinstance(found, str) and any(word in found for word in words)]


@pytest.mark.virtual
@pytest.mark.proves("case 63", "invariant 7")
async def test_after_a_thousand_chats_no_map_has_an_entry_for_any_of_them(tmp_path: Path) -> None:
    async with open_small(tmp_path, moody, settings=SETTINGS, tools=[keep]) as bench:
        await bench.say("hello", named(0))
        here = [named(0).chat, session_of(bench, named(0)).id]
        assert all(told_of(bench.gateway, {word}) for word in here)  # it is looked for in the right place
        for number in range(0, 1000, 50):
            await come_and_go(bench, [named(other) for other in range(number, number + 50)])
        ids = [row.id for row in await bench.store.sessions(limit=10_000)]
        assert len(ids) > 800
        beginning = ids[0][:4]  # of all ids that were made in this time, be they of sessions or of messages
        assert all(id.startswith(beginning) for id in ids)
        assert told_of(bench.gateway, {"-of-many", beginning}) == []
        assert not bench.gateway.awake
        assert len(bench.gateway.residents) == 0


@pytest.mark.proves("invariant 7", "invariant 4")
async def test_a_hundred_sessions_with_cancelled_turns_leave_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=SETTINGS, inline=False) as bench:
        tasks = len(asyncio.all_tasks())
        chats = [named(number) for number in range(100)]
        mails = [await bench.send("hello", chat, watched=True) for chat in chats]
        await gate.has(waiting=100)
        assert all(bench.gateway.stop(chat) for chat in chats)
        assert {(await mail.answered()).outcome for mail in mails} == {"stopped"}
        del mails
        assert gate.inside == 0
        await until(lambda: not any(chat.turn for chat in bench.gateway.awake.values()))
        await until(lambda: bench.gateway.residents.relieve(2**60) == 0 and not bench.gateway.awake)
        await until(lambda: len(asyncio.all_tasks()) == tasks and bench.model.leases == 0)
        assert (bench.gateway.unanswered, bench.gateway.busy) == (0, 0)
        assert await bench.store.waiting() == []
        assert told_of(bench.gateway, {"-of-many"}) == []
        assert [name for name in alive() if name.startswith("holdfast.gateway.sessions")] == []
        gate.open()
        assert [(await bench.say("and now?", chat)).text for chat in chats[:3]] == ["you said and now?"] * 3


# ── dormancy ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("invariant 7")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_a_session_that_owns_nothing_leaves_memory_altogether(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        tasks = len(asyncio.all_tasks())
        await bench.say("hello")
        session = session_of(bench).id
        things = [ref(thing) for thing in (awake(bench), session_of(bench), agent_of(bench))]
        assert len(asyncio.all_tasks()) > tasks
        await evict(bench, route)
        await until(lambda: awake(bench) is None)
        gc.collect()
        assert [thing() for thing in things] == [None] * 3
        if route != "limit":  # which takes others
            assert len(asyncio.all_tasks()) == tasks
        assert told_of(bench.gateway, {session}) == []
        answer = await bench.say("I am back")
        assert (answer.session, len(await bench.said())) == (session, 4)


@pytest.mark.virtual
@pytest.mark.proves("invariant 7")
async def test_dormant_sessions_cost_nothing_but_rows(tmp_path: Path) -> None:
    counts = []
    for size in (10, 300):
        folder = tmp_path / str(size)
        folder.mkdir()
        await anyio.sleep(1)
        async with open_small(folder, echo) as bench:
            for number in range(size):
                await bench.say("hello", named(number))
        await anyio.sleep(1)  # a next start is later
        async with open_small(folder, echo) as bench:
            await bench.say("hello", CHAT)
            assert len(await bench.store.sessions(limit=1000)) == size + 1
            counts.append(alive())
            assert list(bench.gateway.awake) == [CHAT]
    few, many = counts
    assert {name: many[name] - few[name] for name in many if many[name] - few[name] > 10} == {}
