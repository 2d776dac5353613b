"""Logs beside the event loop: a line is rendered where it happens, and written out by a thread of its own.

A reader that stalls or a disk that is full costs lines and never the gateway. How many it cost is said as soon as
lines arrive again.
"""

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO, TypeAlias, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.settings import LogSettings

MOST_WAITING = 10_000
"""How many lines wait for a slow reader; those that come on top are lost."""
LAST_WORDS = 1.0
"""How long what waits at the end may take to be written out, in seconds."""

Output: TypeAlias = Callable[[Sequence[str]], None]
"""Writes lines out, however long it takes. Raises `OSError` or `ValueError` when it can't."""


@contextmanager
def open_logs(
    settings: LogSettings, stream: TextIO | None, *, folder: Path, ledger: Ledger, colours: bool = True
) -> Iterator[None]:
    """Everything that is logged goes to the stream, or to the settings' file, without anyone waiting for it.

    After the block it goes to the stream at once, so that no late line is lost. Raises `SettingsError`.
    """
    at_once = _to_stream(stream) if stream else _lose  # a process may be started without standard error
    with ExitStack() as opened:
        output = at_once
        if settings.file:
            output = opened.enter_context(_open_file(settings, folder, ledger)).write
        lines = Lines(output)
        terminal = stream is not None and stream.isatty() and not settings.file
        _configure(settings, lines, terminal=terminal, colours=colours)
        # It closes the file itself, which nobody else can know to be out of use. A daemon, so that a reader
        # that stalls can't keep the process from ending.
        thread = threading.Thread(target=_write_out, args=(lines, opened.pop_all()), name="log-writer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        lines.end()
        thread.join(LAST_WORDS)
        if not thread.is_alive():
            lines.write_late(at_once)
            _write_out(lines, ExitStack())  # what came in between
        else:  # what waits is lost with the process, and late lines must not hang as well
            lines.write_late(_lose if output is at_once else at_once)


def _write_out(lines: "Lines", opened: ExitStack) -> None:
    with opened:
        for batch in lines.batches():
            if lost := lines.deliver(batch):
                structlog.get_logger().error("log lines were lost", lines=lost)


def _lose(_: Sequence[str]) -> None:
    """Where lines go that can't arrive."""


class Lines:
    """Takes lines from any thread without waiting, for one thread to write out. To `logging` it is a stream."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._waiting: SimpleQueue[str | None] = SimpleQueue()  # the one queue that may be put to in a finalizer
        self._lost = 0
        self._counting = threading.RLock()
        self._late: Output | None = None

    def __repr__(self) -> str:
        return f"<Lines: {self._waiting.qsize()} waiting, {self._lost} lost>"

    def write(self, line: str) -> None:
        """Take one line, without its end."""
        if self._late:
            with suppress(OSError, ValueError):
                self._late([line])
        elif self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(line)
        else:
            self._lose(1)

    def flush(self) -> None:
        """Nothing to do: a line is on its way as soon as it is taken."""

    def batches(self) -> Iterator[list[str]]:
        """What is there, as soon as there is something, until the end."""
        while (line := self._waiting.get()) is not None:
            batch = [line]
            while not self._waiting.empty() and (line := self._waiting.get()) is not None:
                batch.append(line)
            yield batch
            if line is None:
                return

    def deliver(self, batch: Sequence[str]) -> int:
        """Write lines out. Returns how many were lost so far, when that can be said now, and counts anew."""
        try:
            self._output(batch)
        except (OSError, ValueError):
            self._lose(len(batch))
            return 0  # a line about it would be lost as well
        if not self._lost or self._waiting.qsize() >= MOST_WAITING:
            return 0
        with self._counting:
            lost, self._lost = self._lost, 0
        return lost

    def end(self) -> None:
        """No more batches after those that are there."""
        self._waiting.put(None)

    def write_late(self, late: Output) -> None:
        """From now on lines are written where they happen."""
        self._late = self._output = late
        self.end()

    def _lose(self, number: int) -> None:
        with self._counting:
            self._lost += number


# ── how a line looks ────────────────────────────────────────────────────────────────────────────


class _LineLogger:
    """What structlog hands a rendered line to; its own would take a lock that no finalizer may wait for."""

    def __init__(self, lines: Lines) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = lines.write


class _LineHandler(logging.StreamHandler[Any]):
    """What other libraries log becomes lines like ours."""

    terminator = ""


def _configure(settings: LogSettings, lines: Lines, *, terminal: bool, colours: bool) -> None:
    """One line an event: for people on a terminal, JSON for programs."""
    render: list[Any] = (
        # Without the values of variables: they may be keys, and people's words.
        [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if settings.format == "json" or (settings.format == "auto" and not terminal)
        else [
            structlog.dev.ConsoleRenderer(
                colors=terminal and colours, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    common: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso")]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *common, *render],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        logger_factory=lambda *_: _LineLogger(lines),
        cache_logger_on_first_use=True,
    )
    handler = _LineHandler(cast(TextIO, lines))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _LineHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


# ── where lines go ──────────────────────────────────────────────────────────────────────────────


def _to_stream(stream: TextIO) -> Output:
    """Writes past the stream's buffer, whose lock a thread that hangs would hold when the process ends."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it lives in memory alone
        return lambda lines: _print(lines, stream)
    with suppress(OSError, ValueError):
        stream.flush()
    return lambda lines: _write_all(descriptor, _encoded(lines, stream.encoding))


def _print(lines: Sequence[str], stream: TextIO) -> None:
    stream.write("\n".join(lines) + "\n")
    stream.flush()


def _encoded(lines: Sequence[str], encoding: str = "utf-8") -> bytes:
    return ("\n".join(lines) + "\n").encode(encoding, "backslashreplace")


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another program that has it, too, told it not to wait
            select.select([], [descriptor], [])


class LogFile:
    """A file that is for its owner alone. When it is full, it is set aside as `.1`, the one before as `.2` …"""

    def __init__(self, path: Path, *, size: int, kept: int) -> None:
        self.path = path
        self._size = size
        self._full_at = size
        self._kept = kept
        self.descriptor = self._made()

    def write(self, lines: Sequence[str]) -> None:
        self._begin_again_if_moved()
        size = os.fstat(self.descriptor).st_size
        fitting: list[bytes] = []
        for line in lines:
            data = _encoded([line])
            if size and size + len(data) > self._full_at:
                _write_all(self.descriptor, b"".join(fitting))
                fitting.clear()
                size = self._set_aside(size)
            fitting.append(data)
            size += len(data)
        _write_all(self.descriptor, b"".join(fitting))

    def _made(self) -> int:
        for folder in reversed(self.path.parents):
            if not folder.exists():  # one by one: Path.mkdir gives its mode to the last one alone
                folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _begin_again_if_moved(self) -> None:
        """Whoever moves or removes the file wants a new one, and the space of the old one."""
        try:
            moved = not os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            moved = True
        if moved:
            self._begin()

    def _begin(self) -> None:
        descriptor = self._made()
        os.close(self.descriptor)
        self.descriptor = descriptor
        self._full_at = self._size

    def _set_aside(self, size: int) -> int:
        """Begin a new file; the size of the one that is written to now."""
        try:
            self._make_room()
            self._begin()
        except OSError as error:
            self._full_at = size + self._size  # when to try again; until then it grows, and loses nothing
            structlog.get_logger().error("the log file can't be set aside", file=str(self.path), cause=str(error))
            return size
        return 0

    def _make_room(self) -> None:
        """Give each file the next number; those beyond the last one that is kept go."""
        there = list(takewhile(Path.exists, self._names()))
        for number, path in reversed(list(enumerate(there))):
            if number < self._kept:
                path.rename(f"{self.path}.{number + 1}")
            else:
                path.unlink()

    def _names(self) -> Iterator[Path]:
        yield self.path
        yield from (Path(f"{self.path}.{number}") for number in count(1))


@contextmanager
def _open_file(settings: LogSettings, folder: Path, ledger: Ledger) -> Iterator[LogFile]:
    path = folder / settings.file
    try:
        path = (folder / Path(settings.file).expanduser()).resolve()  # a link stays a link
        if path.exists() and not path.is_file():
            raise OSError(0, "it is not a plain file")
        file = LogFile(path, size=settings.file_size, kept=settings.files)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of somebody who is not known here
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{path}: the log can't be written here ({reason}); change [log] file") from None
    try:
        with ledger.enter("file", str(path), holds=lambda: [file.descriptor]):
            yield file
    finally:
        os.close(file.descriptor)
