"""The tables, as this version of Holdfast has them. `migrations/` leads older files here.

What is over says when: a conversation `ended` and `concluded`, a mail `answered`, an answer `sent`, a message `undone`.
NULL there means that it is not over yet, and small partial indexes lead to just those rows, so that
what costs something is what is open, however much is stored. Long columns come last, so that reading
the others need not read past them.
"""

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text, and_, literal_column

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""`holdfast`: the version that made the schema what it is. `indexed`: up to which message search knows them."""

schema_revision = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), primary_key=True),
)
"""Alembic's own mark, declared here so that a fresh file gets it without alembic."""
# The name that alembic gives it.
schema_revision.primary_key.name = "alembic_version_pkc"

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("chat", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("last_used", Double, nullable=False),
    Column("ended", Double),
    Column("end_reason", Text, nullable=False),
    Column("concluded", Double),  # when all that was to happen at its end had happened
    Column("told", Double),  # when its people could know that it had expired
    Column("title", Text, nullable=False),
    Column("tools", Text),  # the names of its tools, as JSON; NULL: not chosen yet
    Column("controls", Text),  # what was set for it, as JSON; NULL: nothing
    Column("prompt", Text, nullable=False),
)
# Conditions that queries and partial indexes share, word for word: else SQLite would not see that they fit.
is_open = sessions.c.ended.is_(None)
has_ended = sessions.c.ended.is_not(None)
is_unconcluded = and_(has_ended, sessions.c.concluded.is_(None))
# It ended by itself, which its people are to be told of.
has_expired_untold = and_(sessions.c.end_reason == literal_column("'expired'"), sessions.c.told.is_(None))
# It is being deleted, step by step: there is no way back to it.
is_forgotten = sessions.c.end_reason == literal_column("'forgotten'")

Index("sessions_open", sessions.c.chat, unique=True, sqlite_where=is_open)
# Each turn moves its conversation in this one, and in no other.
Index("sessions_open_by_use", sessions.c.channel, sessions.c.last_used, sessions.c.id, sqlite_where=is_open)
# The channel rides along so that a listing of one channel skips the others without looking them up.
Index("sessions_ended_by_use", sessions.c.last_used.desc(), sessions.c.channel, sqlite_where=has_ended)
Index("sessions_ended_by_end", sessions.c.ended, sessions.c.id, sqlite_where=has_ended)
Index("sessions_ended_in_chat", sessions.c.chat, sessions.c.ended, sqlite_where=has_ended)
Index("sessions_unconcluded", sessions.c.ended, sqlite_where=is_unconcluded)
Index("sessions_untold", sessions.c.chat, sessions.c.ended, sqlite_where=has_expired_untold)

messages = Table(
    "messages",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("mail", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("undone", Double),
    Column("extra", Text),  # what a message is beyond its role and text, as JSON; NULL for a plain one
    Column("text", Text, nullable=False),
)
Index("messages_in_order", messages.c.session, messages.c.seq, unique=True)
Index("messages_undone", messages.c.session, sqlite_where=messages.c.undone.is_not(None))

inbox = Table(
    "inbox",
    metadata,
    Column("number", Integer, primary_key=True),  # the order of acceptance
    Column("id", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("received", Double, nullable=False),
    Column("answered", Double),
    Column("fingerprint", Text, nullable=False),
    Column("body", Text),  # gone once it is answered; the row stays, to know the mail again
)
Index("inbox_id", inbox.c.id, unique=True)
Index("inbox_waiting", inbox.c.number, sqlite_where=inbox.c.answered.is_(None))

outbox = Table(
    "outbox",
    metadata,
    Column("number", Integer, primary_key=True),  # the order of answering
    Column("id", Text, nullable=False),
    Column("mail", Text, nullable=False),
    Column("chat", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("sent", Double),  # for an answer that is collected, not sent: when it was made
    Column("body", Text, nullable=False),
)
Index("outbox_id", outbox.c.id, unique=True)
Index("outbox_mail", outbox.c.mail, unique=True)
Index("outbox_unsent", outbox.c.number, sqlite_where=outbox.c.sent.is_(None))
