"""The writes that keep the file small. Each call is one small step, so that nobody waits long behind it."""

from sqlite3 import Cursor

from holdfast.core.keys import SessionId
from holdfast.storage import queries, sqlite

PAGE_OF_MAIL = 200
PAGE_OF_MESSAGES = 50
"""Fewer: each has to be taken out of the search, which costs as much as putting it in."""
PAGE_OF_TEXT = 50_000
"""How many characters they may have together, but for a single message that is longer."""


def prune_mail(db: Cursor, before: float, *, after: int = 0) -> int | None:
    """Forget a page of mail and answers that were settled and sent before a time.

    Returns the number to go on after, or None when there is nothing older. What is not answered stays, and so does
    what was answered and not sent.
    """
    page = db.execute(queries.PAGE_OF_MAIL, (after, PAGE_OF_MAIL)).fetchall()
    if not any(received < before for _, received in page):
        return None
    last: int = page[-1][0]
    db.execute(queries.FORGET_ANSWERS, (after, last, before, before))
    db.execute(queries.FORGET_MAIL, (after, last, before))
    return last if len(page) == PAGE_OF_MAIL else None


def prune_session(db: Cursor, session: SessionId) -> bool:
    """Delete some of an ended conversation's messages; true when nothing of it is left, or it is open.

    The first step deletes nothing: from then on it can't be resumed, and whoever asked may delete what else there
    is of it.
    """
    row = db.execute(queries.SESSION_END, (session,)).fetchone()
    if row is None or row[0] is None:
        return True
    if db.execute(queries.FORGET, (session,)).rowcount:
        return False
    last, rest = _first_messages(db, session)
    db.execute(sqlite.UNINDEX_MESSAGES, (session, last))
    db.execute(queries.DELETE_MESSAGES, (session, last))
    db.execute(sqlite.CLOSE_GAP)
    if not rest:
        db.execute(queries.DELETE_SESSION, (session,))
    return not rest


def _first_messages(db: Cursor, session: SessionId) -> tuple[int, bool]:
    """Up to which message one step goes, and whether there are more."""
    last, count, size = -1, 0, 0
    for seq, length in db.execute(queries.FIRST_MESSAGES, (session, PAGE_OF_MESSAGES + 1)):
        size += length
        if count == PAGE_OF_MESSAGES or (count and size > PAGE_OF_TEXT):
            return last, True
        last, count = seq, count + 1
    return last, False


def shrink(db: Cursor) -> bool:
    """Give some of the file's free pages back; false when there are few."""
    return sqlite.give_pages_back(db)
