"""Alembic's way in; `schema.py` calls it with an open connection and owns the transaction."""

from alembic import context

from holdfast.storage.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
