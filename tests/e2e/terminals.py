"""A program on a real pseudo-terminal, and what a person would see there."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PATIENCE = 30.0

_SEQUENCE = re.compile(r"\x1b(?:\[([?>]?)([\d;]*)([ -/]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")


class Screen:
    """As much of a terminal as the program uses: it moves, erases, wraps and scrolls. Colours are dropped."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[]]
        """Everything since the start; the screen shows the last `rows` of it."""
        self._x = self._y = 0
        self._pending = ""

    @property
    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip("\n")

    def feed(self, text: str) -> None:
        text, self._pending = self._pending + text, ""
        position = 0
        while position < len(text):
            character = text[position]
            if character != "\x1b":
                self._put(character)
                position += 1
            elif found := _SEQUENCE.match(text, position):
                self._obey(found[1] or "", found[2] or "", found[4] or "")
                position = found.end()
            else:
                self._pending = text[position:]
                return

    def _put(self, character: str) -> None:
        if character == "\n":
            self._down(1)
        elif character == "\r":
            self._x = 0
        elif character == "\x08":
            self._x = max(0, self._x - 1)
        elif character >= " ":
            if self._x >= self.columns:
                self._x = 0
                self._down(1)
            line = self.lines[self._y]
            line.extend(" " * (self._x + 1 - len(line)))
            line[self._x] = character
            self._x += 1

    def _down(self, number: int) -> None:
        self._y += number
        while len(self.lines) <= self._y:
            self.lines.append([])

    def _obey(self, mark: str, parameters: str, order: str) -> None:
        if mark:
            return
        number = int(parameters.split(";")[0] or 0)
        top = max(0, len(self.lines) - self.rows)
        match order:
            case "A":
                self._y = max(top, self._y - max(1, number))
            case "B":
                self._y = min(len(self.lines) - 1, self._y + max(1, number))
            case "C":
                self._x = min(self.columns - 1, self._x + max(1, number))
            case "D":
                self._x = max(0, self._x - max(1, number))
            case "J":
                assert number == 0, "the program erases more than what it drew"
                del self.lines[self._y][self._x :], self.lines[self._y + 1 :]
            case "K":
                del self.lines[self._y][self._x if number == 0 else 0 :]
            case "m" | "":
                pass
            case _:
                raise AssertionError(f"unknown sequence: {parameters}{order}")


class Terminal:
    """A program that runs on a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int, screen: Screen) -> None:
        self.process = process
        self.screen = screen
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def say(self, text: str) -> None:
        """Type a line and press Enter, as soon as there is a line to type on."""
        self.type(text + "\r")

    def see(self, wanted: str | Callable[[str], bool]) -> str:
        """Wait until the text is there, or the condition holds; everything that was shown so far."""
        deadline = time.monotonic() + PATIENCE
        while not (wanted(self.screen.text) if callable(wanted) else wanted in self.screen.text):
            if time.monotonic() > deadline or not self._read(0.2):
                raise AssertionError(f"not seen: {wanted}\n{self.screen.text}")
        return self.screen.text

    def end(self) -> int:
        """Wait until it has left; its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._read(0.2):
            if time.monotonic() > deadline:
                raise AssertionError(f"still running:\n{self.screen.text}")
        return self.process.wait(timeout=PATIENCE)

    def _read(self, seconds: float) -> bool:
        """Take in what was written within some time; False at the end."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # how Linux says that nobody writes there any more
            return False
        self.screen.feed(self._decoder.decode(data))
        return bool(data)


@contextmanager
def open_terminal(
    *arguments: str, environment: Mapping[str, str], columns: int = 80, rows: int = 40
) -> Iterator[Terminal]:
    """Run `holdfast` on a terminal; leaving the block ends it, whatever it does."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
    finally:
        os.close(theirs)
    try:
        yield Terminal(process, ours, Screen(columns, rows))
    finally:
        os.close(ours)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
