"""The reads. Each runs on a reader's connection and sees everything that was committed before."""

from math import inf
from sqlite3 import Cursor
from typing import Any

from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import MessageRow, SessionRow, Woken
from holdfast.storage import queries
from holdfast.storage.records import characters, decode_answer, decode_mail, decode_message
from holdfast.storage.sqlite import SEARCH, match

_LAST_SEQ = 2**63 - 1


def wake(db: Cursor, chat: ChatKey, *, most: int = _LAST_SEQ) -> Woken | None:
    """The chat's open conversation; of a history longer than `most` messages, one more than that."""
    session = open_session(db, chat)
    if session is None:
        return None
    rows = db.execute(queries.HISTORY, (session.id,))
    return Woken(session, [_message(row) for row in (rows if most == _LAST_SEQ else rows.fetchmany(most + 1))])


def open_session(db: Cursor, chat: ChatKey) -> SessionRow | None:
    """The chat's open conversation, without its history."""
    row = db.execute(queries.OPEN_SESSION, (str(chat),)).fetchone()
    return None if row is None else _session(row[:7], prompt=row[7])


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
    return None if row is None else _session(row[:7], prompt=row[7], messages=row[8])


def newest(db: Cursor, channel: str, before: float | None, limit: int) -> list[SessionRow]:
    """Conversations, the last used first, without their prompts."""
    end = inf if before is None else before
    if channel:
        rows = db.execute(queries.NEWEST_SESSIONS_OF, (end, channel, max(limit, 0)))
    else:
        rows = db.execute(queries.NEWEST_SESSIONS, (end, max(limit, 0)))
    return [_session(row[:7], messages=row[7]) for row in rows]


def search(db: Cursor, text: str, channel: str, before: float | None, limit: int) -> list[SessionRow]:
    """Conversations in which someone said this, the best first, each with the place where it was said."""
    expression = match(characters(text))
    if not expression:
        return []
    end = inf if before is None else before
    values = {"match": expression, "channel": channel, "before": end, "limit": max(limit, 0)}
    return [_session(row[:7], messages=row[7], snippet=row[8]) for row in db.execute(SEARCH, values)]


def messages(db: Cursor, session: SessionId, *, before: int | None = None, limit: int = 200) -> list[MessageRow]:
    """A page of history, oldest first, ending before `before`."""
    end = _LAST_SEQ if before is None else before
    page = db.execute(queries.LAST_MESSAGES, (session, end, max(limit, 0))).fetchall()
    return [_message(row) for row in reversed(page)]


def _answer(row: tuple[str] | None) -> Answer | None:
    return None if row is None else decode_answer(row[0])


def _message(row: tuple[Any, ...]) -> MessageRow:
    seq, role, text, extra, created, mail = row
    return MessageRow(seq, decode_message(role, text, extra), created, mail)


def _session(row: tuple[Any, ...], *, prompt: str = "", messages: int = 0, snippet: str = "") -> SessionRow:
    id, chat, created, last_used, title, ended, end_reason = row
    return SessionRow(
        id=id,
        chat=ChatKey.parse(chat),
        created=created,
        last_used=last_used,
        title=title,
        prompt=prompt,
        ended=ended,
        end_reason=end_reason,
        messages=messages,
        snippet=snippet,
    )
