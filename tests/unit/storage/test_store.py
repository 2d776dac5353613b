"""The store as its users see it; most of it is the contract that every store is checked against."""

import asyncio
import importlib
import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.core.clock import SystemClock
from holdfast.core.errors import StoreError
from holdfast.core.keys import SessionId
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Store
from holdfast.storage import open_store
from holdfast.storage.store import SqlStore
from holdfast.testing import stores
from holdfast.testing.stores import SESSION, STORE_CHECKS, StoreCheck, a_mail, a_row, a_session, check_store

pytestmark = pytest.mark.anyio

Opener = Callable[..., AbstractAsyncContextManager[Store]]


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_the_contract_holds(check: StoreCheck, inline: bool, path: Path) -> None:
    await check(partial(open_store, path, ledger=Ledger(), clock=SystemClock(), inline=inline))


def test_every_check_of_the_contract_is_made_once() -> None:
    modules = [importlib.import_module(f"{stores.__name__}.{found.name}") for found in iter_modules(stores.__path__)]
    written = [
        function
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if "open_store" in inspect.signature(function).parameters
    ]
    assert sorted(check.__name__ for check in STORE_CHECKS) == sorted(check.__name__ for check in written)
    assert len(STORE_CHECKS) > 40


class Forgetful(SqlStore):
    """Loses what nobody waits for."""

    def append(self, session: Any, row: Any) -> Any:
        return super().append(session, row) if row.seq != 3 else self.sent("nothing", 0.0)


class Repeating(SqlStore):
    """Answers a message that has an answer."""

    def finish(self, answer: Any, session: Any, rows: Any, **rest: Any) -> Any:
        for row in rows:
            super().append(session, row)
        return super().finish(answer, session, rows, **rest)


class Literal(SqlStore):
    """Calls it a search."""

    async def sessions(self, *, search: str = "", **rest: Any) -> Any:
        return [row for row in await super().sessions(**rest) if search in row.title]


class Hasty(SqlStore):
    """Ends what it should only end if it is idle."""

    def end(self, session: Any, when: Any, reason: Any, *, hooks: Any = False, **rest: Any) -> Any:
        return super().end(session, when, reason, hooks=hooks)


class Amnesiac(SqlStore):
    """Loses what was set with the last message."""

    def finish(self, *args: Any, controls: Any = None, **rest: Any) -> Any:
        return super().finish(*args, **rest)


class Counting(SqlStore):
    """Numbers the next message by those that it shows."""

    async def wake(self, chat: Any) -> Any:
        woken = await super().wake(chat)
        return woken and msgspec.structs.replace(woken, next_seq=len(woken.history))


class Talkative(SqlStore):
    """Tells again and again that a conversation expired."""

    async def expired(self, chat: Any) -> Any:
        row = await super().last_ended(chat)
        return row if row and row.end_reason == "expired" else None


class Careless(SqlStore):
    """Deletes what is open."""

    def prune_session(self, session: Any) -> Any:
        super().end(session, 30.0, "new")
        return super().prune_session(session)


BROKEN = [Forgetful, Repeating, Literal, Hasty, Amnesiac, Counting, Talkative, Careless]


@pytest.mark.parametrize("broken", BROKEN)
async def test_the_contract_notices_a_store_that_breaks_it(broken: type[SqlStore], tmp_path: Path) -> None:
    @asynccontextmanager
    async def opener(name: str) -> AsyncIterator[Store]:
        async with open_store(tmp_path / name, ledger=Ledger(), clock=SystemClock(), inline=True) as store:
            store.__class__ = broken  # type: ignore[assignment]
            yield store

    with pytest.raises(AssertionError):
        await check_store(opener)


async def test_every_connection_is_in_the_ledger_while_it_is_open(path: Path) -> None:
    class Noon:
        def now(self) -> float:
            return 43200.0

    ledger = Ledger()
    async with open_store(path, ledger=ledger, clock=Noon()) as store:
        assert {(entry.kind, entry.owner, entry.since) for entry in ledger} == {("database", "process", 43200.0)}
        assert [entry.name for entry in ledger] == [f"{path} ({who})" for who in ("writer", "reader 1", "reader 2")]
        await store.sessions()
        assert _open_files().count(str(path)) == len(ledger), "the kernel says the same"
    assert len(ledger) == 0
    assert str(path) not in _open_files()


async def test_a_store_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(StoreError, match="no folder"):
        async with open_store(tmp_path / "nowhere" / "holdfast.db", ledger=ledger, clock=SystemClock()):
            pass
    assert len(ledger) == 0


async def test_inline_needs_no_thread(opened: Opener) -> None:
    threads = set(threading.enumerate())
    async with opened(inline=True) as store:
        await store.accept(a_mail())
        assert await store.waiting() == [a_mail()]
        assert set(threading.enumerate()) == threads


async def test_inline_runs_a_write_where_it_is_called(opened: Opener, path: Path) -> None:
    async with opened(inline=True) as store:
        store.accept(a_mail())
        assert _rows(path, "SELECT id FROM inbox") == [("mail-1",)]


async def test_many_writes_share_a_commit(opened: Opener, path: Path) -> None:
    async with opened() as store:
        before = _commits(path)
        await asyncio.gather(*(_awaited(store.accept(a_mail(f"m{number}"))) for number in range(500)))
        assert len(await store.waiting()) == 500
        assert 1 <= _commits(path) - before <= 100


async def test_full_durability_is_asked_of_the_disk(opened: Opener, path: Path) -> None:
    """With `full` each commit is synced; what a loss of power does can't be tried here, that it is asked can."""
    async with opened(durability="full", inline=True) as store:
        assert store._writing._worker._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # type: ignore[attr-defined]
        await store.accept(a_mail())
    async with opened(inline=True) as store:
        assert store._writing._worker._connection.execute("PRAGMA synchronous").fetchone() == (1,)  # type: ignore[attr-defined]
        assert await store.waiting() == [a_mail()]


@pytest.mark.proves("invariant 15")
async def test_while_a_write_waits_for_a_lock_the_loop_and_the_readers_go_on(opened: Opener, path: Path) -> None:
    async with opened(patience=30.0) as store:
        await store.accept(a_mail("first"))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            commit = store.accept(a_mail("second"))
            for _ in range(20):
                assert [mail.id for mail in await store.waiting()] == ["first"]
            other.execute("ROLLBACK")
        await commit
        assert [mail.id for mail in await store.waiting()] == ["first", "second"]


async def test_leaving_by_cancellation_commits_what_was_called(opened_either_way: Opener) -> None:
    with anyio.CancelScope() as scope:
        async with opened_either_way() as store:
            store.begin(a_session())
            for seq in range(200):
                store.append(SESSION, a_row(seq, "hello"))
            scope.cancel()
            await anyio.sleep_forever()
    async with opened_either_way() as store:
        assert len(await store.history(SESSION)) == 200


async def test_a_start_that_is_cancelled_leaves_nothing_behind(opened: Opener) -> None:
    """The test's own fixture looks for threads and descriptors."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with opened():
            pytest.fail("it was cancelled")


async def test_a_failed_write_that_rode_along_is_logged_with_its_cause(opened_either_way: Opener) -> None:
    with capture_logs() as logs:
        async with opened_either_way() as store:
            store.append(SessionId("unknown"), a_row(1, "secret words"))
            await store.accept(a_mail())
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert line["step"] == "append"
    assert "FOREIGN KEY" in line["cause"]
    assert "secret words" not in repr(line)


async def test_a_failed_write_that_is_awaited_is_not_logged(opened_either_way: Opener) -> None:
    with capture_logs() as logs:
        async with opened_either_way() as store:
            with pytest.raises(StoreError):
                await store.append(SessionId("unknown"), a_row(1, "hello"))
    assert logs == []


async def test_an_answered_mail_keeps_its_row_and_drops_its_body(opened: Opener, path: Path) -> None:
    async with opened() as store:
        await store.accept(a_mail(text="long"))
        await store.finish(stores.an_answer(), None, [], push=True)
    assert _rows(path, "SELECT id, answered, body FROM inbox") == [("mail-1", 20.0, None)]


async def test_a_plain_message_is_stored_as_its_text_alone(opened: Opener, path: Path) -> None:
    async with opened() as store:
        store.begin(a_session())
        store.append(SESSION, a_row(1, "hello"))
    assert _rows(path, "SELECT role, text, extra FROM messages") == [("user", "hello", None)]


async def test_search_goes_on_with_what_it_knows_when_nothing_can_be_written(opened: Opener, path: Path) -> None:
    async with opened() as store:
        store.begin(a_session())
        await store.append(SESSION, a_row(1, "a fox"))
        assert len(await store.sessions(search="fox")) == 1
        with closing(sqlite3.connect(path, isolation_level=None)) as other, capture_logs() as logs:
            other.execute("BEGIN IMMEDIATE")
            assert len(await store.sessions(search="fox")) == 1
        assert [line["event"] for line in logs] == ["search may miss the newest messages"]


async def test_the_documented_backup_is_a_whole_store(opened: Opener, path: Path, tmp_path: Path) -> None:
    async with opened() as store:
        store.begin(a_session())
        await store.append(SESSION, a_row(1, "a fox"))
        await store.accept(a_mail())
        _rows(path, f"VACUUM INTO '{tmp_path / 'backup.db'}'")
        await store.accept(a_mail("later"))
    async with open_store(tmp_path / "backup.db", ledger=Ledger(), clock=SystemClock()) as backup:
        assert await backup.waiting() == [a_mail()]
        assert [row.id for row in await backup.sessions(search="fox")] == [SESSION]


async def test_repr_shows_what_waits(opened: Opener, path: Path) -> None:
    async with opened(inline=True) as store:
        assert repr(store) == f"<SqlStore {path}: 0 writes and 0 reads wait>"
        commit = store.accept(a_mail())
        assert repr(commit) == "<store.accept on its way>"
        await commit
        assert repr(commit) == "<store.accept done>"


async def _awaited(commit: Any) -> Any:
    return await commit


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def _open_files() -> list[str]:
    files = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that this listing itself had open
            continue
    return files


def _commits(path: Path) -> int:
    """How many transactions lie in the write-ahead log: a frame that ends one says how big the file is then."""
    log = Path(f"{path}-wal").read_bytes()
    page = int.from_bytes(log[8:12], "big")
    salts = log[16:24]
    frames = [log[start : start + 24] for start in range(32, len(log), 24 + page)]
    return sum(1 for frame in frames if frame[8:16] == salts and any(frame[4:8]))
