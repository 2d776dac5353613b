"""The reads. Each runs on a reader's connection and sees everything that was committed before."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from operator import itemgetter
from sqlite3 import Cursor
from typing import Any

from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import MessageRow, SessionRow, Woken
from holdfast.storage import queries
from holdfast.storage.records import (
    characters,
    decode_answer,
    decode_controls,
    decode_mail,
    decode_message,
    decode_tools,
)
from holdfast.storage.sqlite import SEARCH, match

_LAST_SEQ = 2**63 - 1


def wake(db: Cursor, chat: ChatKey, *, most: int = _LAST_SEQ) -> Woken | None:
    """The chat's open conversation; of a history longer than `most` messages, one more than that."""
    session = open_session(db, chat)
    if session is None:
        return None
    rows = db.execute(queries.HISTORY, (session.id,))
    history = [_message(row) for row in (rows if most == _LAST_SEQ else rows.fetchmany(most + 1))]
    (next_seq,) = db.execute(queries.NEXT_SEQ, (session.id,)).fetchone()
    return Woken(session, history, next_seq)


def open_session(db: Cursor, chat: ChatKey) -> SessionRow | None:
    """The chat's open conversation, without its history."""
    return _with_prompt(db.execute(queries.OPEN_SESSION, (str(chat),)).fetchone())


def expired(db: Cursor, chat: ChatKey) -> SessionRow | None:
    """The conversation that expired in a chat, if nobody there was told yet."""
    return _with_prompt(db.execute(queries.EXPIRED_SESSION, (str(chat),)).fetchone())


def last_ended(db: Cursor, chat: ChatKey) -> SessionRow | None:
    """The conversation of a chat that ended last."""
    return _with_prompt(db.execute(queries.LAST_ENDED_SESSION, (str(chat),)).fetchone())


def channels(db: Cursor) -> list[str]:
    """The channels that have open conversations: from each to the next one, with one look at the index."""
    found = [""]
    while row := db.execute(queries.NEXT_CHANNEL, (found[-1],)).fetchone():
        found.append(row[0])
    return found[1:]


def idle(
    db: Cursor, channel: str, before: float, *, after: tuple[float, str] = (-inf, ""), limit: int = 100
) -> list[SessionRow]:
    """A page of a channel's open conversations last used before a time, the longest idle first, without prompts."""
    rows = db.execute(queries.IDLE_SESSIONS, (channel, before, *after, max(limit, 0)))
    return [_session(row) for row in rows]


def ended(db: Cursor, before: float, *, after: tuple[float, str] = (-inf, ""), limit: int = 100) -> list[SessionRow]:
    """A page of the conversations that ended before a time, the first ended first, without prompts."""
    rows = db.execute(queries.ENDED_SESSIONS, (before, *after, max(limit, 0)))
    return [_session(row) for row in rows]


def unconcluded(db: Cursor, *, limit: int = 100) -> list[SessionRow]:
    """Ended conversations whose end has not been seen to, without prompts."""
    return [_session(row) for row in db.execute(queries.UNCONCLUDED_SESSIONS, (max(limit, 0),))]


def history(db: Cursor, session: SessionId) -> list[MessageRow]:
    return [_message(row) for row in db.execute(queries.HISTORY, (session,))]


def waiting(db: Cursor) -> list[Incoming]:
    """The inbox: accepted, not yet answered, in the order of acceptance."""
    return [decode_mail(body) for (body,) in db.execute(queries.WAITING)]


def unsent(db: Cursor) -> list[Answer]:
    """The outbox: answered, not yet sent, in order."""
    return [decode_answer(body) for (body,) in db.execute(queries.UNSENT)]


def answer_to(db: Cursor, mail: MailId) -> Answer | None:
    return _answer(db.execute(queries.ANSWER_TO, (mail,)).fetchone())


def answer(db: Cursor, answer_id: str) -> Answer | None:
    return _answer(db.execute(queries.ANSWER_BY_ID, (answer_id,)).fetchone())


def session(db: Cursor, session: SessionId) -> SessionRow | None:
    row = db.execute(queries.SESSION, (session,)).fetchone()
    return None if row is None else _session(row, prompt=row[9], messages=row[10])


def newest(db: Cursor, channel: str, before: float | None, limit: int) -> list[SessionRow]:
    """Conversations, the last used first, without their prompts.

    Those that are open come from each channel, those that ended from all at once, just as the indexes have them.
    """
    end, limit = inf if before is None else before, max(limit, 0)
    with _snapshot(db):
        names = [channel] if channel else channels(db)
        pages = [db.execute(queries.NEWEST_OPEN_OF, (end, name, limit)).fetchall() for name in names]
        if channel:
            pages.append(db.execute(queries.NEWEST_ENDED_OF, (end, channel, limit)).fetchall())
        else:
            pages.append(db.execute(queries.NEWEST_ENDED, (end, limit)).fetchall())
        rows = sorted((row for page in pages for row in page), key=_last_used, reverse=True)[:limit]
        counts = [db.execute(queries.COUNT_MESSAGES, row[:1]).fetchone()[0] for row in rows]
    return [_session(row, messages=count) for row, count in zip(rows, counts, strict=True)]


def search(db: Cursor, text: str, channel: str, before: float | None, limit: int) -> list[SessionRow]:
    """Conversations in which someone said this, the best first, each with the place where it was said."""
    expression = match(characters(text))
    if not expression:
        return []
    end = inf if before is None else before
    values = {"match": expression, "channel": channel, "before": end, "limit": max(limit, 0)}
    return [_session(row, messages=row[9], snippet=row[10]) for row in db.execute(SEARCH, values)]


def messages(db: Cursor, session: SessionId, *, before: int | None = None, limit: int = 200) -> list[MessageRow]:
    """A page of history, oldest first, ending before `before`."""
    end = _LAST_SEQ if before is None else before
    page = db.execute(queries.LAST_MESSAGES, (session, end, max(limit, 0))).fetchall()
    return [_message(row) for row in reversed(page)]


@contextmanager
def _snapshot(db: Cursor) -> Iterator[None]:
    """What is read inside is all of one moment."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


_last_used = itemgetter(3)


def _answer(row: tuple[str] | None) -> Answer | None:
    return None if row is None else decode_answer(row[0])


def _message(row: tuple[Any, ...]) -> MessageRow:
    seq, role, text, extra, created, mail = row
    return MessageRow(seq, decode_message(role, text, extra), created, mail)


def _with_prompt(row: tuple[Any, ...] | None) -> SessionRow | None:
    return None if row is None else _session(row, prompt=row[9])


def _session(row: tuple[Any, ...], *, prompt: str = "", messages: int = 0, snippet: str = "") -> SessionRow:
    """From the columns that all these queries begin with, and what else they know."""
    id, chat, created, last_used, title, ended, end_reason, tools, controls = row[:9]
    return SessionRow(
        id=id,
        chat=ChatKey.parse(chat),
        created=created,
        last_used=last_used,
        title=title,
        prompt=prompt,
        tools=decode_tools(tools),
        controls=decode_controls(controls),
        ended=ended,
        end_reason=end_reason,
        messages=messages,
        snippet=snippet,
    )
