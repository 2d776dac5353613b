"""Proves that a test left nothing behind: no task, thread, process or descriptor.

A pytest plug-in: with `pytest_plugins = ["holdfast.testing.leaks"]` in the `conftest.py`, the fixture
`nothing_left_behind` looks before and after each test, synchronous or not. What a fixture of a wider
scope opened before the test is that fixture's business.

Tasks and threads are seen everywhere, processes and descriptors where there is a /proc.
"""

import asyncio
import gc
import os
import socket
import threading
import time
from asyncio import runners
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import whereabouts

GRACE = 1.0
"""How many seconds a thing that is about to end is waited for."""

_PROC = Path("/proc")
_MARK = "LEFT_BEHIND_BY"
"""The environment variable by which even an orphan's orphan is known as the test's own."""

Task = asyncio.Task[Any]


class LeftBehind(AssertionError):
    """Something outlived the block that should have ended it."""


@contextmanager
def nothing_left(grace: float = GRACE) -> Iterator[None]:
    """Raises `LeftBehind` at the end of the block, naming what was opened inside and is still there."""
    with _marked() as mark, _cancelled_by_runners(grace) as cancelled:
        before = _Open.now()
        yield
        left = cancelled + _settled(lambda: _Open.now().beyond(before, mark), grace)
    if left:
        raise LeftBehind("\n  ".join(["Left behind:", *left]))


def _settled(look: Callable[[], list[str]], grace: float) -> list[str]:
    """What is still there after a while: a thread that has been joined needs a moment to vanish."""
    left = look()
    if not left:
        return left
    gc.collect()  # what nobody refers to any more isn't open, only not yet closed
    deadline, pause = time.monotonic() + grace, 0.001
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return left


@contextmanager
def _marked() -> Iterator[str]:
    """Puts a mark into the environment that every process started inside inherits."""
    outer = os.environ.get(_MARK)
    mark = os.environ[_MARK] = f"{os.getpid()}.{time.monotonic_ns()}"
    try:
        yield mark
    finally:
        del os.environ[_MARK]
        if outer is not None:
            os.environ[_MARK] = outer


@contextmanager
def _cancelled_by_runners(grace: float) -> Iterator[list[str]]:
    """The tasks that were left on a loop when its runner ended.

    `asyncio.run` and the runners of pytest's plug-ins cancel them without a word, before anyone can look.
    """
    found: list[str] = []
    cancel_all_tasks: Callable[[asyncio.AbstractEventLoop], None] = runners._cancel_all_tasks  # type: ignore[attr-defined]

    def look_first(loop: asyncio.AbstractEventLoop) -> None:
        left = {task for task in asyncio.all_tasks(loop) if _counts(task)}
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=grace))
            found.extend(whereabouts.of_task(task) for task in left if not task.done())
        cancel_all_tasks(loop)

    runners._cancel_all_tasks = look_first  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        runners._cancel_all_tasks = cancel_all_tasks  # type: ignore[attr-defined]


def _counts(task: Task) -> bool:
    """All do but the one in which anyio's pytest plug-in runs tests."""
    return getattr(task.get_coro(), "__qualname__", "") != "TestRunner._run_tests_and_fixtures"


class _Open(NamedTuple):
    """What is open at one moment."""

    tasks: set[Task]
    threads: set[int]
    processes: set[int]
    descriptors: dict[int, str]

    @classmethod
    def now(cls) -> "_Open":
        return cls(_tasks(), _threads(), _numbers(_PROC), _descriptors())

    def beyond(self, before: "_Open", mark: str) -> list[str]:
        """What is open now and was not before, described."""
        return [
            *(whereabouts.of_task(task) for task in self.tasks - before.tasks),
            *(_describe_thread(number) for number in sorted(self.threads - before.threads)),
            *(
                _describe_process(pid)
                for pid in sorted(self.processes - before.processes)
                if _is_ours(pid, before.processes, mark)
            ),
            *(
                _describe_descriptor(number, target)
                for number, target in sorted(self.descriptors.items())
                if before.descriptors.get(number) != target
            ),
        ]


def _numbers(folder: Path) -> set[int]:
    try:
        return {int(name) for name in os.listdir(folder) if name.isdigit()}  # noqa: PTH208 (Path is 5 times slower)
    except FileNotFoundError:
        return set()


# ── tasks ───────────────────────────────────────────────────────────────────────────────────────


def _tasks() -> set[Task]:
    """The pending tasks of all loops; `asyncio.all_tasks` knows those of one."""
    known = (getattr(asyncio.tasks, name, ()) for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"))
    return {task for tasks in known for task in list(tasks) if not task.done() and _counts(task)}


# ── threads ─────────────────────────────────────────────────────────────────────────────────────


def _threads() -> set[int]:
    """By the kernel's numbers, so that threads which Python did not start count too."""
    return _numbers(_PROC / "self/task") or {thread.native_id or 0 for thread in threading.enumerate()}


def _describe_thread(number: int) -> str:
    for thread in threading.enumerate():
        if thread.native_id == number:
            return whereabouts.of_thread(thread)
    return f"thread {number} {_read(_PROC / f'self/task/{number}/comm').strip()!r}, which Python did not start"


# ── processes ───────────────────────────────────────────────────────────────────────────────────


def _is_ours(pid: int, before: set[int], mark: str) -> bool:
    """Whether the test started it: by descent, or by the mark in its environment if its parents are gone.

    A new child of a process that was there before, such as a shared browser, belongs to that process.
    """
    if f"{_MARK}={mark}" in _read(_PROC / f"{pid}/environ").split("\0"):
        return True
    while pid not in before and (parent := _parent(pid)):
        if parent == os.getpid():
            return True
        pid = parent
    return False


def _state(pid: int) -> list[str]:
    """The fields of its stat file that follow the name: state, parent, …"""
    return _read(_PROC / f"{pid}/stat").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int((_state(pid) or "00")[1])


def _describe_process(pid: int) -> str:
    command = " ".join(_read(_PROC / f"{pid}/cmdline").split("\0")).strip()
    zombie = "zombie (ended, but nobody waited for it), was " if _state(pid)[:1] == ["Z"] else ""
    return f"process {pid}: {zombie}{command or _read(_PROC / f'{pid}/comm').strip() or 'gone by now'}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended meanwhile, or it belongs to someone else
        return ""


# ── descriptors ─────────────────────────────────────────────────────────────────────────────────


def _descriptors() -> dict[int, str]:
    found = {}
    for number in _numbers(_PROC / "self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 (Path is 5 times slower)
        except OSError:  # the one by which the folder was read
            continue
    return found


def _describe_descriptor(number: int, target: str) -> str:
    return f"fd {number} → {target}{_addresses(number) if target.startswith('socket:') else ''}"


def _addresses(number: int) -> str:
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        text = f" ({copy.family.name} {copy.getsockname() or 'unnamed'}"
        with suppress(OSError):
            text += f", connected to {copy.getpeername() or 'an unnamed one'}"
        return f"{text})"
    return ""


# ── the pytest plug-in ──────────────────────────────────────────────────────────────────────────


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leak_grace", "Seconds to wait for what a test left behind to end by itself.", default=str(GRACE))


def pytest_sessionstart() -> None:
    """Open what a process opens once, at its first use, so that no test gets the blame: uvloop's thread pool."""
    try:
        import uvloop
    except ImportError:
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_resolve())


async def _resolve() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", None)


@pytest.fixture(autouse=True)
def nothing_left_behind(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fails the test that leaves a task, thread, process or descriptor behind, and names it."""
    try:
        with nothing_left(float(pytestconfig.getini("leak_grace"))):
            yield
    except LeftBehind as left:
        raise pytest.fail.Exception(str(left), pytrace=False) from None
