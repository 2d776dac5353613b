"""Durable memory: conversations, inbox and outbox in one SQLite file."""

from holdfast.storage.store import open_store

__all__ = ["open_store"]
