"""The data folder: its owner's lock, and the token that lies in it."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import AlreadyRunning, SettingsError
from holdfast.core.ledger import Ledger


@contextmanager
def open_folder(data: Path, lock: Path, ledger: Ledger) -> Iterator[Callable[[str], None]]:
    """Make the data folder and own it. The system frees the lock with the process, however that ends.

    Gives a function that notes in the lock where the owner answers, for clients on this machine.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"{data}: the data folder can't be used: {error.strerror}") from None

    def announce(url: str) -> None:
        os.pwrite(handle, f"{os.getpid()}\n{url}\n".encode(), 0)

    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = ", ".join(os.pread(handle, 200, 0).decode("ascii", "replace").split()) or "unknown"
            raise AlreadyRunning(f"Another Holdfast (process {owner}) uses {data}; stop it first.") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        with ledger.enter("lock", str(lock), holds=lambda: [handle]):
            yield announce
    finally:
        os.close(handle)


def keep_token(path: Path) -> str:
    """The token that clients must show: made once, readable by its owner alone."""
    try:
        return _kept(path) or _made(path)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(
            f"{path}: the token can't be kept here ({reason}): remove it, and it is made anew"
        ) from None


def _kept(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    if not token:
        path.unlink()  # a crash came between making and writing it
    elif len(token.split()) > 1:
        raise SettingsError(f"{path}: a token is one word: remove the file, and a token is made anew")
    else:
        path.chmod(0o600)
    return token


def _made(path: Path) -> str:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")
    return token
