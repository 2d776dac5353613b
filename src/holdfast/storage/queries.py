"""Every query, by name; written with SQLAlchemy, compiled once to text, run by the driver itself.

SQLAlchemy's own execution costs more than the statement that it executes; its compiler costs nothing after
the start. Each query says in which order it takes its values, and importing this module proves it.
"""

from typing import Any

from sqlalchemy import ColumnElement, Insert, Select, Update, bindparam, func, literal_column, null, select, update

from holdfast.storage.sqlite import DIALECT, insert
from holdfast.storage.tables import inbox, messages, meta, outbox, schema_revision, sessions


def compiled(statement: Insert | Update | Select[Any], *order: str) -> str:
    result = statement.compile(dialect=DIALECT, column_keys=order if isinstance(statement, Insert) else None)
    found = tuple(result.positiontup or ())
    if found != order:
        raise TypeError(f"the query takes {found}, not {order}: {result}")
    return str(result)


given = bindparam
_from_the_first: ColumnElement[int] = literal_column("0")  # spelled out, or the dialect would make a value of it

# ── writes ──────────────────────────────────────────────────────────────────────────────────────

ACCEPT = compiled(
    insert(inbox).on_conflict_do_nothing(index_elements=[inbox.c.id]),
    *("id", "chat", "received", "fingerprint", "body"),
)

SEEN_BEFORE = compiled(
    select(inbox.c.fingerprint, outbox.c.body)
    .select_from(inbox.outerjoin(outbox, outbox.c.mail == inbox.c.id))
    .where(inbox.c.id == given("id")),
    "id",
)

BEGIN = compiled(
    insert(sessions).on_conflict_do_nothing(index_elements=[sessions.c.id]),
    *("id", "chat", "channel", "created", "last_used", "ended", "end_reason", "title", "prompt"),
)

APPEND = compiled(
    insert(messages).on_conflict_do_nothing(index_elements=[messages.c.session, messages.c.seq]),
    *("session", "seq", "mail", "role", "created", "extra", "text"),
)

ANSWER = compiled(
    insert(outbox).on_conflict_do_nothing(index_elements=[outbox.c.mail]),
    *("id", "mail", "chat", "created", "sent", "body"),
)

SETTLE_MAIL = compiled(
    update(inbox).where(inbox.c.id == given("mail")).values(answered=given("when"), body=null()),
    *("when", "mail"),
)

TOUCH_SESSION = compiled(
    update(sessions).where(sessions.c.id == given("session")).values(last_used=given("when")),
    *("when", "session"),
)

MARK_SENT = compiled(
    update(outbox).where(outbox.c.id == given("answer"), outbox.c.sent.is_(None)).values(sent=given("when")),
    *("when", "answer"),
)

END = compiled(
    update(sessions)
    .where(sessions.c.id == given("session"), sessions.c.ended.is_(None))
    .values(ended=given("when"), end_reason=given("reason")),
    *("when", "reason", "session"),
)

SET_META = compiled(insert(meta).prefix_with("OR REPLACE"), "key", "value")

SET_REVISION = compiled(insert(schema_revision), "version_num")

# ── reads ───────────────────────────────────────────────────────────────────────────────────────

GET_META = compiled(select(meta.c.value).where(meta.c.key == given("key")), "key")

GET_REVISION = compiled(select(schema_revision.c.version_num))

_session_columns = (
    *(sessions.c.id, sessions.c.chat, sessions.c.created, sessions.c.last_used),
    *(sessions.c.title, sessions.c.ended, sessions.c.end_reason),
)
_message_columns = (
    *(messages.c.seq, messages.c.role, messages.c.text, messages.c.extra),
    *(messages.c.created, messages.c.mail),
)
_counted = select(func.count()).select_from(messages).where(messages.c.session == sessions.c.id).correlate(sessions)
# All but the undone ones; said like this, both numbers come from indexes and no message is read.
_count = _counted.scalar_subquery() - _counted.where(messages.c.undone.is_not(None)).scalar_subquery()

OPEN_SESSION = compiled(
    select(*_session_columns, sessions.c.prompt).where(sessions.c.chat == given("chat"), sessions.c.ended.is_(None)),
    "chat",
)

SESSION = compiled(
    select(*_session_columns, sessions.c.prompt, _count).where(sessions.c.id == given("session")), "session"
)

_newest = (
    select(*_session_columns, _count)
    .where(sessions.c.last_used < given("before"))
    .order_by(sessions.c.last_used.desc())
    .limit(given("limit"))
    .offset(_from_the_first)
)

NEWEST_SESSIONS = compiled(_newest, "before", "limit")

NEWEST_SESSIONS_OF = compiled(_newest.where(sessions.c.channel == given("channel")), "before", "channel", "limit")

HISTORY = compiled(
    select(*_message_columns)
    .where(messages.c.session == given("session"), messages.c.undone.is_(None))
    .order_by(messages.c.seq),
    "session",
)

LAST_MESSAGES = compiled(
    select(*_message_columns)
    .where(messages.c.session == given("session"), messages.c.seq < given("before"), messages.c.undone.is_(None))
    .order_by(messages.c.seq.desc())
    .limit(given("limit"))
    .offset(_from_the_first),
    *("session", "before", "limit"),
)

WAITING = compiled(select(inbox.c.body).where(inbox.c.answered.is_(None)).order_by(inbox.c.number))

UNSENT = compiled(select(outbox.c.body).where(outbox.c.sent.is_(None)).order_by(outbox.c.number))

ANSWER_TO = compiled(select(outbox.c.body).where(outbox.c.mail == given("mail")), "mail")

ANSWER_BY_ID = compiled(select(outbox.c.body).where(outbox.c.id == given("answer")), "answer")
