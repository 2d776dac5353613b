import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import bindparam, select

from holdfast.storage import queries, schema, sqlite
from holdfast.storage.tables import sessions

QUERIES = {name: text for name, text in vars(queries).items() if isinstance(text, str) and name.isupper()}
QUERIES |= {name: getattr(sqlite, name) for name in ("UNINDEX_MESSAGES", "CLOSE_GAP")}

OF_WHAT_IS_OPEN = ("SCAN inbox USING INDEX inbox_waiting", "SCAN outbox USING INDEX outbox_unsent")
"""Small indexes that hold nothing else may be read as a whole."""

INDEXES = {
    "OPEN_SESSION": "INDEX sessions_open (chat=?)",
    "END_IN": "INDEX sessions_open (chat=?)",
    "TELL": "INDEX sessions_untold (chat=?)",
    "EXPIRED_SESSION": "INDEX sessions_untold (chat=? AND ended>?)",
    "LAST_ENDED_SESSION": "INDEX sessions_ended_in_chat (chat=? AND ended>?)",
    "NEXT_CHANNEL": "INDEX sessions_open_by_use (channel>?)",
    "IDLE_SESSIONS": "INDEX sessions_open_by_use (channel=? AND (last_used,id)>(?,?) AND last_used<?)",
    "ENDED_SESSIONS": "INDEX sessions_ended_by_end ((ended,id)>(?,?) AND ended<?)",
    "UNCONCLUDED_SESSIONS": "INDEX sessions_unconcluded (ended>?)",
    "NEWEST_OPEN_OF": "INDEX sessions_open_by_use (channel=? AND last_used<?)",
    "NEWEST_ENDED": "INDEX sessions_ended_by_use (last_used<?)",
    "NEWEST_ENDED_OF": "INDEX sessions_ended_by_use (last_used<?)",
    "UNDO": "INDEX messages_in_order (session=? AND seq>?)",
    "PAGE_OF_MAIL": "INTEGER PRIMARY KEY (rowid>?)",
    "FORGET_ANSWERS": "INDEX outbox_mail (mail=?)",
    "FORGET_MAIL": "INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
}
"""What leads to the rows that a query is after, and to no others."""


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        schema.prepare(db, Path("memory"))
        yield db


def plan(db: sqlite3.Connection, query: str) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?"))]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_understood(name: str, db: sqlite3.Connection) -> None:
    db.execute(f"EXPLAIN {QUERIES[name]}", [None] * QUERIES[name].count("?"))


@pytest.mark.parametrize("name", QUERIES.keys() - {"GET_REVISION"})
def test_no_query_reads_a_whole_table_or_sorts(name: str, db: sqlite3.Connection) -> None:
    """A turn costs the same however much is stored."""
    for step in plan(db, QUERIES[name]):
        assert "TEMP B-TREE" not in step, step
        assert not step.startswith("SCAN") or step in OF_WHAT_IS_OPEN, step


@pytest.mark.parametrize("name", INDEXES)
def test_a_query_goes_by_its_index(name: str, db: sqlite3.Connection) -> None:
    assert plan(db, QUERIES[name])[0].endswith(f"USING {INDEXES[name]}")


@pytest.mark.parametrize("name", ["SESSION", "COUNT_MESSAGES"])
def test_messages_are_counted_without_reading_them(name: str, db: sqlite3.Connection) -> None:
    of_messages = [step for step in plan(db, QUERIES[name]) if "messages" in step]
    assert len(of_messages) == 2
    for step in of_messages:
        assert "COVERING INDEX messages_in_order" in step or "INDEX messages_undone" in step, step


def test_a_query_that_takes_its_values_in_another_order_is_refused() -> None:
    statement = select(sessions.c.id).where(sessions.c.chat == bindparam("a"), sessions.c.title == bindparam("b"))
    assert queries.compiled(statement, "a", "b").count("?") == 2
    with pytest.raises(TypeError, match="takes"):
        queries.compiled(statement, "b", "a")
