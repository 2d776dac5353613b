"""The first tables. Written out, not imported: this stays what it was when the tables move on."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("chat", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("last_used", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("end_reason", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
    )
    op.create_index("sessions_open", "sessions", ["chat"], unique=True, sqlite_where=sa.text("ended IS NULL"))
    op.create_index("sessions_newest", "sessions", [sa.text("last_used DESC"), "channel"])
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("session", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("mail", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("undone", sa.Double),
        sa.Column("extra", sa.Text),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("messages_in_order", "messages", ["session", "seq"], unique=True)
    op.create_index("messages_undone", "messages", ["session"], sqlite_where=sa.text("undone IS NOT NULL"))
    op.create_table(
        "inbox",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("chat", sa.Text, nullable=False),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("answered", sa.Double),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("body", sa.Text),
    )
    op.create_index("inbox_id", "inbox", ["id"], unique=True)
    op.create_index("inbox_waiting", "inbox", ["number"], sqlite_where=sa.text("answered IS NULL"))
    op.create_table(
        "outbox",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("mail", sa.Text, nullable=False),
        sa.Column("chat", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("sent", sa.Double),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("outbox_id", "outbox", ["id"], unique=True)
    op.create_index("outbox_mail", "outbox", ["mail"], unique=True)
    op.create_index("outbox_unsent", "outbox", ["number"], sqlite_where=sa.text("sent IS NULL"))
    op.execute(
        "CREATE VIEW searchable AS SELECT id, text FROM messages WHERE role IN ('user', 'assistant') AND text != ''"
    )
    op.execute(
        """CREATE VIRTUAL TABLE messages_fts USING fts5 (
        text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
    )"""
    )
    op.execute("INSERT INTO meta (key, value) VALUES ('indexed', '0')")
