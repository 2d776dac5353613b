"""The writes. Each runs in the writer's transaction, together with others, and is whole or not at all."""

from collections.abc import Sequence
from sqlite3 import Cursor

from holdfast.core.keys import SessionId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import Accepted, MessageRow, SessionRow
from holdfast.storage import queries, reads
from holdfast.storage.records import characters, decode_answer, encode, encode_message
from holdfast.storage.sqlite import INDEX_MESSAGES

LONGEST_READ = 100
"""How many messages may be read in passing; a longer conversation would hold up the other writes."""


def accept(db: Cursor, mail: Incoming, *, wake: bool = False) -> Accepted:
    """Put a message into the inbox, once; with `wake`, read the chat's conversation on the way.

    Nobody is waiting for the chat then, so the read belongs here: it sees what was written before, and spares
    a message that wakes its chat a second way to the disk and back.
    """
    row = (mail.id, str(mail.chat), mail.received, mail.fingerprint, encode(mail))
    if db.execute(queries.ACCEPT, row).rowcount:
        if not wake:
            return Accepted(fresh=True)
        woken = reads.wake(db, mail.chat, most=LONGEST_READ)
        asleep = woken is not None and len(woken.history) > LONGEST_READ
        return Accepted(fresh=True, woken=None if asleep else woken, asleep=asleep)
    fingerprint, body = db.execute(queries.SEEN_BEFORE, (mail.id,)).fetchone()
    return Accepted(fresh=False, fingerprint=fingerprint, answer=None if body is None else decode_answer(body))


def begin(db: Cursor, session: SessionRow) -> None:
    """A conversation starts."""
    db.execute(
        queries.BEGIN,
        (
            session.id,
            str(session.chat),
            session.chat.channel,
            session.created,
            session.last_used,
            session.ended,
            session.end_reason,
            characters(session.title),
            characters(session.prompt),
        ),
    )


def append(db: Cursor, session: SessionId, row: MessageRow) -> None:
    """Idempotent by (session, seq): a replay after a crash writes nothing twice."""
    role, text, extra = encode_message(row.message)
    db.execute(queries.APPEND, (session, row.seq, row.mail, role, row.created, extra, text))


def finish(db: Cursor, answer: Answer, session: SessionId | None, rows: Sequence[MessageRow], *, push: bool) -> None:
    """In one step: the last messages, the answer into the outbox, the mail out of the inbox.

    A mail that has an answer keeps it, and nothing is changed.
    """
    sent = None if push else answer.created
    row = (answer.id, answer.mail, str(answer.chat), answer.created, sent, encode(answer))
    if not db.execute(queries.ANSWER, row).rowcount:
        return
    db.execute(queries.SETTLE_MAIL, (answer.created, answer.mail))
    if session is not None:
        for message in rows:
            append(db, session, message)
        db.execute(queries.TOUCH_SESSION, (answer.created, session))


def sent(db: Cursor, answer_id: str, when: float) -> None:
    db.execute(queries.MARK_SENT, (when, answer_id))


def end(db: Cursor, session: SessionId, when: float, reason: str) -> None:
    db.execute(queries.END, (when, reason, session))


def index(db: Cursor) -> None:
    """Let search know the messages that it does not know yet."""
    for statement in INDEX_MESSAGES:
        db.execute(statement)
