"""The command line as a whole: what it says, how it exits, and what it costs to start."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli import COMMANDS, run
from holdfast.core.errors import HoldfastError, SettingsError, StoreLocked

HEAVY = ("aiohttp", "msgspec", "rich", "prompt_toolkit", "anyio", "asyncio", "structlog", "sqlalchemy", "holdfast.app")


def holdfast(
    *arguments: str, home: Path, program: str = "-m holdfast", variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *program.split(), *arguments],
        env={**os.environ, "HOLDFAST_HOME": str(home), "COLUMNS": "80", **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_version(tmp_path: Path) -> None:
    done = holdfast("--version", home=tmp_path)
    assert (done.stdout, done.returncode) == (f"holdfast {__version__}\n", 0)


def test_help_names_every_command_with_or_without_being_asked_for(tmp_path: Path) -> None:
    asked, bare = holdfast("--help", home=tmp_path), holdfast(home=tmp_path)
    assert (asked.returncode, bare.returncode) == (0, 0)
    assert bare.stdout == asked.stdout
    assert re.findall(r"^  (\w+) +\S", asked.stdout.partition("Commands:")[2], re.MULTILINE) == list(COMMANDS)
    assert "..." not in asked.stdout.partition("Commands:")[2]  # no sentence is cut off


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: holdfast {command}" in shown
    assert "<str>" not in shown or command == "init"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chatt"], "No such command 'chatt'. (holdfast --help says what there is)"),
        (["chat", "--mesage", "x"], "(holdfast chat --help says what there is)"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "now"], "now"),
        (["chat", "-m", " "], "the message is empty"),
        (["chat", "--chat", "no/slash", "-m", "x"], "A-Z a-z 0-9"),
        (["chat", "--chat", "..", "-m", "x"], "A-Z a-z 0-9"),
        (["chat", "-m", "x", "--url", "localhost:8420"], "http://127.0.0.1:8420"),
    ],
)
def test_a_mistake_in_the_call_is_one_line_and_status_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = holdfast(*arguments, home=tmp_path)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(r"holdfast: .+\n", done.stderr)
    assert said in done.stderr


@pytest.mark.parametrize("command", [["serve"], ["chat", "-m", "x"], ["status"], ["reload"], ["link"]])
def test_a_mistake_in_the_settings_is_one_line_and_status_2(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "holdfast.toml").write_text("[server]\nprot = 1\n")
    done = holdfast(*command, home=tmp_path)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(r"holdfast: .+holdfast\.toml:2: .*prot.+\n", done.stderr)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("The key is wrong."), 2),
        (StoreLocked("It is locked,\nstill."), 1),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [HoldfastError("It broke.")])]), 1),
        (ExceptionGroup("tasks", [SettingsError("It is wrong.")]), 2),
    ],
)
def test_an_error_with_a_sentence_is_that_sentence_on_one_line(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("holdfast.cli.link.link", fail)
    assert run(["link"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"holdfast: [^\n]+\.\n", captured.err)


@pytest.mark.parametrize("error", [ValueError("a bug"), ExceptionGroup("tasks", [HoldfastError("x"), ValueError("y")])])
def test_a_bug_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("holdfast.cli.link.link", fail)
    with pytest.raises(type(error)):
        run(["link"])


def test_ctrl_c_exits_quietly_with_130(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "chat", "-m", "-"],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        os.write(process.stdin.fileno(), b"half a mess")
        deadline = time.monotonic() + 30
        while unread(process.stdin.fileno()):  # then it waits for the rest
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


def unread(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "chat", "--help"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


def test_the_link_has_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    done = holdfast("link", home=tmp_path, variables={"HOLDFAST_SERVER__PORT": "9000"})
    assert (done.stdout, done.returncode) == ("http://127.0.0.1:9000/#token=abc\n", 0)


def test_there_is_no_link_before_the_first_start(tmp_path: Path) -> None:
    done = holdfast("link", home=tmp_path)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == "holdfast: There is no token yet: the first start of holdfast serve makes it.\n"


@pytest.mark.parametrize("module", ["holdfast.cli", *(f"holdfast.cli.{name}" for name in COMMANDS if name != "init")])
def test_no_command_pays_for_what_another_needs(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert set(loaded.stdout.split()) & set(HEAVY) == set()
