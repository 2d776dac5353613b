"""What a turn costs the store does not depend on what is stored: counted in the steps of SQLite's machine."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import Answer, AssistantMessage, Incoming, UserMessage
from holdfast.core.protocols import Controls, MessageRow, SessionRow
from holdfast.storage import reads, schema, sqlite, upkeep, writes

FEW, MANY = 100, 20_000
CHAT = ChatKey("web", "the chat")
SESSION = SessionId("the session")


@contextmanager
def open_filled(path: Path, sessions: int) -> Iterator[sqlite3.Connection]:
    """A store with this many conversations, each with a turn: a third is open, one ended, one expired unseen."""
    with closing(sqlite.connect(path, 1.0)) as connection:
        sqlite.prepare_to_write(connection, "normal")
        schema.prepare(connection, path)
        db = connection.cursor()
        db.execute("BEGIN")
        for number in range(sessions):
            session, chat = SessionId(f"session-{number}"), ChatKey(("web", "api")[number % 2], f"chat {number}")
            take_turn(db, session, chat, float(number), begins=True)
            if number % 3:
                writes.end(db, session, number + 0.5, ("new", "expired")[number % 3 - 1])
        db.execute("COMMIT")
        yield connection


def take_turn(db: sqlite3.Cursor, session: SessionId, chat: ChatKey, when: float, *, begins: bool) -> None:
    mail = MailId(f"mail-{session}-{when}")
    accepted = writes.accept(db, Incoming(mail, chat, "hello", when), wake=True)
    if begins:
        writes.begin(db, SessionRow(session, chat, when, when, prompt="You are an agent.", tools=("list",)))
    next_seq = accepted.woken.next_seq if accepted.woken else 0
    said = [MessageRow(next_seq, UserMessage("hello"), when, mail)]
    said.append(MessageRow(next_seq + 1, AssistantMessage("hi"), when, mail))
    answer = Answer(f"answer to {mail}", mail, chat, "hi", when)
    writes.finish(db, answer, session, said, push=False, controls=Controls("big"))


def count(connection: sqlite3.Connection, work: Iterator[str]) -> dict[str, int]:
    """How many steps of its machine SQLite takes for each part of the work."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    counted = {}
    connection.set_progress_handler(step, 1)
    try:
        for part in work:
            counted[part] = steps
            steps = 0
    finally:
        connection.set_progress_handler(None, 1)
    return counted


def a_life(db: sqlite3.Cursor) -> Iterator[str]:
    """All that happens to one conversation, part by part."""
    take_turn(db, SESSION, CHAT, 1e6, begins=True)
    yield "the first turn"
    take_turn(db, SESSION, CHAT, 1e6 + 1, begins=False)
    yield "the second turn"
    assert not writes.end(db, SESSION, 1e6 + 2, "expired", idle_since=1e6)
    assert writes.end(db, SESSION, 1e6 + 2, "expired", idle_since=1e6 + 1, hooks=True)
    yield "its expiry"
    assert [row.id for row in reads.unconcluded(db)] == [SESSION]
    writes.conclude(db, SESSION, 1e6 + 3)
    yield "the end of its end"
    assert writes.accept(db, Incoming(MailId("again"), CHAT, "hello", 1e6), wake=True).expired is not None
    yield "a message after that"
    assert reads.last_ended(db, CHAT) is not None
    assert writes.resume(db, SESSION, 1e6 + 4)
    yield "its resumption"
    writes.undo(db, SESSION, 2, 1e6 + 5)
    writes.control(db, SESSION, Controls())
    yield "an undo"
    assert len(reads.idle(db, "web", 1e9, limit=10)) == 10
    assert len(reads.ended(db, 1e9, limit=10)) == 10
    assert reads.channels(db) == ["api", "web"]
    yield "a look at what is idle or ended"
    assert len(reads.newest(db, "", None, 10)) == 10
    yield "a listing"
    assert writes.end(db, SESSION, 1e6 + 6, "new")
    while not upkeep.prune_session(db, SESSION):
        pass
    yield "its deletion"


@pytest.mark.proves("case 62")
def test_a_conversation_costs_the_same_with_few_and_with_many_others(tmp_path: Path) -> None:
    counted = []
    for sessions in (FEW, MANY):
        with open_filled(tmp_path / f"{sessions}.db", sessions) as connection:
            counted.append(count(connection, a_life(connection.cursor())))
    few, many = counted
    assert many == few
    assert few["the first turn"] < 2000
