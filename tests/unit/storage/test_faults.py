"""What can go wrong with a file, for real: a full disk, a read-only place, damage, someone else's lock.

Where it needs a process of its own, that process runs this very file.
"""

import asyncio
import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.clock import SystemClock
from holdfast.core.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, StoreReadOnly
from holdfast.core.keys import MailId
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Store
from holdfast.storage import open_store
from holdfast.storage.faults import explain
from holdfast.testing.stores import SESSION, a_mail, a_row, a_session, an_answer

pytestmark = pytest.mark.anyio

Opener = Callable[..., AbstractAsyncContextManager[Store]]

SOURCE = Path(holdfast.__file__).parents[1]
NOBODY = 65534


def run_here(verb: str, path: Path) -> None:
    """Run one of the functions at the end of this file in a process of its own."""
    environment = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, verb, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def may_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode == 0
        return mounted and subprocess.run(["umount", folder]).returncode == 0


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


DISKS = ["limit", "tmpfs"] if may_mount() else ["limit"]
"""A limit on the size of files is there for everyone; a small disk of one's own needs root."""


# ── full ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("disk", DISKS)
def test_a_full_disk_loses_nothing_and_is_over_when_there_is_space(disk: str, tmp_path: Path) -> None:
    if disk == "tmpfs":
        with mounted(tmp_path / "disk", 2**20) as folder:
            (folder / "ballast").write_bytes(bytes(2**19))
            run_here("fill_disk", folder / "holdfast.db")
    else:
        run_here("fill_limit", tmp_path / "holdfast.db")


@pytest.mark.parametrize("disk", DISKS)
def test_a_store_is_not_made_on_a_full_disk(disk: str, tmp_path: Path) -> None:
    if disk == "tmpfs":
        with mounted(tmp_path / "disk", 16384) as folder:
            run_here("fail_to_open_full", folder / "holdfast.db")
    else:
        run_here("fail_to_open_limited", tmp_path / "holdfast.db")


# ── read-only ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user can get to."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def make_store(path: Path) -> None:
    async with open_store(path, ledger=Ledger(), clock=SystemClock()) as store:
        await store.accept(a_mail())


@pytest.mark.parametrize("locked_up", ["file", "folder", "missing"])
async def test_a_place_that_may_not_be_written_is_named(public: Path, locked_up: str) -> None:
    """Tried by a user without rights, because the superuser may write everywhere."""
    path = public / "holdfast.db"
    if locked_up != "missing":
        await make_store(path)
        path.chmod(0o444 if locked_up == "file" else 0o666)
    public.chmod(0o777 if locked_up == "file" else 0o555)
    run_here("fail_to_write_as_nobody", path)
    public.chmod(0o755)


@pytest.mark.skipif("tmpfs" not in DISKS, reason="mounting needs root; the test above shows the same without it")
async def test_a_read_only_mount_is_named(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 2**20) as folder:
        await make_store(folder / "holdfast.db")
        make_read_only(folder)
        run_here("fail_to_write", folder / "holdfast.db")


# ── damaged ─────────────────────────────────────────────────────────────────────────────────────


async def test_damage_is_named_and_what_is_whole_can_still_be_read(opened: Opener, path: Path) -> None:
    async with opened() as store:
        await store.accept(a_mail())
        store.begin(a_session())
        for seq in range(2000):
            store.append(SESSION, a_row(seq, "all work and no play " * 5))
    _overwrite(path, "messages")
    async with opened() as store:
        with pytest.raises(StoreCorrupt, match="restore the file from a backup") as damage:
            await store.history(SESSION)
        assert str(path) in str(damage.value)
        assert isinstance(damage.value.__cause__, sqlite3.DatabaseError)
        assert await store.waiting() == [a_mail()]
        assert await store.answer_to(MailId("unknown")) is None


async def test_a_write_into_damage_fails_and_the_others_go_on(opened: Opener, path: Path) -> None:
    async with opened() as store:
        await store.accept(a_mail())
        store.begin(a_session())
    _overwrite(path, "messages")
    async with opened() as store:
        with pytest.raises(StoreCorrupt, match="restore the file from a backup"):
            await store.append(SESSION, a_row(1, "hello"))
        await store.accept(a_mail("another"))
        assert [mail.id for mail in await store.waiting()] == ["mail-1", "another"]


async def test_a_damaged_beginning_is_named_at_the_start(opened: Opener, path: Path) -> None:
    await make_store(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreCorrupt, match="restore the file from a backup"):
        async with opened():
            pytest.fail("it was opened")


def _overwrite(path: Path, table: str) -> None:
    """Write rubbish over the root pages of a table and its indexes."""
    with closing(sqlite3.connect(path)) as db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        roots = "SELECT rootpage FROM sqlite_master WHERE tbl_name = ? AND rootpage > 0"
        pages = [page for (page,) in db.execute(roots, (table,))]
    assert pages
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)


# ── locked ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    environment = {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(
        [sys.executable, __file__, "hold_lock", str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout
        assert other.stdin
        assert other.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            other.stdin.close()
            other.wait(30)


async def test_a_lock_is_named_and_is_over_when_it_is_gone(opened: Opener, path: Path) -> None:
    async with opened(patience=0.1) as store:
        await store.accept(a_mail("first"))
        with locked_by_another_process(path):
            with pytest.raises(StoreLocked, match="another process") as lock:
                await store.accept(a_mail("refused"))
            assert str(path) in str(lock.value)
            assert [mail.id for mail in await store.waiting()] == ["first"]
        await store.accept(a_mail("last"))
        assert [mail.id for mail in await store.waiting()] == ["first", "last"]


async def test_a_file_that_is_locked_at_the_start_is_named(opened: Opener, path: Path) -> None:
    await make_store(path)
    with locked_by_another_process(path), pytest.raises(StoreLocked, match="another process"):
        async with opened(patience=0.1):
            pytest.fail("it was opened")


# ── the rest ────────────────────────────────────────────────────────────────────────────────────


async def test_a_folder_is_not_a_store(opened: Opener, path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        async with opened():
            pytest.fail("it was opened")


def test_what_the_driver_did_not_say_is_left_as_it_is(path: Path) -> None:
    error = ValueError("mine")
    assert explain(error, path) is error


async def _outcome(commit: Any) -> Exception | None:
    try:
        await commit
    except StoreError as error:
        return error
    return None


# ── in a process of its own ─────────────────────────────────────────────────────────────────────


async def fill_disk(path: Path) -> None:
    await _fill(path, (path.parent / "ballast").unlink)


async def fill_limit(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))
    await _fill(path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))


async def _fill(path: Path, make_space: Callable[[], None]) -> None:
    """Accept until there is no space, make some, go on; nothing that was acknowledged may be missing ever."""
    kept: list[str] = []
    failures: list[Exception] = []
    async with open_store(path, ledger=Ledger(), clock=SystemClock()) as store:
        for group in range(1000):
            names = [f"{group}-{number}" for number in range(10)]
            commits = [store.accept(a_mail(name, "x" * 1000)) for name in names]
            for name, commit in zip(names, commits, strict=True):
                if error := await _outcome(commit):
                    failures.append(error)
                else:
                    kept.append(name)
            if len(failures) >= 30:
                break
        assert {type(error) for error in failures} == {StoreFull}, failures
        assert len({id(error) for error in failures}) == len(failures), "each has its own"
        assert str(path) in str(failures[0])
        assert "free some" in str(failures[0])
        assert kept
        assert [mail.id for mail in await store.waiting()] == kept, "it can still be read"
        make_space()
        await store.accept(a_mail("after"))
        await store.finish(an_answer(kept[0]), None, [], push=True)
        assert [mail.id for mail in await store.waiting()] == [*kept[1:], "after"]
    async with open_store(path, ledger=Ledger(), clock=SystemClock()) as store:
        assert [mail.id for mail in await store.waiting()] == [*kept[1:], "after"]


async def fail_to_open_limited(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    await fail_to_open_full(path)


async def fail_to_open_full(path: Path) -> None:
    await _fail_to_open(path, StoreFull)


async def fail_to_write_as_nobody(path: Path) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    await fail_to_write(path)


async def fail_to_write(path: Path) -> None:
    await _fail_to_open(path, StoreReadOnly)


async def _fail_to_open(path: Path, expected: type[StoreError]) -> None:
    with pytest.raises(expected, match=re.escape(str(path))):
        async with open_store(path, ledger=Ledger(), clock=SystemClock()) as store:
            await store.accept(a_mail("refused"))


async def hold_lock(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        os.write(1, b"locked\n")
        sys.stdin.buffer.read()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2])))
