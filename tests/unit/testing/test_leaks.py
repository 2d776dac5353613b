"""The plug-in is tried on tests that leak, all in one pytest of its own, whose report is then looked at."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import holdfast
from holdfast.testing.leaks import LeftBehind, nothing_left

CONFTEST = """
import os, signal, subprocess, pytest

pytest_plugins = ["holdfast.testing.leaks", "holdfast.testing.virtual"]

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="session")
def kept():
    "Keeps what tests leave behind, and ends it after the last of them."
    things = []
    yield things
    for thing in things:
        if isinstance(thing, int):
            os.kill(thing, signal.SIGKILL)
        elif isinstance(thing, subprocess.Popen):
            thing.kill()
            thing.wait()
        else:
            thing()

@pytest.fixture(scope="module")
def shared_shell():
    with subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        yield shell
"""

LEAKY = """
import asyncio, os, socket, subprocess, threading
import anyio, pytest

async def linger():
    await asyncio.sleep(60)

@pytest.mark.anyio
async def test_task_of_an_async_test(kept):
    kept.append(asyncio.create_task(linger(), name="lingerer").done)

@pytest.mark.virtual
async def test_task_on_virtual_time(kept):
    kept.append(asyncio.create_task(linger(), name="lingerer").done)

def test_task_of_a_sync_test(kept):
    async def main():
        kept.append(asyncio.create_task(linger(), name="lingerer").done)
    asyncio.run(main())

def test_task_of_a_loop_without_runner(kept):
    loop = asyncio.new_event_loop()
    task = loop.create_task(linger(), name="lingerer")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    def end():
        task._log_destroy_pending = False
        task.get_coro().close()
    kept.append(end)

def test_thread(kept):
    may_end = threading.Event()
    def dawdle():
        may_end.wait()
    thread = threading.Thread(target=dawdle, name="dawdler")
    thread.start()
    kept.append(may_end.set)

def test_child(kept):
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_zombie(kept):
    child = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    child.stdout.read()
    child.stdout.close()
    kept.append(child)

def test_grandchild(kept):
    child = subprocess.Popen(["sh", "-c", "sleep 61 & echo $!; wait"], stdout=subprocess.PIPE)
    kept.append(int(child.stdout.readline()))
    child.stdout.close()
    kept.append(child)

def test_orphan(kept):
    done = subprocess.run(["sh", "-c", "sleep 62 >/dev/null & echo $!"], stdout=subprocess.PIPE)
    kept.append(int(done.stdout))

def test_file(kept, tmp_path):
    kept.append((tmp_path / "notes.txt").open("w").close)

def test_socket(kept):
    listener = socket.create_server(("127.0.0.1", 0))
    kept.append(listener.close)

def test_several_at_once(kept):
    for end in os.pipe():
        kept.append(lambda end=end: os.close(end))
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_failing_one(kept):
    kept.append(socket.socket().close)
    assert False, "on its own account"
"""

CLEAN = """
import asyncio, gc, socket, subprocess, threading
import anyio, pytest
from anyio import to_thread

def test_nothing():
    pass

@pytest.mark.anyio
async def test_tasks_threads_and_servers_that_end():
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
    await to_thread.run_sync(int)
    await asyncio.get_running_loop().run_in_executor(None, int)
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0):
        pass
    await anyio.run_process(["true"])

@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
@pytest.mark.anyio
async def test_the_same_on_uvloop(anyio_backend):
    await test_tasks_threads_and_servers_that_end()

@pytest.mark.anyio
async def test_a_task_that_is_about_to_end():
    asyncio.get_running_loop().create_task(asyncio.sleep(0.01))

def test_threads_processes_and_files_that_end(tmp_path):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    subprocess.run(["true"])
    with (tmp_path / "notes.txt").open("w"), socket.socket():
        pass

def test_a_thread_that_is_about_to_end():
    threading.Timer(0.01, int).start()

def test_what_nobody_refers_to_is_collected_first():
    class Pair:
        def __init__(self):
            self.me, (self.near, self.far) = self, socket.socketpair()
        def __del__(self):
            self.near.close()
            self.far.close()
    gc.disable()
    Pair()
    gc.enable()

def test_what_a_shared_process_starts_is_its_own_business(shared_shell, kept):
    print("sleep 63 >/dev/null & echo $!", file=shared_shell.stdin, flush=True)
    kept.append(int(shared_shell.stdout.readline()))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each planted test: nothing, or why it failed."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nleak_grace = 0.2\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_leaky.py").write_text(LEAKY)
    (folder / "test_clean.py").write_text(CLEAN)
    options = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "--junitxml=report.xml"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
        check=False,
        stdout=subprocess.DEVNULL,
    )
    cases = ElementTree.parse(folder / "report.xml").iter("testcase")
    return {str(case.get("name")): "\n".join(why.text or "" for why in case) for case in cases}


LINGERER = r"task 'lingerer' in linger at .*test_leaky\.py:6"
NAMED = {
    "test_task_of_an_async_test": LINGERER,
    "test_task_on_virtual_time[virtual]": LINGERER,
    "test_task_of_a_sync_test": LINGERER,
    "test_task_of_a_loop_without_runner": LINGERER,
    "test_thread": r"thread 'dawdler' in .*dawdle at .*test_leaky\.py:\d+",
    "test_child": r"process \d+: sleep 60",
    "test_zombie": r"process \d+: zombie \(ended, but nobody waited for it\), was true",
    "test_grandchild": r"process \d+: sh -c .*\n  process \d+: sleep 61",
    "test_orphan": r"process \d+: sleep 62",
    "test_file": r"fd \d+ → .*/notes\.txt",
    "test_socket": r"fd \d+ → socket:\[\d+\] \(AF_INET \('127\.0\.0\.1', \d+\)\)",
    "test_several_at_once": r"process \d+: sleep 60\n  fd \d+ → pipe:\[\d+\]\n  fd \d+ → pipe:\[\d+\]",
    "test_failing_one": r"fd \d+ → socket:",
}


@pytest.mark.parametrize("leak", NAMED)
def test_a_leak_is_caught_and_named(report: dict[str, str], leak: str) -> None:
    assert re.search(rf"Left behind:\n  {NAMED[leak]}", report[leak])


CLEAN_TESTS = [
    "test_nothing",
    "test_tasks_threads_and_servers_that_end",
    "test_the_same_on_uvloop[uvloop]",
    "test_a_task_that_is_about_to_end",
    "test_threads_processes_and_files_that_end",
    "test_a_thread_that_is_about_to_end",
    "test_what_nobody_refers_to_is_collected_first",
    "test_what_a_shared_process_starts_is_its_own_business",
]


@pytest.mark.parametrize("clean", CLEAN_TESTS)
def test_a_clean_test_passes(report: dict[str, str], clean: str) -> None:
    assert report[clean] == ""


def test_every_planted_test_is_looked_at(report: dict[str, str]) -> None:
    assert len(report) == len(NAMED) + len(CLEAN_TESTS)


def test_a_block_can_be_checked_without_pytest(tmp_path: Path) -> None:
    with pytest.raises(LeftBehind, match=r"fd \d+ → .*/notes\.txt"), nothing_left(grace=0):
        file = (tmp_path / "notes.txt").open("w")
    file.close()


def test_looking_costs_next_to_nothing() -> None:
    costs = []
    for _ in range(50):
        started = time.process_time()
        with nothing_left():
            pass
        costs.append(time.process_time() - started)
    assert sorted(costs)[25] < 0.003
