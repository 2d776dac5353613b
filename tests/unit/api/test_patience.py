"""Waiting, on virtual time: an hour takes no time at all."""

import asyncio

import anyio
import pytest

from holdfast.api.exchange import Exchange
from holdfast.api.patience import Patience
from holdfast.core.errors import Stopping

SCOPE = {"headers": [], "query_string": b""}


class Waiter:
    """Notes when it was interrupted."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def interrupt(self) -> None:
        self.at.append(anyio.current_time())


class NoShare:
    """An exchange that only waits shares nothing."""

    surface = None


def exchange() -> Exchange:
    return Exchange(NoShare(), SCOPE, None, None, ())


def timers() -> int:
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)


@pytest.mark.virtual
async def test_each_is_interrupted_when_its_time_is_up_and_not_before():
    patience, waiters = Patience(100), [Waiter() for _ in range(3)]
    for waiter in waiters:
        patience.begin(waiter)
        await anyio.sleep(10)
    await anyio.sleep(1000)
    assert [waiter.at for waiter in waiters] == [[pytest.approx(at)] for at in (100, 110, 120)]
    assert timers() == 0


@pytest.mark.virtual
async def test_who_waits_no_more_is_left_alone_and_one_timer_serves_all():
    patience, gone, still = Patience(100), [Waiter() for _ in range(1000)], Waiter()
    for waiter in gone:
        patience.begin(waiter)
        patience.end(waiter)
    await anyio.sleep(50)
    patience.begin(still)
    assert timers() == 1
    await anyio.sleep(60)
    assert not still.at
    await anyio.sleep(60)
    assert still.at == [pytest.approx(150)]
    assert not any(waiter.at for waiter in gone)


@pytest.mark.virtual
async def test_patience_that_has_run_out_leaves_no_timer():
    patience = Patience(100)
    patience.begin(Waiter())
    patience.run_out()
    assert timers() == 0


@pytest.mark.virtual
async def test_a_wait_ends_with_what_came_or_with_a_timeout_or_with_the_exchange():
    patience, waiting = Patience(100), exchange()

    async def after(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "came"

    assert await waiting.wait(lambda: after(99), patience) == "came"
    with pytest.raises(TimeoutError):
        await waiting.wait(lambda: after(101), patience)
    assert await waiting.wait(lambda: after(99), patience) == "came"  # and it can wait again
    asyncio.get_running_loop().call_later(50, waiting.end, Stopping())
    with pytest.raises(Stopping):
        await waiting.wait(lambda: after(99), patience)
    with pytest.raises(Stopping):
        await waiting.wait(lambda: after(99), patience)
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.virtual
async def test_a_cancel_from_elsewhere_stays_a_cancel():
    patience, waiting = Patience(100), exchange()

    async def wait() -> None:
        await waiting.wait(lambda: anyio.sleep(99), patience)

    task = asyncio.create_task(wait())
    await anyio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    both = asyncio.create_task(wait())
    await anyio.sleep(1)
    waiting.interrupt()
    both.cancel()
    await asyncio.wait([both])
    assert both.cancelled()
    assert repr(patience) == "<Patience of 100 s: 0 waiting>"
    patience.run_out()
