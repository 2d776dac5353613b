"""What is stored of a conversation, step by step; and the file it lies in, at the end of the process."""

import fcntl
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core import failpoints
from holdfast.core.clock import SystemClock
from holdfast.core.events import Answered, Event
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import Accept, ToolContext
from holdfast.gateway.descriptors import open_descriptors
from holdfast.storage import open_store
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.processes import GatewayProcess, running_gateway
from holdfast.testing.scripted import calls, echo, until
from holdfast.tools.function import FunctionTool

from .events import ENDINGS, EVICTIONS, end, evict, open_small, session_of, shut_down

pytestmark = pytest.mark.anyio


def read(folder: Path, query: str, *values: Any) -> list[Any]:
    """What another process would see in the file."""
    with closing(sqlite3.connect(folder / "holdfast.db")) as db:
        return db.execute(query, values).fetchall()


def roles(folder: Path) -> list[str]:
    return [role for (role,) in read(folder, "SELECT role FROM messages ORDER BY id")]


def sessions(folder: Path) -> list[tuple[str, float | None, str]]:
    return read(folder, "SELECT id, ended, end_reason FROM sessions WHERE chat = ? ORDER BY rowid", str(CHAT))


def contents(folder: Path, session: str) -> list[Any]:
    """All of one conversation but for when it was used last."""
    row = read(folder, "SELECT id, chat, ended, end_reason, title, tools, prompt FROM sessions WHERE id = ?", session)
    return [row, read(folder, "SELECT * FROM messages WHERE session = ? ORDER BY seq", session)]


class Looking:
    """A tool and a channel that each look into the file when their turn comes."""

    name = "test"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looked: list[list[str]] = []
        self.arrived: list[list[str]] = []

    async def receive(self, accept: Accept) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        self.arrived.append(roles(self.folder))

    @property
    def tool(self) -> FunctionTool:
        async def look(context: ToolContext) -> str:
            """See what is stored by now."""
            self.looked.append(roles(self.folder))
            return "seen"

        return FunctionTool(look, toolset="test", concurrent=False)


async def look_twice(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
    return "I have looked" if sum(isinstance(m, ToolMessage) for m in messages) == 2 else calls(("look", "{}"))


@contextmanager
def failing(spec: str) -> Iterator[None]:
    failpoints.arm(spec)
    try:
        yield
    finally:
        failpoints.disarm()


async def kinds(bench: Bench, text: str) -> list[str]:
    """What kinds of event an onlooker sees until the answer or the failure."""
    seen: list[Event] = []
    mail = await bench.send(text, watched=True)
    try:
        async for event in mail.events():
            seen.append(event)  # noqa: PERF401 - some may come before it fails
    except failpoints.InjectedFailure:
        assert not any(isinstance(event, Answered) for event in seen)
    return [type(event).__name__ for event in seen]


# ── what each event does to them ────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("rows/turn")
async def test_each_step_is_stored_before_the_next_is_taken_or_shown(tmp_path: Path) -> None:
    looking = Looking(tmp_path)
    async with open_small(tmp_path, look_twice, tools=[looking.tool], channels={"test": looking}) as bench:
        await bench.say("look")
        await until(lambda: bool(looking.arrived))
    step = ["assistant", "tool"]
    assert looking.looked == [["user", "assistant"], ["user", *step, "assistant"]]
    assert looking.arrived == [["user", *step, *step, "assistant"]]


@pytest.mark.virtual
@pytest.mark.proves("rows/turn")
@pytest.mark.parametrize(
    ("point", "shown", "looked"),
    [
        ("store.append.before=fail:2", [], 0),
        ("store.append.before=fail:3", ["ToolStarted"], 1),
        ("store.append.before=fail:4", ["ToolStarted", "ToolFinished"], 1),
    ],
)
async def test_what_can_not_be_stored_is_not_shown(tmp_path: Path, point: str, shown: list[str], looked: int) -> None:
    looking = Looking(tmp_path)
    async with open_small(tmp_path, look_twice, tools=[looking.tool]) as bench:
        with failing(point):
            assert await kinds(bench, "look") == ["Started", *shown, "Answered"]
        assert len(looking.looked) == looked
        answer = await bench.say("/status")
        assert answer.outcome == "ok"


@pytest.mark.virtual
@pytest.mark.proves("rows/turn")
async def test_an_answer_that_can_not_be_stored_is_not_shown_either(tmp_path: Path) -> None:
    looking = Looking(tmp_path)
    async with open_small(tmp_path, echo, channels={"test": looking}) as bench:
        with failing("store.finish.before=fail"):
            assert await kinds(bench, "hello") == ["Started", "Text"]
            assert (roles(tmp_path), looking.arrived) == ([], [])
            await anyio.sleep(60)
        assert looking.arrived == [["user", "assistant"]]


@pytest.mark.virtual
@pytest.mark.proves("rows/evict")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_eviction_leaves_a_conversation_open_and_every_row_as_it_was(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        known = session_of(bench).id
        before = contents(tmp_path, known)
        await evict(bench, route)
        assert sessions(tmp_path) == [(known, None, "")]
        assert contents(tmp_path, known) == before
        await bench.say("again")
        assert sessions(tmp_path) == [(known, None, "")]
        assert [row[2] for row in contents(tmp_path, known)[1]] == [0, 1, 2, 3]


@pytest.mark.virtual
@pytest.mark.proves("rows/model", "rows/reasoning")
async def test_another_model_and_another_effort_are_noted(tmp_path: Path) -> None:
    controls = "SELECT controls FROM sessions"
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        known, before = session_of(bench).id, roles(tmp_path)
        assert read(tmp_path, controls) == [(None,)]
        await bench.say("/reasoning high")
        assert read(tmp_path, controls) == [('{"reasoning":"high"}',)]
        await bench.say("/model other")
        ((noted,),) = read(tmp_path, controls)
        assert noted.startswith('{"model":"other","reasoning":"high","notes":["From here on the model is other')
        assert roles(tmp_path) == before
        await bench.say("again")
        assert "From here on the model is other" in read(tmp_path, "SELECT extra FROM messages WHERE seq = 2")[0][0]
        assert sessions(tmp_path) == [(known, None, "")]


@pytest.mark.virtual
@pytest.mark.proves("rows/undo")
async def test_undo_marks_the_tail_and_deletes_nothing(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        for text in ("one", "two", "three"):
            await bench.say(text)
        known = session_of(bench).id
        before = contents(tmp_path, known)
        await bench.say("/undo 2")
        row, after = contents(tmp_path, known)
        assert row == before[0]
        undone = [column for column, _ in enumerate(after[0]) if after[-1][column] != before[1][-1][column]]
        assert [after[number][undone[0]] is None for number in range(6)] == [True, True, False, False, False, False]
        assert undone == [6], "nothing but the mark has changed"
        assert [message.text for message in await bench.said()] == ["one", "you said one"]
        await bench.say("four")
        assert [row[2] for row in contents(tmp_path, known)[1]] == list(range(8))


@pytest.mark.virtual
@pytest.mark.proves("rows/end")
@pytest.mark.parametrize("way", ENDINGS)
async def test_the_end_is_stored_with_its_reason_and_the_messages_stay(tmp_path: Path, way: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        known = session_of(bench).id
        messages = contents(tmp_path, known)[1]
        await end(bench, way)
        ((session, ended, why),) = sessions(tmp_path)
        assert (session, why) == (known, "expired" if way == "expiry" else "new")
        assert ended is not None
        assert 0 <= bench.clock.now() - ended < 120
        await bench.say("a new one")
        assert [(session != known, ended, why) for session, ended, why in sessions(tmp_path)[1:]] == [(True, None, "")]
        assert contents(tmp_path, known)[1] == messages


@pytest.mark.virtual
@pytest.mark.proves("rows/shutdown", "rows/crash")
@pytest.mark.parametrize("leave", ["shutdown", "crash"])
async def test_a_conversation_goes_on_in_the_next_process(tmp_path: Path, leave: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("hello")
        known = session_of(bench).id
        before = contents(tmp_path, known)
        if leave == "shutdown":
            await shut_down(bench)
    assert contents(tmp_path, known) == before
    await anyio.sleep(1)
    async with open_small(tmp_path, echo) as bench:
        await bench.say("again")
        assert sessions(tmp_path) == [(known, None, "")]
        assert contents(tmp_path, known)[1][:2] == before[1]
        assert len(bench.model.requests[-1][2]) == 3


# ── the file, at the end of the process ─────────────────────────────────────────────────────────

AT_EXIT = """
import atexit, os

def note_what_is_open():
    numbers = os.listdir("/proc/self/fd")
    targets = [os.readlink(f"/proc/self/fd/{n}") for n in numbers if os.path.lexists(f"/proc/self/fd/{n}")]
    with open(os.environ["NOTE"], "w") as note:
        note.write("\\n".join(targets))

atexit.register(note_what_is_open)  # the first to come is the last to be called
"""

TROUBLE = """
from contextlib import asynccontextmanager
from pathlib import Path
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

@asynccontextmanager
async def thing(name):
    yield
    Path(name).touch()
    if name == "second":
        raise OSError("does not close")

@tool(toolset="test")
async def open_three(context: ToolContext) -> str:
    "Open three things, of which the second does not close."
    for name in ("first", "second", "third"):
        await context.own(name, lambda: thing(name))
    return "open"

TOOLS = (open_three,)
"""


@contextmanager
def watched_gateway(folder: Path, **settings: str) -> Iterator[GatewayProcess]:
    """A gateway that notes just before it is gone what it still has open."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(AT_EXIT)
    (folder / "home").mkdir()
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    with running_gateway(folder / "home", {"PYTHONPATH": path, "NOTE": str(folder / "note"), **settings}) as gateway:
        yield gateway


def left_open(folder: Path) -> list[str]:
    """The files of its home that it had open, but for its output."""
    targets = [Path(line) for line in (folder / "note").read_text().splitlines()]
    assert targets
    return [path.name for path in targets if path.is_relative_to(folder / "home") and path.name != "output.txt"]


def write_alone(home: Path) -> None:
    """Write into the file, as only one can who has it to himself; waits for nobody."""
    with closing(sqlite3.connect(home / "holdfast.db", timeout=0)) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        db.execute("UPDATE sessions SET title = title || '!'")
        db.commit()
        assert db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)


@pytest.mark.proves("rows/shutdown", "case 48", "case 51")
def test_before_it_exits_the_file_is_closed_and_a_successor_can_write_at_once(tmp_path: Path) -> None:
    with watched_gateway(tmp_path) as gateway:
        gateway.say("a", "say hello")
        home = gateway.home
        assert (home / "holdfast.db-wal").exists()
        assert gateway.terminate() == 0
        assert left_open(tmp_path) == []
        assert sorted(path.name for path in home.glob("holdfast.db*")) == ["holdfast.db"]
        assert read(home, "SELECT ended, end_reason FROM sessions") == [(None, "")]
        assert roles(home) == ["user", "assistant"]
        write_alone(home)
        gateway.start()
        gateway.say("a", "say again")
        assert read(home, "SELECT ended, title FROM sessions") == [(None, "say hello!")]
        assert roles(home) == ["user", "assistant"] * 2


@pytest.mark.proves("rows/shutdown", "case 51")
def test_whoever_gets_the_folder_finds_the_file_unlocked(tmp_path: Path) -> None:
    """The folder's lock is let go last: not even a successor that waits at the door meets an open file."""
    with running_gateway(tmp_path) as gateway:
        gateway.say("a", "say hello")
        os.kill(gateway.pid, signal.SIGTERM)
        with (tmp_path / "gateway.lock").open("r+") as lock:
            deadline = time.monotonic() + 30
            while not taken(lock.fileno()):
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            write_alone(tmp_path)
        assert gateway.wait() == 0


def taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.proves("case 49")
def test_a_part_that_was_never_there_is_no_error(tmp_path: Path) -> None:
    """Stopped before anybody came: no session, no agent, no transport, no channel."""
    with watched_gateway(tmp_path) as gateway:
        assert gateway.terminate() == 0
        assert left_open(tmp_path) == []
        assert not [word for word in ("error", "warning", "Traceback") if word in gateway.output]


@pytest.mark.proves("case 48", "case 50", "rows/shutdown")
def test_one_close_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools_in_trouble.py").write_text(TROUBLE)
    monkeypatch.chdir(tmp_path)  # where it finds the module, and leaves its marks
    with watched_gateway(tmp_path, HOLDFAST_TOOLS__MODULES="tools_in_trouble") as gateway:
        gateway.say("a", "use open_three with {}")
        assert gateway.terminate() == 0
        assert all((tmp_path / name).exists() for name in ("first", "second", "third"))
        assert gateway.output.count("failed to close") == 1
        assert "does not close" in gateway.output
        assert left_open(tmp_path) == []
        write_alone(gateway.home)


@pytest.mark.proves("rows/crash")
def test_a_killed_process_leaves_its_conversations_open_and_whole(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as gateway:
        gateway.say("a", "say hello")
        gateway.kill()
        (known,) = read(tmp_path, "SELECT id, ended, end_reason FROM sessions")
        assert known[1:] == (None, "")
        gateway.start()
        gateway.say("a", "say again")
        assert read(tmp_path, "SELECT id, ended, end_reason FROM sessions") == [known]
        texts = read(tmp_path, "SELECT text FROM messages ORDER BY seq")
        assert texts == [("say hello",), ("hello",), ("say again",), ("again",)]


@pytest.mark.proves("case 48")
async def test_leaving_the_store_closes_every_handle(tmp_path: Path) -> None:
    def handles() -> list[str]:
        found = (open_descriptors() or {}).values()
        return [target for target in found if target.startswith(str(tmp_path))]

    path = tmp_path / "holdfast.db"
    async with open_store(path, ledger=Ledger(), clock=SystemClock()) as store:
        await store.wake(CHAT)
        assert len([target for target in handles() if target == str(path)]) == 3, "a writer and two readers"
    assert handles() == []
