import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core import failpoints
from holdfast.core.errors import StoreError
from holdfast.core.keys import SessionId
from holdfast.storage import schema, sqlite, upkeep, writes
from holdfast.storage.connections import INDEX, Reader, Writer, open_reader, open_writer
from holdfast.storage.pending import Pending, Step, WriteStep
from holdfast.testing.stores import SESSION, a_mail, a_row, a_session

ACCEPT, BEGIN, APPEND = WriteStep(writes.accept), WriteStep(writes.begin), WriteStep(writes.append)


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    with open_writer(path, "normal", 1.0) as writer:
        yield writer


@pytest.fixture
def reader(writer: Writer, path: Path) -> Iterator[Reader]:
    with open_reader(path, 1.0) as reader:
        yield reader


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def write(step: WriteStep, *args: Any) -> Pending[WriteStep, Any]:
    return Pending(step, args, {})


def stored(path: Path, query: str = "SELECT id FROM inbox ORDER BY number") -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute(query)]


def test_a_batch_is_one_transaction(writer: Writer, path: Path) -> None:
    batch = [write(ACCEPT, a_mail(f"m{number}")) for number in range(3)]
    writer.run(batch)
    assert stored(path) == ["m0", "m1", "m2"]
    assert all(call.error is None and call.result.fresh for call in batch)


def test_bad_writes_fail_alone_each_with_its_own_error(writer: Writer, path: Path) -> None:
    batch = [
        write(ACCEPT, a_mail("m0")),
        write(BEGIN, a_session()),
        write(APPEND, SessionId("unknown"), a_row(1, "no such session")),
        write(APPEND, SESSION, a_row(2**70, "no such number")),
        write(APPEND, SESSION, a_row(1, "good")),
        write(ACCEPT, a_mail("m1")),
    ]
    writer.run(batch)
    assert [type(call.error) for call in batch] == [
        type(None),
        type(None),
        StoreError,
        OverflowError,
        type(None),
        type(None),
    ]
    assert stored(path) == ["m0", "m1"]
    assert stored(path, "SELECT text FROM messages") == ["good"]


def test_a_failure_before_the_commit_undoes_that_write_alone(writer: Writer, path: Path) -> None:
    failpoints.arm("store.accept.before=fail:2")
    batch = [write(ACCEPT, a_mail(f"m{number}")) for number in range(3)]
    writer.run(batch)
    assert [type(call.error) for call in batch] == [type(None), failpoints.InjectedFailure, type(None)]
    assert stored(path) == ["m0", "m2"]


def test_a_failure_after_the_commit_undoes_nothing(writer: Writer, path: Path) -> None:
    failpoints.arm("store.accept.after=fail:2")
    batch = [write(ACCEPT, a_mail(f"m{number}")) for number in range(3)]
    writer.run(batch)
    assert [type(call.error) for call in batch] == [type(None), failpoints.InjectedFailure, type(None)]
    assert stored(path) == ["m0", "m1", "m2"]


def test_points_are_reached_around_the_commit(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection sees the write after the commit and not before."""
    seen: dict[str, list[Any]] = {}
    monkeypatch.setattr(failpoints, "reach", lambda name: seen.setdefault(name, stored(path)))
    writer.run([write(ACCEPT, a_mail("m0"))])
    assert seen == {"store.accept.before": [], "store.accept.after": ["m0"]}


def test_now_and_then_search_is_told_of_new_messages(writer: Writer, path: Path) -> None:
    writer.run([write(BEGIN, a_session())])
    assert writer.due() == []
    writer.run([write(APPEND, SESSION, a_row(seq, "hello")) for seq in range(1000)])
    due = writer.due()
    assert [call.step.name for call in due] == ["index"]
    writer.run(due)
    assert stored(path, "SELECT value FROM meta WHERE key = 'indexed'") == ["1000"]
    assert len(stored(path, "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'hello'")) == 1000
    while due := writer.due():
        writer.run(due)
    assert len(stored(path, "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'hello'")) == 1000


def test_indexing_writes_nothing_when_there_is_nothing_new(writer: Writer, path: Path) -> None:
    """A search that is repeated with each key typed must not wear out the disk."""
    writer.run([write(BEGIN, a_session()), write(APPEND, SESSION, a_row(1, "hello")), write(INDEX)])
    log = Path(f"{path}-wal").read_bytes()
    index = write(INDEX)
    writer.run([index])
    assert index.error is None
    assert Path(f"{path}-wal").read_bytes() == log


@pytest.fixture
def stiff(path: Path) -> Path:
    """A file of a Holdfast whose files never got shorter."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        schema.prepare(db, path)
        assert setting(path, "auto_vacuum") == 0
    return path


def setting(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def test_a_file_that_could_not_shrink_is_written_anew_once(stiff: Path) -> None:
    for lines in (["the store gives free space back from now on"], []):
        with capture_logs() as logs, open_writer(stiff, "normal", 1.0) as writer:
            writer.run([write(ACCEPT, a_mail("m0"))])
            assert Path(f"{stiff}-wal").stat().st_size < 100_000, "the log does not keep a copy of the file"
        assert [line["event"] for line in logs] == lines
        assert (setting(stiff, "auto_vacuum"), stored(stiff)) == (2, ["m0"])


def test_a_large_file_that_cannot_shrink_stays_as_it_is(stiff: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LARGEST_REBUILD", 4096)
    monkeypatch.setattr(sqlite, "FEW_FREE_PAGES", 1)
    with open_writer(stiff, "normal", 1.0) as writer:
        writer.run([write(BEGIN, a_session()), write(APPEND, SESSION, a_row(1, "x" * 1_000_000))])
        prune = WriteStep(upkeep.prune_session)
        writer.run([write(WriteStep(writes.end), SESSION, 30.0, "new"), *(write(prune, SESSION) for _ in range(2))])
        shrink = write(WriteStep(upkeep.shrink))
        writer.run([shrink])
        assert shrink.result is False
    assert setting(stiff, "auto_vacuum") == 0
    assert setting(stiff, "freelist_count") > 100


def test_a_file_that_cannot_be_written_anew_is_used_as_it_is(stiff: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(db: sqlite3.Connection) -> bool:
        db.set_progress_handler(lambda: 1, 1)  # SQLite breaks off what it is at
        try:
            db.execute("VACUUM")
        finally:
            db.set_progress_handler(None, 1)
        return True

    monkeypatch.setattr(sqlite, "rebuild", give_up)
    with capture_logs() as logs, open_writer(stiff, "normal", 1.0) as writer:
        writer.run([write(ACCEPT, a_mail("m0"))])
    assert [(line["log_level"], line["event"]) for line in logs] == [
        ("warning", "the store can't give free space back")
    ]
    assert (setting(stiff, "auto_vacuum"), stored(stiff)) == (0, ["m0"])


def test_leaving_leaves_one_file(path: Path) -> None:
    with open_writer(path, "normal", 1.0) as writer:
        writer.run([write(ACCEPT, a_mail("m0"))])
        assert len(list(path.parent.iterdir())) == 3
    assert list(path.parent.iterdir()) == [path]
    assert stored(path) == ["m0"]


def test_leaving_empties_the_log_even_if_someone_else_has_the_file_open(path: Path) -> None:
    with open_writer(path, "normal", 1.0) as writer:
        writer.run([write(ACCEPT, a_mail("m0"))])
        other = sqlite3.connect(path)
        assert other.execute("SELECT id FROM inbox").fetchall() == [("m0",)]
    assert Path(f"{path}-wal").stat().st_size == 0
    other.close()


def test_a_reader_can_only_read(reader: Reader) -> None:
    call: Pending[Step, Any] = Pending(Step(writes.accept), (a_mail(),), {})
    reader.run([call])
    assert isinstance(call.error, StoreError)


def test_a_read_that_breaks_off_holds_no_snapshot(writer: Writer, reader: Reader, path: Path) -> None:
    """One that did would keep the log from ever being emptied."""
    writer.run([write(ACCEPT, a_mail(f"m{number}")) for number in range(3)])

    def break_off(db: sqlite3.Cursor) -> None:
        for _ in db.execute("SELECT id FROM inbox"):
            raise RuntimeError("broken")

    call: Pending[Step, Any] = Pending(Step(break_off), (), {})
    reader.run([call])
    assert isinstance(call.error, RuntimeError)
    writer.run([write(ACCEPT, a_mail("m3"))])
    with closing(sqlite3.connect(path)) as other:
        busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy
