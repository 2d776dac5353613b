"""Every query, by name; written with SQLAlchemy, compiled once to text, run by the driver itself.

SQLAlchemy's own execution costs more than the statement that it executes; its compiler costs nothing after
the start. Each query says in which order it takes its values, and importing this module proves it.
"""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Select,
    Update,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    null,
    select,
    tuple_,
    update,
)

from holdfast.storage.sqlite import DIALECT, insert
from holdfast.storage.tables import (
    has_ended,
    has_expired_untold,
    inbox,
    is_forgotten,
    is_open,
    is_unconcluded,
    messages,
    meta,
    outbox,
    schema_revision,
    sessions,
)


def compiled(statement: Insert | Update | Delete | Select[Any], *order: str) -> str:
    result = statement.compile(dialect=DIALECT, column_keys=order if isinstance(statement, Insert) else None)
    found = tuple(result.positiontup or ())
    if found != order:
        raise TypeError(f"the query takes {found}, not {order}: {result}")
    return str(result)


given = bindparam
_from_the_first: ColumnElement[int] = literal_column("0")  # spelled out, or the dialect would make a value of it
_the_first: ColumnElement[int] = literal_column("1")
_nothing: ColumnElement[str] = literal_column("''")

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

_begin = insert(sessions)
# One that was begun before its first message has no title yet.
BEGIN = compiled(
    _begin.on_conflict_do_update(
        index_elements=[sessions.c.id], set_={"title": _begin.excluded.title}, where=sessions.c.title == _nothing
    ),
    *("id", "chat", "channel", "created", "last_used", "ended", "end_reason", "concluded"),
    *("title", "tools", "controls", "prompt"),
)

TELL = compiled(
    update(sessions).where(sessions.c.chat == given("in_chat"), has_expired_untold).values(told=given("when")),
    *("when", "in_chat"),
)

CONTROL = compiled(
    update(sessions).where(sessions.c.id == given("session"), is_open).values(controls=given("controls")),
    *("controls", "session"),
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

UNDO = compiled(
    update(messages)
    .where(messages.c.session == given("of"), messages.c.seq >= given("from_seq"), messages.c.undone.is_(None))
    .values(undone=given("when")),
    *("when", "of", "from_seq"),
)

_end = (
    update(sessions)
    .where(is_open)
    .values(ended=given("when"), end_reason=given("reason"), concluded=given("done"), controls=null())
)

END = compiled(_end.where(sessions.c.id == given("session")), *("when", "reason", "done", "session"))

# Mail that waits is little, and has an index of its own.
_has_mail = exists().where(inbox.c.answered.is_(None), inbox.c.chat == sessions.c.chat)

END_IDLE = compiled(
    _end.where(sessions.c.id == given("session"), sessions.c.last_used <= given("idle_since"), ~_has_mail),
    *("when", "reason", "done", "session", "idle_since"),
)

END_IN = compiled(_end.where(sessions.c.chat == given("in_chat")), *("when", "reason", "done", "in_chat"))

CONCLUDE = compiled(
    update(sessions).where(sessions.c.id == given("session"), is_unconcluded).values(concluded=given("when")),
    *("when", "session"),
)

REOPEN = compiled(
    update(sessions)
    .where(sessions.c.id == given("session"))
    .values(last_used=given("when"), ended=null(), end_reason=_nothing, concluded=null(), told=null()),
    *("when", "session"),
)

SET_META = compiled(insert(meta).prefix_with("OR REPLACE"), "key", "value")

SET_REVISION = compiled(insert(schema_revision), "version_num")

# ── upkeep ──────────────────────────────────────────────────────────────────────────────────────

PAGE_OF_MAIL = compiled(
    select(inbox.c.number, inbox.c.received)
    .where(inbox.c.number > given("after"))
    .order_by(inbox.c.number)
    .limit(given("limit"))
    .offset(_from_the_first),
    *("after", "limit"),
)

_settled = (
    inbox.c.number > given("after"),
    inbox.c.number <= given("last"),
    inbox.c.answered < given("before"),
)

FORGET_ANSWERS = compiled(
    delete(outbox).where(outbox.c.mail.in_(select(inbox.c.id).where(*_settled)), outbox.c.sent < given("sent_before")),
    *("after", "last", "before", "sent_before"),
)

# A settled mail has an answer; one that has none had it a moment ago.
FORGET_MAIL = compiled(
    delete(inbox).where(*_settled, ~exists().where(outbox.c.mail == inbox.c.id)), *("after", "last", "before")
)

SESSION_END = compiled(select(sessions.c.ended).where(sessions.c.id == given("session")), "session")

FORGET = compiled(
    update(sessions)
    .where(sessions.c.id == given("session"), ~is_forgotten)
    .values(end_reason=literal_column("'forgotten'")),
    "session",
)

FIRST_MESSAGES = compiled(
    select(messages.c.seq, func.length(messages.c.text))
    .where(messages.c.session == given("session"))
    .order_by(messages.c.seq)
    .limit(given("limit"))
    .offset(_from_the_first),
    *("session", "limit"),
)

DELETE_MESSAGES = compiled(
    delete(messages).where(messages.c.session == given("of"), messages.c.seq <= given("last")), *("of", "last")
)

DELETE_SESSION = compiled(delete(sessions).where(sessions.c.id == given("session")), "session")

# ── reads ───────────────────────────────────────────────────────────────────────────────────────

GET_META = compiled(select(meta.c.value).where(meta.c.key == given("key")), "key")

GET_REVISION = compiled(select(schema_revision.c.version_num))

_session_columns = (
    *(sessions.c.id, sessions.c.chat, sessions.c.created, sessions.c.last_used),
    *(sessions.c.title, sessions.c.ended, sessions.c.end_reason, sessions.c.tools, sessions.c.controls),
)
_message_columns = (
    *(messages.c.seq, messages.c.role, messages.c.text, messages.c.extra),
    *(messages.c.created, messages.c.mail),
)
_counted = select(func.count()).select_from(messages).where(messages.c.session == sessions.c.id).correlate(sessions)
# All but the undone ones; said like this, both numbers come from indexes and no message is read.
_count = _counted.scalar_subquery() - _counted.where(messages.c.undone.is_not(None)).scalar_subquery()

OPEN_SESSION = compiled(
    select(*_session_columns, sessions.c.prompt).where(sessions.c.chat == given("chat"), is_open),
    "chat",
)

_last_ended = (
    select(*_session_columns, sessions.c.prompt)
    .where(sessions.c.chat == given("chat"), has_ended)
    .order_by(sessions.c.ended.desc())
    .limit(_the_first)
    .offset(_from_the_first)
)

EXPIRED_SESSION = compiled(_last_ended.where(has_expired_untold), "chat")

LAST_ENDED_SESSION = compiled(_last_ended.where(~is_forgotten), "chat")

RESUMABLE = compiled(
    select(sessions.c.chat).where(sessions.c.id == given("session"), has_ended, ~is_forgotten),
    "session",
)

SESSION = compiled(
    select(*_session_columns, sessions.c.prompt, _count).where(sessions.c.id == given("session")), "session"
)

COUNT_MESSAGES = compiled(select(_count).where(sessions.c.id == given("session")), "session")

_newest = (
    select(*_session_columns)
    .where(sessions.c.last_used < given("before"))
    .order_by(sessions.c.last_used.desc())
    .limit(given("limit"))
    .offset(_from_the_first)
)
_in_channel = sessions.c.channel == given("channel")

NEWEST_OPEN_OF = compiled(_newest.where(is_open, _in_channel), "before", "channel", "limit")

NEWEST_ENDED = compiled(_newest.where(has_ended), "before", "limit")

NEWEST_ENDED_OF = compiled(_newest.where(has_ended, _in_channel), "before", "channel", "limit")

NEXT_CHANNEL = compiled(
    select(sessions.c.channel)
    .where(is_open, sessions.c.channel > given("channel"))
    .order_by(sessions.c.channel)
    .limit(_the_first)
    .offset(_from_the_first),
    "channel",
)

IDLE_SESSIONS = compiled(
    select(*_session_columns)
    .where(
        *(is_open, sessions.c.channel == given("channel"), sessions.c.last_used < given("before")),
        tuple_(sessions.c.last_used, sessions.c.id) > tuple_(given("last_used"), given("id")),
    )
    .order_by(sessions.c.last_used, sessions.c.id)
    .limit(given("limit"))
    .offset(_from_the_first),
    *("channel", "before", "last_used", "id", "limit"),
)

ENDED_SESSIONS = compiled(
    select(*_session_columns)
    .where(
        *(has_ended, sessions.c.ended < given("before")),
        tuple_(sessions.c.ended, sessions.c.id) > tuple_(given("ended"), given("id")),
    )
    .order_by(sessions.c.ended, sessions.c.id)
    .limit(given("limit"))
    .offset(_from_the_first),
    *("before", "ended", "id", "limit"),
)

UNCONCLUDED_SESSIONS = compiled(
    select(*_session_columns)
    .where(is_unconcluded)
    .order_by(sessions.c.ended)
    .limit(given("limit"))
    .offset(_from_the_first),
    "limit",
)

NEXT_SEQ = compiled(
    select(func.coalesce(func.max(messages.c.seq) + literal_column("1"), literal_column("0"))).where(
        messages.c.session == given("session")
    ),
    "session",
)

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
