"""What the contract of a store can't see: the file's size, the search's own tables, how small a step is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.storage import sqlite, upkeep, writes
from holdfast.storage.connections import Writer, open_writer
from holdfast.storage.pending import Pending, WriteStep
from holdfast.testing.stores import SESSION, a_mail, a_row, a_session, an_answer

OTHER = SessionId("other")


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    with open_writer(path, "normal", 1.0) as writer:
        yield writer


def do(writer: Writer, run: Any, *args: Any, **options: Any) -> Any:
    call: Pending[WriteStep, Any] = Pending(WriteStep(run), args, options)
    writer.run([call])
    if call.error:
        raise call.error
    return call.result


def number(path: Path, query: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(query).fetchone()[0])


def messages(path: Path) -> int:
    return number(path, "SELECT count(*) FROM messages")


def converse(writer: Writer, id: SessionId, *texts: str) -> None:
    do(writer, writes.begin, a_session(id, ChatKey("test", id)))
    for seq, text in enumerate(texts):
        do(writer, writes.append, id, a_row(seq, text))


# ── conversations ───────────────────────────────────────────────────────────────────────────────


def test_a_step_deletes_a_few_messages(writer: Writer, path: Path) -> None:
    converse(writer, SESSION, *["short"] * (2 * upkeep.PAGE_OF_MESSAGES))
    do(writer, writes.end, SESSION, 30.0, "new")
    assert not do(writer, upkeep.prune_session, SESSION)
    assert messages(path) == 2 * upkeep.PAGE_OF_MESSAGES, "the first step only bars its resumption"
    assert not do(writer, upkeep.prune_session, SESSION)
    assert messages(path) == upkeep.PAGE_OF_MESSAGES
    assert do(writer, upkeep.prune_session, SESSION), "that was the rest, and no step comes in vain"
    assert (messages(path), number(path, "SELECT count(*) FROM sessions")) == (0, 0)


def test_a_step_deletes_fewer_messages_when_they_are_long(writer: Writer, path: Path) -> None:
    half = "x" * (upkeep.PAGE_OF_TEXT // 2)
    converse(writer, SESSION, half, half, half, 6 * half, "short")
    do(writer, writes.end, SESSION, 30.0, "new")
    left = []
    while not do(writer, upkeep.prune_session, SESSION):
        left.append(messages(path))
    assert left == [5, 3, 2, 1], "nothing, two halves, what is left of the page, and one that is longer than a page"


@pytest.mark.parametrize("indexed", ["all", "some", "none"])
def test_the_search_forgets_exactly_what_is_deleted(writer: Writer, path: Path, indexed: str) -> None:
    """SQLite itself compares the words that it finds with the messages that are there."""
    converse(writer, OTHER, "a fox", "a badger")
    converse(writer, SESSION, *(f"fox number {seq}" for seq in range(60)))
    do(writer, writes.append, SESSION, a_row(60, AssistantMessage("")))
    do(writer, writes.append, SESSION, a_row(61, ToolMessage("call", "tool", "a fox of a tool")))
    if indexed != "none":
        do(writer, writes.index)
    if indexed == "some":
        do(writer, writes.append, SESSION, a_row(62, "a late fox"))
        do(writer, writes.append, OTHER, a_row(2, "a later fox"))
    do(writer, writes.end, SESSION, 30.0, "new")
    while not do(writer, upkeep.prune_session, SESSION):
        pass
    do(writer, writes.append, OTHER, a_row(3, UserMessage("the latest fox", notes=("a note",))))
    do(writer, writes.index)
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)")
        found = db.execute("SELECT count(*) FROM messages_fts WHERE messages_fts MATCH 'fox'").fetchone()
    assert found == (3 if indexed == "some" else 2,)


# ── mail ────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_looks_at_one_page_of_mail(writer: Writer, path: Path) -> None:
    for index in range(2 * upkeep.PAGE_OF_MAIL + 1):
        do(writer, writes.accept, a_mail(f"m{index}"))
        do(writer, writes.finish, an_answer(f"m{index}"), None, [], push=False)
    counts = "SELECT (SELECT count(*) FROM inbox) * 10000 + (SELECT count(*) FROM outbox)"
    first = do(writer, upkeep.prune_mail, 50.0)
    assert (first, number(path, counts)) == (upkeep.PAGE_OF_MAIL, (upkeep.PAGE_OF_MAIL + 1) * 10001)
    second = do(writer, upkeep.prune_mail, 50.0, after=first)
    assert (second, number(path, counts)) == (2 * upkeep.PAGE_OF_MAIL, 10001)
    assert do(writer, upkeep.prune_mail, 50.0, after=second) is None
    assert number(path, counts) == 0


def test_mail_that_is_newer_ends_the_search(writer: Writer, path: Path) -> None:
    """However much came since then: a page without anything older is the last."""
    for index in range(2 * upkeep.PAGE_OF_MAIL):
        do(writer, writes.accept, a_mail(f"m{index}", received=60.0))
    assert do(writer, upkeep.prune_mail, 50.0) is None
    assert do(writer, upkeep.prune_mail, 60.1) == upkeep.PAGE_OF_MAIL, "there is more to look at"


# ── the file ────────────────────────────────────────────────────────────────────────────────────


def test_a_file_gives_its_free_pages_back_a_few_at_a_time(writer: Writer, path: Path) -> None:
    for seq in range(60):
        converse(writer, SessionId(f"s{seq}"), "y" * 100_000)
    for seq in range(58):
        do(writer, writes.end, SessionId(f"s{seq}"), 30.0, "new")
        while not do(writer, upkeep.prune_session, SessionId(f"s{seq}")):
            pass
    pages = [number(path, "PRAGMA page_count")]
    while do(writer, upkeep.shrink):
        pages.append(number(path, "PRAGMA page_count"))
    steps = [before - after for before, after in pairwise(pages)]
    assert len(steps) > 3
    assert max(steps) <= sqlite.PAGES_AT_ONCE + 1, "with now and then a page that tells where pages are"
    assert number(path, "PRAGMA freelist_count") <= sqlite.FEW_FREE_PAGES
    writer._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size == pages[-1] * 4096
    assert writer._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert messages(path) == 2


@pytest.mark.parametrize("setting", ["FEW_FREE_PAGES", "a tenth"])
def test_a_few_free_pages_stay(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """They are of use soon; and moving pages about costs more than they are worth."""
    converse(writer, OTHER, "x" * 2_000_000)
    converse(writer, SESSION, "y" * (100_000 if setting == "a tenth" else 1_000_000))
    do(writer, writes.end, SESSION, 30.0, "new")
    while not do(writer, upkeep.prune_session, SESSION):
        pass
    monkeypatch.setattr(sqlite, "FEW_FREE_PAGES", 1 if setting == "a tenth" else 1000)
    before = number(path, "PRAGMA freelist_count")
    assert before > 20
    assert not do(writer, upkeep.shrink)
    assert number(path, "PRAGMA freelist_count") == before
    monkeypatch.setattr(sqlite, "FEW_FREE_PAGES", 1)
    assert do(writer, upkeep.shrink) == (setting != "a tenth")
