"""The two ends of the database: one connection that writes in groups, some that read."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import structlog

from holdfast.core import failpoints
from holdfast.storage import schema, sqlite, writes
from holdfast.storage.faults import explain, of_the_file
from holdfast.storage.pending import Pending, WriteStep

log = structlog.get_logger(__name__)

Call = Pending[Any, Any]
Write = Pending[WriteStep, Any]

INDEX = WriteStep(writes.index)

_CHANGES_BEFORE_INDEXING = 1000
"""Rows changed until search is told of new messages; a search that comes earlier sees to it itself."""


class Writer:
    """Runs writes, as many as there are in one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._db = connection.cursor()
        self._path = path
        self._changes_indexed = connection.total_changes

    def run(self, batch: Sequence[Write]) -> None:
        """Each has its result or its error afterwards. A bad one fails alone; the others then run one by one."""
        db = self._db
        culprit = None
        try:
            db.execute("BEGIN IMMEDIATE")
            for culprit in batch:
                culprit.run(db)
            for culprit in batch:
                failpoints.reach(culprit.step.before)
            culprit = None
            db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever awaits the write
            self._roll_back()
            if culprit is None or of_the_file(error):
                for write in batch:
                    write.error = explain(error, self._path)
            else:
                culprit.error = explain(error, self._path)
                for write in batch:
                    if write is not culprit:
                        self.run([write])
            return
        for write in batch:
            try:
                failpoints.reach(write.step.after)
            except failpoints.InjectedFailure as failure:
                write.error = failure

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite ends it by itself after the worst
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error as error:
                log.warning("a failed transaction could not be rolled back", file=str(self._path), error=str(error))

    def due(self) -> list[Write]:
        """Work that nobody asked for but that is best done now and then."""
        changes = self._connection.total_changes
        if changes - self._changes_indexed < _CHANGES_BEFORE_INDEXING:
            return []
        self._changes_indexed = changes
        return [Pending(INDEX, (), {})]


class Reader:
    """Runs reads, one after the other."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._db = connection.cursor()
        self._path = path

    def run(self, batch: Sequence[Call]) -> None:
        for read in batch:
            try:
                read.run(self._db)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever awaits the read
                read.error = explain(error, self._path)
                # A read that broke off would hold on to its snapshot, and keep the log from being emptied.
                self._db.close()
                self._db = self._connection.cursor()

    def due(self) -> list[Call]:
        return []


@contextmanager
def open_writer(path: Path, durability: sqlite.Durability, patience: float) -> Iterator[Writer]:
    """Makes or upgrades the file if need be. Leaving puts everything into it, with no log left beside it."""
    with ExitStack() as stack:
        try:
            _make_private(path)
            connection = stack.enter_context(closing(sqlite.connect(path, patience)))
            schema.refuse_unknown(connection, path)
            sqlite.prepare_to_write(connection, durability)
            schema.prepare(connection, path)
            _let_it_shrink(connection, path)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        yield Writer(connection, path)
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:  # nothing is lost: the log is read at the next start
            log.warning("the store's log stays beside its file", file=str(path), error=str(error))


def _let_it_shrink(connection: sqlite3.Connection, path: Path) -> None:
    """A file of an earlier Holdfast never got shorter: write it anew, unless that takes long or can't be done."""
    if sqlite.can_give_pages_back(connection):
        return
    try:
        if sqlite.rebuild(connection):
            log.info("the store gives free space back from now on", file=str(path))
    except sqlite3.Error as error:  # it works as it did, and the next start tries again
        log.warning("the store can't give free space back", file=str(path), error=str(explain(error, path)))


def _make_private(path: Path) -> None:
    """Conversations are for their owner's eyes; the log beside the file gets the file's own rights."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:  # SQLite meets the same trouble in a moment, and its error is explained
        log.debug("the store's file can't be made", file=str(path), error=str(error))


@contextmanager
def open_reader(path: Path, patience: float) -> Iterator[Reader]:
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(sqlite.connect(path, patience)))
            sqlite.prepare_to_read(connection)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        yield Reader(connection, path)
