"""Every open descriptor is told with what it is and whose, as the kernel and those who opened it say."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.core.ledger import Ledger
from holdfast.gateway import descriptors
from holdfast.gateway.descriptors import count_by_owner, list_descriptors, names, open_descriptors

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc to read")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def told(ledger: Ledger) -> dict[int, tuple[str, str]]:
    """The name, without its number, and the owner of each descriptor."""
    found = list_descriptors(ledger)
    assert found is not None
    return {
        descriptor.number: (name.removeprefix(f"{descriptor.number} "), descriptor.owner)
        for name, descriptor in zip(names(found), found, strict=True)
    }


@pytest.mark.parametrize(
    ("family", "host", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "[::1]"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_socket_is_named_by_its_addresses(stack: ExitStack, family: int, host: str, shown: str) -> None:
    listener = stack.enter_context(socket.socket(family))
    try:
        listener.bind((host, 0))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    listener.listen()
    client = stack.enter_context(socket.socket(family))
    client.connect(listener.getsockname())
    served = stack.enter_context(listener.accept()[0])
    here, there = f"{shown}:{listener.getsockname()[1]}", f"{shown}:{client.getsockname()[1]}"
    found = told(Ledger())
    assert found[listener.fileno()] == (f"socket {here} listening", "process")
    assert found[client.fileno()] == (f"socket {there} → {here}", "process")
    assert found[served.fileno()] == (f"socket {here} → {there}", "process")


def test_what_is_no_connection_is_named_by_its_kind(stack: ExitStack, tmp_path: Path) -> None:
    poll = stack.enter_context(select.epoll())
    pipe = os.pipe()
    for number in pipe:
        stack.callback(os.close, number)
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(tmp_path / "unix"))
    listener.listen()
    pair = [stack.enter_context(end) for end in socket.socketpair()]
    datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    datagrams.bind(("127.0.0.1", 0))
    file = stack.enter_context((tmp_path / "a file").open("w"))
    gone = stack.enter_context((tmp_path / "gone").open("w"))
    (tmp_path / "gone").unlink()
    found = {number: name for number, (name, _) in told(Ledger()).items()}
    assert found[poll.fileno()] == "epoll"
    assert [found[number] for number in pipe] == ["pipe", "pipe"]
    assert found[listener.fileno()] == f"socket {tmp_path / 'unix'} listening"
    assert [found[end.fileno()] for end in pair] == ["socket", "socket"]
    assert found[datagrams.fileno()] == f"socket 127.0.0.1:{datagrams.getsockname()[1]}"
    assert found[file.fileno()] == str(tmp_path / "a file")
    assert found[gone.fileno()] == f"{tmp_path / 'gone'} (deleted)"


def test_the_owner_is_who_says_so(stack: ExitStack, tmp_path: Path) -> None:
    ledger = Ledger()
    database = stack.enter_context((tmp_path / "data.db").open("w"))
    log = stack.enter_context((tmp_path / "data.db-wal").open("w"))
    (tmp_path / "data.db-wal").unlink()
    pool, stray = (stack.enter_context(socket.socket()) for _ in range(2))
    child = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, stdout=-1))
    assert child.stdin
    assert child.stdout
    pipes = [child.stdin.fileno(), child.stdout.fileno()]
    files = [str(tmp_path / "data.db"), str(tmp_path / "data.db-wal")]
    with (
        ledger.enter("database", "data.db", holds=lambda: files),
        ledger.enter("socket pool", "https://models.example", holds=lambda: [pool.fileno()]),
        ledger.enter("process", str(child.pid), owner="s1", holds=lambda: pipes),
        ledger.enter("browser", "says nothing of what it holds"),
    ):
        found = {number: owner for number, (_, owner) in told(ledger).items()}
        counts = count_by_owner(list_descriptors(ledger) or [])
    assert found[database.fileno()] == found[log.fileno()] == "the store"
    assert found[pool.fileno()] == "socket pool https://models.example"
    assert found[stray.fileno()] == "process"
    assert [found[number] for number in pipes] == ["s1", "s1"]
    assert {owner: count for owner, count in counts.items() if owner != "process"} == {
        "the store": 2,
        "socket pool": 1,
        "sessions": 2,
    }
    assert sum(counts.values()) == len(found)
    assert {owner for _, owner in told(ledger).values()} == {"process"}, "each left the ledger with its block"
    child.communicate(b"\n")


def test_the_list_is_what_the_kernel_says() -> None:
    found = open_descriptors()
    assert found is not None
    assert list(found) == sorted(found)
    for number, target in found.items():
        assert os.readlink(f"/proc/self/fd/{number}") == target  # noqa: PTH115
    with closing(socket.socket()) as another:
        assert set(open_descriptors() or ()) == {*found, another.fileno()}


def test_a_thousand_take_no_time(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=400))
    for _ in range(300):
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])
    for _ in range(400):
        stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        found = told(Ledger())
        took.append(time.perf_counter() - began)
    assert len(found) >= 1000
    assert min(took) < 0.05


def test_where_there_is_no_proc_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(folder: str) -> list[str]:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(descriptors.os, "listdir", listdir)
    assert open_descriptors() is None
    assert list_descriptors(Ledger()) is None
