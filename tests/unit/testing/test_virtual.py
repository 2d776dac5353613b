import asyncio
import socket
import threading
import time

import anyio
import pytest
from anyio import to_thread

from holdfast.core.clock import Clock, Ids
from holdfast.testing.virtual import EPOCH, Deadlock, VirtualClock, VirtualLoop, run_virtual


async def the_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


# ── time ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
async def test_a_year_of_sleep_takes_no_time() -> None:
    started = time.monotonic()
    for _ in range(365):
        await anyio.sleep(86400)
    assert anyio.current_time() == pytest.approx(365 * 86400)
    assert time.monotonic() - started < 5


@pytest.mark.virtual
async def test_timers_fire_in_the_order_of_their_times() -> None:
    order = []

    async def note(after: float) -> None:
        await anyio.sleep(after)
        order.append(after)

    async with anyio.create_task_group() as group:
        for after in (30, 0.5, 7200, 1):
            group.start_soon(note, after)
    assert order == [0.5, 1, 30, 7200]


@pytest.mark.virtual
async def test_deadlines_are_virtual_too() -> None:
    with anyio.move_on_after(60) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.Event().wait()
    assert anyio.current_time() == pytest.approx(120)


@pytest.mark.virtual
async def test_work_that_is_ready_takes_no_virtual_time() -> None:
    for _ in range(1000):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == 0


@pytest.mark.virtual
async def test_short_timers_fire_even_after_a_century() -> None:
    century = 100 * 365.25 * 86400
    await anyio.sleep(century)
    for _ in range(1000):
        await anyio.sleep(0.001)
    assert anyio.current_time() == pytest.approx(century + 1, abs=0.01)


# ── the wall clock ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
async def test_the_wall_clock_follows_the_loop_and_can_be_set() -> None:
    clock: Clock = VirtualClock(asyncio.get_running_loop())
    assert clock.now() == EPOCH
    await anyio.sleep(90)
    assert clock.now() == pytest.approx(EPOCH + 90)
    assert isinstance(clock, VirtualClock)
    clock.jump(-3600)
    assert clock.now() == pytest.approx(EPOCH - 3510)
    assert anyio.current_time() == pytest.approx(90)


def test_the_same_seed_gives_the_same_run() -> None:
    async def make_ids() -> list[str]:
        loop = await the_loop()
        ids = Ids(VirtualClock(loop), loop.chance)
        return [ids.new() for _ in range(10)]

    assert run_virtual(make_ids, seed=1) == run_virtual(make_ids, seed=1)
    assert run_virtual(make_ids, seed=1) != run_virtual(make_ids, seed=2)


@pytest.mark.virtual(seed=7)
async def test_a_marker_may_name_the_seed() -> None:
    async def draw() -> float:
        return (await the_loop()).chance.random()

    first = await draw()
    assert first == await to_thread.run_sync(lambda: run_virtual(draw, seed=7))


# ── what can never go on ────────────────────────────────────────────────────────────────────────


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_godot, name="vladimir")

    with pytest.raises(Deadlock, match=r"task 'vladimir' in .*wait_for_godot at .*test_virtual\.py:\d+"):
        run_virtual(main)


def test_a_deadlock_still_runs_what_cleans_up() -> None:
    cleaned = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(Deadlock):
        run_virtual(main)
    assert cleaned


# ── input and output ────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
async def test_what_is_ready_is_read_before_the_clock_moves() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.send(b"hello")
        async with asyncio.timeout(0.001):
            assert await asyncio.get_running_loop().sock_recv(near, 5) == b"hello"
    assert anyio.current_time() == 0


@pytest.mark.virtual
async def test_a_real_server_and_client_talk_on_virtual_time() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


# ── threads ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
async def test_the_clock_stands_still_while_a_worker_thread_works() -> None:
    may_end = threading.Event()
    with anyio.fail_after(3600):
        async with anyio.create_task_group() as group:
            group.start_soon(to_thread.run_sync, may_end.wait, 10)
            # Real time must pass in the thread only; another thread lets it.
            await to_thread.run_sync(may_end.set)
    assert anyio.current_time() == 0


@pytest.mark.virtual
async def test_an_idle_worker_thread_does_not_stop_the_clock() -> None:
    await to_thread.run_sync(int)
    await anyio.sleep(3600)
    assert anyio.current_time() == pytest.approx(3600)


@pytest.mark.virtual
async def test_the_clock_stands_still_while_an_executor_works() -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(3600):
        assert await loop.run_in_executor(None, sum, range(1000)) == 499500
    assert loop.time() == 0
    await asyncio.sleep(3600)
    assert loop.time() == pytest.approx(3600)


@pytest.mark.virtual
async def test_a_held_clock_waits_for_any_thread() -> None:
    loop = await the_loop()
    arrived = asyncio.Event()
    asked = threading.Event()

    def answer() -> None:
        asked.wait(10)
        loop.call_soon_threadsafe(arrived.set)

    thread = threading.Thread(target=answer)
    thread.start()
    with loop.hold():
        assert "held by 1" in repr(loop)
        loop.call_soon(asked.set)
        async with asyncio.timeout(3600):
            await arrived.wait()
    thread.join()
    assert repr(loop) == "<VirtualLoop at 0 s>"
