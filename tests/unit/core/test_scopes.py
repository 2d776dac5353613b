"""Mailbox and keeper: nothing is lost by a cancel, and a close is bounded and nobody else's business."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core.scopes import Keeper, Mailbox, plain_errors

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


async def test_a_cancel_while_waiting_for_mail_loses_none() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.arrival)
        await anyio.sleep(1)
        mailbox.put(1)
        group.cancel_scope.cancel()
    assert list(mailbox) == [1]
    assert mailbox.take() == 1


async def test_a_ring_lets_the_waiter_look_around_with_nothing_there() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.arrival)
        await anyio.sleep(1)
        mailbox.ring()
    assert not mailbox


class Thing:
    def __init__(self, close_seconds: float = 0, fails: bool = False) -> None:
        self.close_seconds = close_seconds
        self.fails = fails
        self.open = False
        self.task = ""

    @asynccontextmanager
    async def opening(self) -> AsyncIterator["Thing"]:
        entered = anyio.get_current_task().id
        self.open = True
        async with anyio.create_task_group():  # must be left in the task that entered it
            try:
                yield self
            finally:
                with anyio.CancelScope():
                    await anyio.sleep(self.close_seconds)
                self.open = False
                assert anyio.get_current_task().id == entered
                if self.fails:
                    raise OSError("the close failed")


async def test_letting_go_does_not_wait_for_a_slow_close() -> None:
    thing = Thing(close_seconds=3)
    async with anyio.create_task_group() as group:
        async with Keeper(group, grace=5).hold(thing.opening()) as held:
            assert held is thing
        assert thing.open  # still closing
        await anyio.sleep(4)
        assert not thing.open


async def test_a_close_that_hangs_is_cut_short_and_logged() -> None:
    thing = Thing(close_seconds=3600)
    with capture_logs() as logs:
        started = anyio.current_time()
        async with anyio.create_task_group() as group, Keeper(group, grace=5).hold(thing.opening()):
            pass
    assert anyio.current_time() - started == pytest.approx(5, abs=0.1)
    assert any("too long" in entry["event"] for entry in logs)


async def test_a_close_that_fails_is_logged_and_stops_nobody() -> None:
    thing, other = Thing(fails=True), Thing()
    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            keeper = Keeper(group, grace=5)
            async with keeper.hold(other.opening()), keeper.hold(thing.opening()):
                pass
    assert not thing.open
    assert not other.open
    assert [entry["event"] for entry in logs] == ["failed to close"]


async def test_who_asks_gets_the_error_of_an_opening_that_fails() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("can't open")
        yield

    async with anyio.create_task_group() as group:
        with pytest.raises(OSError, match="can't open"):
            async with Keeper(group, grace=5).hold(broken()):
                pass


async def test_what_is_held_is_held_through_a_cancel_until_it_is_let_go() -> None:
    thing = Thing()
    async with anyio.create_task_group() as group:
        keeper = Keeper(group, grace=5)
        async with keeper.hold(thing.opening()):
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            assert thing.open
    assert not thing.open


async def test_who_is_called_away_waits_neither_for_the_opening_nor_for_what_it_undoes() -> None:
    undone: list[float] = []

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            await anyio.sleep(3600)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)
            undone.append(anyio.current_time())

    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(1):
                async with Keeper(group, grace=5).hold(slow()):
                    raise AssertionError("it was never opened")
            assert anyio.current_time() == pytest.approx(1)
        assert undone == [pytest.approx(4)]
    assert not logs


async def test_what_is_opened_while_its_asker_is_called_away_is_closed() -> None:
    thing = Thing()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:

            @asynccontextmanager
            async def at_the_last_moment() -> AsyncIterator[Thing]:
                async with thing.opening():
                    scope.cancel()
                    yield thing

            async with Keeper(group, grace=5).hold(at_the_last_moment()):
                await anyio.sleep(1)
    assert scope.cancelled_caught
    assert not thing.open


@pytest.mark.parametrize("when", ["opening", "closing"])
async def test_a_cancel_of_its_own_making_is_a_failure_like_others(when: str) -> None:
    @asynccontextmanager
    async def careless() -> AsyncIterator[None]:
        if when == "opening":
            raise asyncio.CancelledError
        yield
        raise asyncio.CancelledError

    other = Thing()
    with capture_logs() as logs:
        async with anyio.create_task_group() as group:
            keeper = Keeper(group, grace=5)
            async with keeper.hold(other.opening()):
                with pytest.raises(RuntimeError) if when == "opening" else nullcontext():
                    async with keeper.hold(careless()):
                        pass
                await anyio.sleep(1)
                assert other.open
    assert [entry["event"] for entry in logs] == ["failed to close"] * (when == "closing")


async def test_one_error_arrives_as_itself_and_two_as_a_group() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(OSError, match="alone"), plain_errors():
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep, 0)
            inner.start_soon(fail, OSError("alone"))
    with pytest.raises(ExceptionGroup), plain_errors():
        async with anyio.create_task_group() as group:
            group.start_soon(fail, OSError("one"))
            group.start_soon(fail, OSError("two"))
