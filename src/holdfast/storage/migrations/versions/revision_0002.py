"""Conversations have tools and controls of their own, can expire, and can be found by how long they were idle.

The table is made anew, so that its long column stays the last.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.drop_index("sessions_open")
    op.drop_index("sessions_newest")
    op.rename_table("sessions", "sessions_0001")
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("chat", sa.Text, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("last_used", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("end_reason", sa.Text, nullable=False),
        sa.Column("concluded", sa.Double),
        sa.Column("told", sa.Double),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("tools", sa.Text),
        sa.Column("controls", sa.Text),
        sa.Column("prompt", sa.Text, nullable=False),
    )
    # What ended before had no hooks to wait for.
    op.execute(
        """INSERT INTO sessions (id, chat, channel, created, last_used, ended, end_reason, concluded, title, prompt)
        SELECT id, chat, channel, created, last_used, ended, end_reason, ended, title, prompt
        FROM sessions_0001 ORDER BY rowid"""
    )
    op.drop_table("sessions_0001")
    for name, columns, condition in (
        ("open_by_use", "channel, last_used, id", "ended IS NULL"),
        ("ended_by_use", "last_used DESC, channel", "ended IS NOT NULL"),
        ("ended_by_end", "ended, id", "ended IS NOT NULL"),
        ("ended_in_chat", "chat, ended", "ended IS NOT NULL"),
        ("unconcluded", "ended", "ended IS NOT NULL AND concluded IS NULL"),
        ("untold", "chat, ended", "end_reason = 'expired' AND told IS NULL"),
    ):
        op.create_index(f"sessions_{name}", "sessions", [sa.text(columns)], sqlite_where=sa.text(condition))
    op.create_index("sessions_open", "sessions", ["chat"], unique=True, sqlite_where=sa.text("ended IS NULL"))
