"""Logs: lines that tell no secrets, that nobody waits for, and that cost the gateway nothing when they can't arrive."""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from holdfast import logs
from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.settings import LogSettings
from holdfast.logs import Lines, open_logs

JSON = LogSettings(format="json")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = [handler for handler in root.handlers if handler.__module__ != logs.__name__]
    root.setLevel(level)


class Door(io.StringIO):
    """A stream that lets nothing through while it is closed to writers."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.someone_waits = threading.Event()

    def write(self, text: str) -> int:
        self.someone_waits.set()
        assert self.open.wait(30)
        return super().write(text)


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, Any]]:
    """A pipe's end to read from, and its other end as a stream."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        try:
            yield reading, stream
        finally:
            os.close(reading)


def opened(settings: LogSettings, stream: Any, folder: Path = Path()) -> contextlib.AbstractContextManager[None]:
    return open_logs(settings, stream, folder=folder, ledger=Ledger())


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# ── how a line looks ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("logger", [structlog.get_logger, logging.getLogger])
def test_a_logged_exception_shows_no_variables(form: Any, logger: Callable[[], Any]) -> None:
    stream = io.StringIO()
    with opened(LogSettings(format=form), stream):
        secret = "sk-very-secret"
        try:
            raise ValueError("what went wrong")
        except ValueError:
            logger().exception("broke")
    text = stream.getvalue()
    assert "what went wrong" in text
    assert "test_logs.py" in text
    assert secret not in text


def test_what_other_libraries_log_are_lines_like_ours() -> None:
    stream = io.StringIO()
    with opened(JSON, stream):
        structlog.get_logger().info("ours", number=1)
        logging.getLogger("theirs").warning("of %s", "others")
        logging.getLogger("theirs").info("not worth a line")
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (ours["event"], ours["level"], ours["number"]) == ("ours", "info", 1)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("of others", "warning", "theirs")
    assert ours["timestamp"] <= theirs["timestamp"]


def test_a_library_that_logs_nonsense_costs_nobody_anything(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    logging.getLogger().handlers.clear()  # pytest's own take offence at it
    with opened(JSON, stream):
        logging.getLogger("theirs").error("%d apples", "no number")
        logging.getLogger("theirs").error("all is well")
    assert events(stream.getvalue()) == ["all is well"]
    assert "TypeError: %d format" in capsys.readouterr().err


# ── nobody waits ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@pytest.mark.proves("invariant 15")
async def test_the_loop_does_not_stall_with_a_pipe_that_nobody_reads() -> None:
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await anyio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    with pipe() as (reading, stream):
        with opened(JSON, stream):
            async with anyio.create_task_group() as group:
                group.start_soon(beat)
                for number in range(2000):  # far more than a pipe holds
                    structlog.get_logger().info("a line", number=number, filling="x" * 100)
                    await checkpoint()
                group.cancel_scope.cancel()
            received = b""
            while received.count(b"\n") < 2000:
                received += os.read(reading, 2**16)
        assert [json.loads(line)["number"] for line in received.splitlines()] == list(range(2000))
    assert longest < 0.25


def test_lines_that_wait_are_bounded_and_those_lost_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    door = Door()
    with opened(JSON, door):
        log = structlog.get_logger()
        log.info("first")
        door.someone_waits.wait(30)  # the writer has it, and stands before the door
        for number in range(15):
            log.info(f"line {number}")
        door.open.set()
        wait_for(lambda: "lost" in door.getvalue())
        log.info("last")
    told = [json.loads(line) for line in door.getvalue().splitlines()]
    assert [line["event"] for line in told] == [
        "first",
        *(f"line {number}" for number in range(10)),
        "log lines were lost",
        "last",
    ]
    assert told[-2]["lines"] == 5


def test_many_threads_lose_no_line_and_mix_none() -> None:
    stream = io.StringIO()

    def work(name: str) -> None:
        for number in range(500):
            structlog.get_logger().info(name, number=number)

    with opened(JSON, stream):
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    for name in "abcd":
        assert [line["number"] for line in told if line["event"] == name] == list(range(500))


def test_lines_go_out_together_when_several_wait() -> None:
    written: list[list[str]] = []
    lines = Lines(lambda batch: written.append(list(batch)))
    for number in range(3):
        lines.write(str(number))
    lines.end()
    for batch in lines.batches():
        assert lines.deliver(batch) == 0
    assert written == [["0", "1", "2"]]


# ── streams that fail ───────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def full_disk() -> Iterator[Any]:
    with contextlib.suppress(OSError), open("/dev/full", "w") as stream:  # noqa: PTH123
        yield stream


@contextlib.contextmanager
def nobody() -> Iterator[Any]:
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(OSError), os.fdopen(writing, "w") as stream:
        yield stream


@pytest.mark.parametrize("broken", [full_disk, nobody])
def test_a_stream_that_fails_costs_its_lines_alone(
    broken: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    with broken() as stream, opened(JSON, stream):
        for _ in range(3):
            structlog.get_logger().info("a line")
            logging.getLogger().error("another")
    structlog.get_logger().info("a late one")


def test_a_stream_that_was_closed_costs_its_lines_alone() -> None:
    stream = io.StringIO()
    with opened(JSON, stream):
        stream.close()
        structlog.get_logger().info("a line")
    structlog.get_logger().info("a late one")


def test_without_standard_error_lines_are_lost_or_go_to_the_file(tmp_path: Path) -> None:
    for settings in (JSON, in_file()):
        with opened(settings, None, tmp_path):
            structlog.get_logger().info("a line")
        structlog.get_logger().info("a late one")
    assert events((tmp_path / "holdfast.log").read_text()) == ["a line"]


def test_a_stream_that_works_again_tells_how_many_lines_were_lost() -> None:
    class Moody(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                tried.set()
                raise OSError("no space")
            return super().write(text)

    stream, tried = Moody(), threading.Event()
    with opened(JSON, stream):
        structlog.get_logger().info("lost")
        assert tried.wait(30)
        stream.broken = False
        structlog.get_logger().info("arrives")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in told] == ["arrives", "log lines were lost"]
    assert told[-1]["lines"] == 1


def test_a_descriptor_that_does_not_wait_loses_nothing() -> None:
    with pipe() as (reading, stream):
        os.set_blocking(stream.fileno(), False)
        with opened(JSON, stream):
            for number in range(2000):
                structlog.get_logger().info("a line", number=number, filling="x" * 100)
            received = b""
            while received.count(b"\n") < 2000:
                received += os.read(reading, 2**16)
    assert len(events(received.decode())) == 2000


# ── the end ─────────────────────────────────────────────────────────────────────────────────────


def test_leaving_writes_out_what_waits_and_late_lines_go_out_at_once() -> None:
    stream = io.StringIO()
    log = structlog.get_logger()
    with opened(JSON, stream):
        for number in range(100):
            log.info(f"line {number}")
    assert events(stream.getvalue()) == [f"line {number}" for number in range(100)]
    log.info("late")
    logging.getLogger().error("later")
    assert events(stream.getvalue())[100:] == ["late", "later"]


def test_leaving_waits_for_no_stream_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LAST_WORDS", 0.01)
    door = Door()
    with opened(JSON, door):
        structlog.get_logger().info("a line")
        assert door.someone_waits.wait(30)
    structlog.get_logger().info("a late line")  # would hang for ever if it had to arrive
    door.open.set()
    wait_for(lambda: not any(thread.name == "log-writer" for thread in threading.enumerate()))
    assert events(door.getvalue()) == ["a line"]


HANGING = """
import pathlib, structlog, sys
from holdfast.core.ledger import Ledger
from holdfast.core.settings import LogSettings
from holdfast.logs import open_logs

with open_logs(LogSettings(), sys.stderr, folder=pathlib.Path(), ledger=Ledger()):
    for number in range(2000):
        structlog.get_logger().info("a line", filling="x" * 100)
structlog.get_logger().info("a late line")
"""


def test_a_process_whose_log_nobody_reads_ends_well() -> None:
    """Also in the interpreter's last moments, which want the lock of standard error's buffer."""
    with pipe() as (_, stream):
        done = subprocess.run([sys.executable, "-c", HANGING], stderr=stream, timeout=60, check=False)
    assert done.returncode == 0


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def in_file(name: str = "holdfast.log", **more: Any) -> LogSettings:
    return LogSettings(format="json", file=name, **more)


def test_a_file_lies_in_the_data_folder_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    stream, ledger, data = io.StringIO(), Ledger(), tmp_path / "data"
    with open_logs(LogSettings(file="logs/here.log"), stream, folder=data, ledger=ledger):
        structlog.get_logger().info("a line", word="día \udcff")
        path = data / "logs/here.log"
        assert [(entry.kind, entry.name, entry.owner) for entry in ledger] == [("file", str(path), "process")]
        assert [os.readlink(f"/proc/self/fd/{number}") for number in ledger.holders()] == [str(path)]  # noqa: PTH115
    assert list(ledger) == []
    assert events(path.read_text()) == ["a line"]  # in JSON: it is no terminal
    assert stream.getvalue() == ""
    assert [made.stat().st_mode & 0o077 for made in (path, path.parent, data)] == [0, 0, 0]
    structlog.get_logger().info("late")
    assert events(stream.getvalue()) == ["late"]


def test_a_file_is_continued_and_may_be_absolute_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "my.log"), "~/my.log"):
        with opened(in_file(name), io.StringIO(), Path("/nowhere")):
            structlog.get_logger().info(name)
    assert len(events((tmp_path / "my.log").read_text())) == 2


def test_a_full_file_is_set_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.log"
    with opened(in_file(file_size=4096, files=2), io.StringIO(), tmp_path):
        for number in range(200):
            structlog.get_logger().info(f"{number}", filling="x" * 100)
    kept = [path.with_name("holdfast.log.2"), path.with_name("holdfast.log.1"), path]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert all(0 < each.stat().st_size <= 4096 for each in kept)
    assert all(each.stat().st_mode & 0o077 == 0 for each in kept)
    told = [int(event) for each in kept for event in events(each.read_text())]
    assert told == list(range(told[0], 200))
    assert len(told) > 2 * 4096 // 250


@pytest.mark.parametrize("kept", [0, 1])
def test_fewer_files_are_kept_when_the_settings_say_so(tmp_path: Path, kept: int) -> None:
    for number in range(1, 5):
        (tmp_path / f"holdfast.log.{number}").write_text("old\n")
    (tmp_path / "holdfast.log.2025").write_text("not ours\n")
    with opened(in_file(file_size=4096, files=kept), io.StringIO(), tmp_path):
        for _ in range(2):
            structlog.get_logger().info("a line", filling="x" * 4000)
    ours = ["holdfast.log", *(f"holdfast.log.{number}" for number in range(1, kept + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*ours, "holdfast.log.2025"])
    assert events("".join((tmp_path / name).read_text() for name in ours)) == ["a line"] * (kept + 1)


def test_a_line_larger_than_a_file_has_a_file_of_its_own(tmp_path: Path) -> None:
    with opened(in_file(file_size=4096, files=9), io.StringIO(), tmp_path):
        for size in (10, 9000, 10):
            structlog.get_logger().info("a line", filling="x" * size)
    assert [len(events(path.read_text())) for path in sorted(tmp_path.iterdir())] == [1, 1, 1]


def test_a_file_that_someone_moved_or_removed_is_begun_again(tmp_path: Path) -> None:
    path, moved = tmp_path / "logs/holdfast.log", tmp_path / "moved"
    log = structlog.get_logger()
    with opened(in_file("logs/holdfast.log"), io.StringIO(), tmp_path):
        log.info("first")
        wait_for(path.read_text)
        path.rename(moved)
        log.info("second")
        wait_for(path.exists)
        wait_for(path.read_text)
        path.unlink()
        path.parent.rmdir()
        log.info("third")
    assert [events(each.read_text()) for each in (moved, path)] == [["first"], ["third"]]


def test_a_file_that_can_not_be_set_aside_grows_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "holdfast.log.1").mkdir()
    (tmp_path / "holdfast.log.1/something").touch()
    with opened(in_file(file_size=4096, files=1), io.StringIO(), tmp_path):
        for number in range(50):
            structlog.get_logger().info(f"{number}", filling="x" * 100)
        wait_for(lambda: "can't be set aside" in (tmp_path / "holdfast.log").read_text())
    told = events((tmp_path / "holdfast.log").read_text())
    complaints = told.count("the log file can't be set aside")
    assert [event for event in told if event.isdigit()] == [str(number) for number in range(50)]
    assert 1 <= complaints <= 4  # one for each 4 KiB


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is not a plain file"),
        ("/dev/null", "it is not a plain file"),
        ("file/x.log", "Not a directory"),
        ("~nobody-of-that-name/x", "Could not determine home directory."),
    ],
)
def test_a_file_that_can_not_be_written_is_one_line_at_the_start(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    file = name or str(tmp_path)
    with (
        pytest.raises(SettingsError) as error,
        opened(in_file(file), io.StringIO(), tmp_path),
    ):
        raise AssertionError
    assert str(error.value) == f"{tmp_path / file}: the log can't be written here ({reason}); change [log] file"
