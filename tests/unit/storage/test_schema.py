import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.core.errors import StoreCorrupt, StoreError, StoreTooNew
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import Incoming
from holdfast.core.protocols import SessionRow, Store
from holdfast.storage import schema, sqlite
from holdfast.testing.stores import CHAT, SESSION, a_row, a_session

Opener = Callable[..., AbstractAsyncContextManager[Store]]

NEXT = schema.REVISION + 1
NEXT_REVISION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT:04}"
down_revision = "{schema.REVISION:04}"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("mood", sa.Text, nullable=False, server_default="calm"))
    with op.batch_alter_table("messages") as messages:  # rebuilds the table that others refer to
        messages.alter_column("mail", new_column_name="letter")
"""


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite.connect(path, 1.0)) as db:
        sqlite.prepare_to_write(db, "normal")
        yield db


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """The migrations of a Holdfast to come: today's and one more."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"revision_{NEXT:04}.py").write_text(NEXT_REVISION)
    return folder


def described(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Everything in the schema, but for white space and the order of making."""
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
    return [(*row, " ".join((text or "").split())) for *row, text in rows]


def fill(db: sqlite3.Connection) -> None:
    from holdfast.storage import writes

    cursor = db.cursor()
    writes.begin(cursor, a_session(title="kept"))
    writes.append(cursor, SESSION, a_row(1, "kept too"))


def test_making_a_file_and_migrating_an_empty_one_give_the_same_schema(db: sqlite3.Connection, path: Path) -> None:
    schema.prepare(db, path)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as migrated:
        schema.upgrade(migrated, schema.MIGRATIONS)
        assert described(migrated) == described(db)
        for table in ("alembic_version", "meta"):
            everything = f"SELECT * FROM {table} ORDER BY 1"
            assert migrated.execute(everything).fetchall() == db.execute(everything).fetchall()


def test_the_newest_revision_is_the_one_that_fresh_files_get() -> None:
    versions = (schema.MIGRATIONS / "versions").glob("*.py")
    assert max(int(file.stem.removeprefix("revision_")) for file in versions) == schema.REVISION


def test_an_older_file_is_upgraded_and_keeps_what_it_holds(
    db: sqlite3.Connection, path: Path, next_version: Path
) -> None:
    schema.prepare(db, path)
    fill(db)
    schema.prepare(db, path, newest=NEXT, migrations=next_version)
    assert db.execute("SELECT title, mood FROM sessions").fetchall() == [("kept", "calm")]
    assert db.execute("SELECT text, letter FROM messages").fetchall() == [("kept too", "mail-1")]
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(f"{NEXT:04}",)]
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert not db.in_transaction
    schema.prepare(db, path, newest=NEXT, migrations=next_version)


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ("raise RuntimeError('broken')", RuntimeError),
        ("op.execute('DELETE FROM sessions')", StoreError),
        ("op.execute('nonsense')", sqlite3.OperationalError),
    ],
)
def test_an_upgrade_that_fails_leaves_the_file_as_it_was(
    db: sqlite3.Connection, path: Path, next_version: Path, flaw: str, error: type[Exception]
) -> None:
    """One that raises at its end, one that breaks a reference without a word, one that the database refuses."""
    schema.prepare(db, path)
    fill(db)
    before = described(db)
    (next_version / "versions" / f"revision_{NEXT:04}.py").write_text(f"{NEXT_REVISION}    {flaw}\n")
    with pytest.raises(error):
        schema.prepare(db, path, newest=NEXT, migrations=next_version)
    assert described(db) == before
    assert db.execute("SELECT text, mail FROM messages").fetchall() == [("kept too", "mail-1")]
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(f"{schema.REVISION:04}",)]
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)


REVISION_1 = (
    """INSERT INTO sessions (id, chat, channel, created, last_used, ended, end_reason, title, prompt) VALUES
        ('old', 'web:one', 'web', 1.5, 2.5, 3.5, 'new', 'Old', 'prompt 1'),
        ('open', 'web:one', 'web', 4.5, 5.5, NULL, '', 'Open', 'prompt 2'),
        ('other', 'api:two', 'api', 1.0, 2.0, NULL, '', '', '')""",
    """INSERT INTO messages (session, seq, mail, role, created, undone, extra, text) VALUES
        ('old', 0, 'm0', 'user', 1.5, NULL, NULL, 'a fox'),
        ('open', 0, 'm1', 'user', 4.5, NULL, NULL, 'a badger'),
        ('open', 1, 'm1', 'tool', 4.6, NULL, '{"type":"tool","call_id":"c","name":"t","text":""}', 'a result'),
        ('open', 2, 'm1', 'assistant', 4.7, 5.0, NULL, 'undone')""",
    """INSERT INTO inbox (id, chat, received, answered, fingerprint, body) VALUES
        ('m1', 'web:one', 4.5, 4.8, 'f', NULL),
        ('m2', 'api:two', 4.9, NULL, '', '{"id":"m2","chat":["api","two",""],"text":"hi","received":4.9}')""",
    """INSERT INTO outbox (id, mail, chat, created, sent, body) VALUES
        ('a1', 'm1', 'web:one', 4.8, NULL,
        '{"id":"a1","mail":"m1","chat":["web","one",""],"text":"ok","created":4.8}')""",
    *sqlite.INDEX_MESSAGES,
)
"""What a Holdfast of the first revision left: conversations that ended, are open, and wait for an answer."""


@pytest.mark.anyio
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
async def test_a_file_of_the_first_revision_keeps_everything(
    opened: Opener, path: Path, tmp_path: Path, journal: str
) -> None:
    folder = tmp_path / "first"
    later = shutil.ignore_patterns("__pycache__", *(f"revision_{n:04}.py" for n in range(2, NEXT)))
    shutil.copytree(schema.MIGRATIONS, folder, ignore=later)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        schema.upgrade(db, folder)
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        for statement in REVISION_1:
            db.execute(statement)

    one, two = ChatKey("web", "one"), ChatKey("api", "two")
    async with opened() as store:
        woken = await store.wake(one)
        assert woken is not None
        assert woken.session == SessionRow(SessionId("open"), one, 4.5, 5.5, title="Open", prompt="prompt 2")
        assert [row.message.text for row in woken.history] == ["a badger", "a result"]
        assert woken.next_seq == 3
        old = await store.session(SessionId("old"))
        assert old == SessionRow(
            *(SessionId("old"), one, 1.5, 2.5, "Old", "prompt 1"), ended=3.5, end_reason="new", messages=1
        )
        assert await store.last_ended(one) == msgspec.structs.replace(old, messages=0)
        assert [row.id for row in await store.sessions(search="fox")] == ["old"]
        assert [mail.id for mail in await store.waiting()] == ["m2"]
        assert [answer.id for answer in await store.unsent()] == ["a1"]
        assert (await store.accept(Incoming(MailId("m1"), one, "", 9.0))).fingerprint == "f"
        assert await store.unconcluded() == [], "what ended before had nothing to wait for"
        assert await store.expired(one) is None
        assert await store.channels() == ["api", "web"]
        assert [row.id for row in await store.idle("api", 3.0)] == ["other"]
        assert await store.open_session(two) is not None
    with closing(sqlite3.connect(path)) as upgraded, closing(sqlite.connect(tmp_path / "fresh.db", 1.0)) as fresh:
        sqlite.prepare_to_write(fresh, "normal")
        schema.prepare(fresh, path)
        assert described(upgraded) == described(fresh)
        for setting in ("auto_vacuum", "journal_mode"):
            assert upgraded.execute(f"PRAGMA {setting}").fetchone() == fresh.execute(f"PRAGMA {setting}").fetchone()
        assert upgraded.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.anyio
async def test_a_newer_file_is_refused_and_left_alone(
    opened: Opener, path: Path, next_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite.connect(path, 1.0)) as db, monkeypatch.context() as newer:
        newer.setattr(schema, "__version__", "7.3.1")
        schema.prepare(db, path)
        schema.prepare(db, path, newest=NEXT, migrations=next_version)
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"written by Holdfast 7\.3\.1 .* upgrade to 7\.3\.1 or newer") as refusal:
        async with opened():
            pytest.fail("it was opened")
    assert str(path) in str(refusal.value)
    assert holdfast.__version__ in str(refusal.value)
    assert path.read_bytes() == before


@pytest.mark.anyio
@pytest.mark.parametrize("mark", [None, "b1c2d3"])
async def test_someone_elses_database_is_refused_and_left_alone(opened: Opener, path: Path, mark: str | None) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE songs (title)")
        if mark:
            other.execute("CREATE TABLE meta (x)")
            other.execute("CREATE TABLE alembic_version (version_num)")
            other.execute("INSERT INTO alembic_version VALUES (?)", (mark,))
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of Holdfast's"):
        async with opened():
            pytest.fail("it was opened")
    assert path.read_bytes() == before


@pytest.mark.anyio
async def test_an_empty_file_becomes_a_store_and_a_text_is_refused(opened: Opener, path: Path) -> None:
    path.write_bytes(b"")
    async with opened() as store:
        assert await store.wake(CHAT) is None
    path.write_text("Dear diary, " * 1000)
    with pytest.raises(StoreCorrupt, match="not a database"):
        async with opened():
            pytest.fail("it was opened")


def test_alembic_is_loaded_for_an_upgrade_only(path: Path) -> None:
    """It takes 0.15 s and 10 MB, which a start should not pay."""
    program = f"""
import asyncio, sys
from pathlib import Path
from holdfast.core.clock import SystemClock
from holdfast.core.ledger import Ledger
from holdfast.storage import open_store, schema, sqlite

async def main():
    for _ in range(2):
        async with open_store(Path({str(path)!r}), ledger=Ledger(), clock=SystemClock()) as store:
            await store.sessions(search="x")
    assert "alembic" not in sys.modules
    db = sqlite.connect(Path("empty.db"), 1.0)
    schema.upgrade(db, schema.MIGRATIONS)
    db.close()
    assert "alembic" in sys.modules

asyncio.run(main())
"""
    source = Path(holdfast.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=path.parent, env={"PYTHONPATH": str(source)})
