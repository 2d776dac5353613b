import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import bindparam, select

from holdfast.storage import queries, schema
from holdfast.storage.tables import sessions

QUERIES = {name: text for name, text in vars(queries).items() if isinstance(text, str) and name.isupper()}
SELECTS = {name: text for name, text in QUERIES.items() if text.startswith("SELECT") and name != "GET_REVISION"}


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


@pytest.mark.parametrize("name", SELECTS)
def test_no_query_reads_a_whole_table_or_sorts(name: str, db: sqlite3.Connection) -> None:
    """A turn costs the same however much is stored: scans are of the partial indexes, which hold what is open."""
    for step in plan(db, SELECTS[name]):
        assert "TEMP B-TREE" not in step, step
        if step.startswith("SCAN"):
            assert step in ("SCAN inbox USING INDEX inbox_waiting", "SCAN outbox USING INDEX outbox_unsent"), step


@pytest.mark.parametrize("name", ["NEWEST_SESSIONS", "NEWEST_SESSIONS_OF"])
def test_a_listing_counts_messages_without_reading_them(name: str, db: sqlite3.Connection) -> None:
    of_messages = [step for step in plan(db, QUERIES[name]) if "messages" in step]
    assert len(of_messages) == 2
    for step in of_messages:
        assert "COVERING INDEX messages_in_order" in step or "INDEX messages_undone" in step, step


def test_a_query_that_takes_its_values_in_another_order_is_refused() -> None:
    statement = select(sessions.c.id).where(sessions.c.chat == bindparam("a"), sessions.c.title == bindparam("b"))
    assert queries.compiled(statement, "a", "b").count("?") == 2
    with pytest.raises(TypeError, match="takes"):
        queries.compiled(statement, "b", "a")
