"""What is SQLite's alone: how to connect, the full-text search, and the dialect the queries are compiled for."""

import sqlite3
from pathlib import Path
from typing import Literal

from sqlalchemy.dialects.sqlite import dialect, insert

__all__ = ["DIALECT", "INDEX_MESSAGES", "SEARCH", "SEARCH_TABLES", "Durability", "connect", "insert", "match"]

Durability = Literal["normal", "full"]

DIALECT = dialect(paramstyle="qmark")


# ── connections ─────────────────────────────────────────────────────────────────────────────────


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file as it is. Transactions are begun and ended by us, never by the driver."""
    return sqlite3.connect(path.absolute(), timeout=patience, isolation_level=None)


def prepare_to_write(db: sqlite3.Connection, durability: Durability) -> None:
    """Write-ahead log: readers never wait for the writer, and a commit is one append to a file."""
    for setting in (
        # Free pages can be given back in small steps. Of use from a file's first table on, or after a VACUUM.
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        # NORMAL outlives the process at any moment; FULL syncs each commit and so outlives the power.
        f"synchronous = {'FULL' if durability == 'full' else 'NORMAL'}",
        "foreign_keys = ON",
        # Some builds zero what is deleted, which costs writes; this does so where it is free.
        "secure_delete = FAST",
        "wal_autocheckpoint = 1000",
        "journal_size_limit = 16777216",
        "cache_size = -512",
    ):
        db.execute(f"PRAGMA {setting}")


def prepare_to_read(db: sqlite3.Connection) -> None:
    for setting in ("query_only = ON", "cache_size = -256"):
        db.execute(f"PRAGMA {setting}")


# ── free pages ──────────────────────────────────────────────────────────────────────────────────

LARGEST_REBUILD = 256 * 1024 * 1024
"""A larger file would keep a start waiting for long."""

FEW_FREE_PAGES = 1000
PAGES_AT_ONCE = 100


def can_give_pages_back(db: sqlite3.Connection) -> bool:
    return _number(db, "auto_vacuum") != 0


def rebuild(db: sqlite3.Connection) -> bool:
    """Write the file anew, so that it can give pages back from now on; false if it is too large for that."""
    if _number(db, "page_count") * _number(db, "page_size") > LARGEST_REBUILD:
        return False
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return True


def give_pages_back(db: sqlite3.Cursor) -> bool:
    """Shorten the file by some of its free pages; false if there are few, or it can't be shortened."""
    free = _number(db, "freelist_count")
    if free <= FEW_FREE_PAGES or free * 10 <= _number(db, "page_count"):
        return False
    for _ in range(PAGES_AT_ONCE):  # one by one: the driver takes a single step of what returns no rows
        db.execute("PRAGMA incremental_vacuum(1)")
    return _number(db, "freelist_count") < free


def _number(db: sqlite3.Connection | sqlite3.Cursor, name: str) -> int:
    (number,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(number)


# ── search ──────────────────────────────────────────────────────────────────────────────────────

# The index keeps words only; texts stay in `messages`. It is filled in bulk, by INDEX_MESSAGES: a trigger
# for each message costs eight times as much, and most of what a commit costs.
SEARCH_TABLES = (
    "CREATE VIEW searchable AS SELECT id, text FROM messages WHERE role IN ('user', 'assistant') AND text != ''",
    """CREATE VIRTUAL TABLE messages_fts USING fts5 (
        text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
    )""",
    "INSERT INTO meta (key, value) VALUES ('indexed', '0')",
)

INDEX_MESSAGES = (
    """INSERT INTO messages_fts (rowid, text) SELECT id, text FROM searchable
        WHERE id > (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'indexed')""",
    """UPDATE meta SET value = (SELECT max(id) FROM messages)
        WHERE key = 'indexed' AND CAST(value AS INTEGER) < (SELECT max(id) FROM messages)""",
)

# The index finds a message's words by its text, so this comes before the message is deleted. The next message may get
# the number of one that is gone, and must be new to the index then.
UNINDEX_MESSAGES = """INSERT INTO messages_fts (messages_fts, rowid, text) SELECT 'delete', id, text FROM searchable
    WHERE id IN (SELECT id FROM messages WHERE session = ? AND seq <= ?)
        AND id <= (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'indexed')"""
CLOSE_GAP = """UPDATE meta SET value = (SELECT coalesce(max(id), 0) FROM messages)
    WHERE key = 'indexed' AND CAST(value AS INTEGER) > (SELECT coalesce(max(id), 0) FROM messages)"""

# Each conversation once, by its best message; the snippets are made for the few that are returned.
SEARCH = """
WITH hits AS MATERIALIZED (
    SELECT rowid AS id, rank FROM messages_fts WHERE messages_fts MATCH :match
), best AS (
    SELECT messages.session AS session, messages.id AS id, min(hits.rank) AS rank
    FROM hits JOIN messages ON messages.id = hits.id
    WHERE messages.undone IS NULL
    GROUP BY messages.session
), top AS MATERIALIZED (
    SELECT sessions.id, sessions.chat, sessions.created, sessions.last_used, sessions.title, sessions.ended,
        sessions.end_reason, sessions.tools, sessions.controls, best.id AS message, best.rank
    FROM best JOIN sessions ON sessions.id = best.session
    WHERE (:channel = '' OR sessions.channel = :channel) AND sessions.last_used < :before
    ORDER BY best.rank, sessions.last_used DESC LIMIT :limit
)
SELECT top.id, top.chat, top.created, top.last_used, top.title, top.ended, top.end_reason, top.tools, top.controls,
    (SELECT count(*) FROM messages WHERE messages.session = top.id)
        - (SELECT count(*) FROM messages WHERE messages.session = top.id AND messages.undone IS NOT NULL),
    snippet(messages_fts, 0, char(2), char(3), '…', 16)
FROM top JOIN messages_fts ON messages_fts.rowid = top.message
WHERE messages_fts MATCH :match
ORDER BY top.rank, top.last_used DESC
"""

_MOST_WORDS = 32


def match(text: str) -> str:
    """An FTS5 expression for what a person typed: every word, the last as a beginning. Empty if there is no word.

    Each word goes in as a quoted string, so that nothing in it is an operator, and FTS5 cuts it up the way
    it cut up the messages.
    """
    words = [word for word in text.replace("\0", " ").split() if any(map(str.isalnum, word))][:_MOST_WORDS]
    if not words:
        return ""
    return " AND ".join('"' + word.replace('"', '""') + '"' for word in words) + "*"
