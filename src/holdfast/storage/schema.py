"""Brings a file to the schema of this Holdfast: makes it, upgrades it, or refuses it.

A fresh file is made straight from the tables. Alembic, which takes a while to load, is loaded only for a
file that really has to be upgraded.
"""

import sqlite3
from pathlib import Path

import structlog
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast import __version__
from holdfast.core.errors import StoreError, StoreTooNew
from holdfast.storage import queries
from holdfast.storage.sqlite import DIALECT, SEARCH_TABLES
from holdfast.storage.tables import metadata

log = structlog.get_logger(__name__)

REVISION = 2
"""The newest revision in `migrations/versions`."""

MIGRATIONS = Path(__file__).parent / "migrations"


def refuse_unknown(db: sqlite3.Connection, path: Path, newest: int = REVISION) -> None:
    """Raise for a file that is someone else's, or a newer Holdfast's, before anything in it is touched."""
    _find_revision(db, path, newest)


def prepare(db: sqlite3.Connection, path: Path, newest: int = REVISION, migrations: Path = MIGRATIONS) -> None:
    """Afterwards the file has the newest schema. Whatever happens, it has the one or the other, whole."""
    db.execute("BEGIN IMMEDIATE")
    try:
        found = _find_revision(db, path, newest)
        if found is None:
            create(db, newest)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    if found is not None and found < newest:
        upgrade(db, migrations)
        log.info("upgraded the store", file=str(path), found=found, now=newest)


def _find_revision(db: sqlite3.Connection, path: Path, newest: int) -> int | None:
    """The file's revision; None if there is nothing in it yet."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    ours = {"meta", "alembic_version"} <= tables
    (mark,) = (ours and db.execute(queries.GET_REVISION).fetchone()) or ("",)
    if not mark.isdecimal():
        raise StoreError(f"{path} is a database, but not one of Holdfast's: give the store another path.")
    found = int(mark)
    if found > newest:
        (needed,) = db.execute(queries.GET_META, ("holdfast",)).fetchone()
        raise StoreTooNew(
            f"{path} was written by Holdfast {needed} and this is Holdfast {__version__}:"
            f" upgrade to {needed} or newer to open it."
        )
    return found


def create(db: sqlite3.Connection, revision: int) -> None:
    """Make the tables as they are now."""
    for table in metadata.sorted_tables:
        db.execute(str(CreateTable(table).compile(dialect=DIALECT)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            db.execute(str(CreateIndex(index).compile(dialect=DIALECT)))
    for statement in SEARCH_TABLES:
        db.execute(statement)
    db.execute(queries.SET_META, ("holdfast", __version__))
    db.execute(queries.SET_REVISION, (f"{revision:04}",))


def upgrade(db: sqlite3.Connection, migrations: Path) -> None:
    """Run every migration that the file has not seen, all of them or none."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import StaticPool, create_engine
    from sqlalchemy.exc import DBAPIError

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    # The connection is ours before and after: the pool may neither reset nor close it.
    engine = create_engine("sqlite://", creator=lambda: db, poolclass=StaticPool, pool_reset_on_return=None)
    # A table that has to be rebuilt is missing for a moment. What refers to it is checked at the end instead.
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA legacy_alter_table = ON")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            if broken := db.execute("PRAGMA foreign_key_check").fetchone():
                raise StoreError(f"The upgrade would break a reference, so it was undone: {broken}.")
            db.execute(queries.SET_META, ("holdfast", __version__))
            db.execute("COMMIT")
    except DBAPIError as error:
        raise error.orig or error from error
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA legacy_alter_table = OFF")
        db.execute("PRAGMA foreign_keys = ON")
