"""The writes. Each runs in the writer's transaction, together with others, and is whole or not at all."""

from collections.abc import Sequence
from sqlite3 import Cursor

from holdfast.core.keys import SessionId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import Accepted, Controls, MessageRow, SessionRow
from holdfast.storage import queries, reads
from holdfast.storage.records import (
    characters,
    decode_answer,
    encode,
    encode_controls,
    encode_message,
    encode_tools,
)
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
        if woken is None:
            return Accepted(fresh=True, asleep=False, expired=reads.expired(db, mail.chat))
        asleep = len(woken.history) > LONGEST_READ
        return Accepted(fresh=True, woken=None if asleep else woken, asleep=asleep)
    fingerprint, body = db.execute(queries.SEEN_BEFORE, (mail.id,)).fetchone()
    return Accepted(fresh=False, fingerprint=fingerprint, answer=None if body is None else decode_answer(body))


def begin(db: Cursor, session: SessionRow) -> None:
    """A conversation starts. That an earlier one in its chat had expired counts as told with it."""
    row = (
        *(session.id, str(session.chat), session.chat.channel, session.created, session.last_used),
        *(session.ended, session.end_reason, session.ended),
        *(characters(session.title), encode_tools(session.tools), encode_controls(session.controls)),
        characters(session.prompt),
    )
    if db.execute(queries.BEGIN, row).rowcount:
        db.execute(queries.TELL, (session.created, str(session.chat)))


def control(db: Cursor, session: SessionId, controls: Controls) -> None:
    """Set what is set for an open conversation."""
    db.execute(queries.CONTROL, (encode_controls(controls), session))


def append(db: Cursor, session: SessionId, row: MessageRow) -> None:
    """Idempotent by (session, seq): a replay after a crash writes nothing twice."""
    role, text, extra = encode_message(row.message)
    db.execute(queries.APPEND, (session, row.seq, row.mail, role, row.created, extra, text))


def finish(
    db: Cursor,
    answer: Answer,
    session: SessionId | None,
    rows: Sequence[MessageRow],
    *,
    push: bool,
    controls: Controls | None = None,
) -> None:
    """In one step: the last messages, the answer into the outbox, the mail out of the inbox, and the controls.

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
        if controls is not None:
            control(db, session, controls)


def sent(db: Cursor, answer_id: str, when: float) -> None:
    db.execute(queries.MARK_SENT, (when, answer_id))


def undo(db: Cursor, session: SessionId, from_seq: int, when: float) -> None:
    """Mark the messages from `from_seq` on as undone: they stay stored, and belong to no history."""
    db.execute(queries.UNDO, (when, session, from_seq))


def end(
    db: Cursor, session: SessionId, when: float, reason: str, *, idle_since: float | None = None, hooks: bool = False
) -> bool:
    """End a conversation; whether it was this call that ended it. Its controls go with it.

    Whether it is idle is asked by the very statement that ends it: a message that came before keeps the
    conversation, one that comes after finds it ended.
    """
    values = (when, characters(reason), None if hooks else when, session)
    if idle_since is None:
        return bool(db.execute(queries.END, values).rowcount)
    return bool(db.execute(queries.END_IDLE, (*values, idle_since)).rowcount)


def conclude(db: Cursor, session: SessionId, when: float) -> None:
    """All that was to happen at a conversation's end has happened."""
    db.execute(queries.CONCLUDE, (when, session))


def resume(db: Cursor, session: SessionId, when: float) -> bool:
    """Open an ended conversation again, and end the one that is open in its chat; false if it is not there.

    One that is being deleted is not there any more.
    """
    row = db.execute(queries.RESUMABLE, (session,)).fetchone()
    if row is None:
        return False
    db.execute(queries.END_IN, (when, "resumed another", when, *row))
    db.execute(queries.REOPEN, (when, session))
    db.execute(queries.TELL, (when, *row))
    return True


def index(db: Cursor) -> None:
    """Let search know the messages that it does not know yet."""
    for statement in INDEX_MESSAGES:
        db.execute(statement)
