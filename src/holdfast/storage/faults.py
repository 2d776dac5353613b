"""From what the driver says to what went wrong: one sentence that names the file and what to do."""

import os
import sqlite3
import sys
from pathlib import Path

from holdfast.core.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, StoreReadOnly

_FULL_BELOW = 256 * 1024
"""With less than this left on the disk, a failed write failed for want of space."""

_OF_THE_FILE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


def _code(error: Exception) -> int:
    """The primary result code: the low byte of SQLite's extended one."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF


def of_the_file(error: Exception) -> bool:
    """Whether the file or its disk is at fault, and not the one operation that met the error."""
    return isinstance(error, sqlite3.Error) and _code(error) in _OF_THE_FILE


def explain(error: Exception, path: Path) -> Exception:
    """The error to raise for it: each call makes a new one. What is not the driver's is left as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    fault = _diagnose(error, path)
    fault.__cause__ = error
    return fault


def _diagnose(error: sqlite3.Error, path: Path) -> StoreError:
    code = _code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(f"{path} is locked by another process: end the one that is writing to it, then try again.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"{path} is damaged or not a database: stop Holdfast and restore the file from a backup.")
    if code == sqlite3.SQLITE_FULL:
        return _full(path)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return _read_only(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
        return _look_around(error, path)
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path} refused a write that contradicts what is stored ({error}).")
    return StoreError(f"{path} can't be used ({error}).")


def _look_around(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite knows only that the system refused; the system itself knows why."""
    try:
        return _reason(path) or _sick(error, path)
    except OSError:  # the disk is so sick that it can't even be asked
        return _sick(error, path)


def _sick(error: sqlite3.Error, path: Path) -> StoreError:
    return StoreError(f"{path} can't be read or written ({error}): see whether its disk is well.")


def _reason(path: Path) -> StoreError | None:
    folder = path.absolute().parent
    if not folder.is_dir():
        return StoreError(f"{path} can't be made because there is no folder {folder}: make it, then try again.")
    if path.is_dir():
        return StoreError(f"{path} is a folder, not a database: give the store another path.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.R_OK | os.W_OK)):
        return _read_only(path)
    return _full(path) if _space_left(path) < _FULL_BELOW else None


def _space_left(path: Path) -> float:
    """What may still be written beside the file: by the disk, and by the limit on this process's files."""
    if sys.platform == "win32":
        return float("inf")
    import resource

    disk = os.statvfs(path.absolute().parent)
    left = float(disk.f_bavail * disk.f_frsize)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY:
        sizes = [file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists()]
        left = min(left, limit - max(sizes, default=0))
    return left


def _full(path: Path) -> StoreFull:
    return StoreFull(f"There is no space left to write {path}: free some, and Holdfast goes on without a restart.")


def _read_only(path: Path) -> StoreReadOnly:
    return StoreReadOnly(
        f"{path} can't be written to: make it and its folder writable for the user that Holdfast runs as."
    )
