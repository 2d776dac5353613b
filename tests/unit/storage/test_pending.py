import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.core import failpoints
from holdfast.storage.pending import Arrivals, Pending, Step, WriteStep

pytestmark = pytest.mark.anyio


def greet(db: Any, name: str) -> str:
    return f"hello {name}"


def pending() -> Pending[Step, str]:
    return Pending(Step(greet), ("you",), {})


async def test_it_gives_its_result_to_those_who_wait_and_to_those_who_come_late() -> None:
    call = pending()

    async def wait() -> str:
        return await call

    early = [asyncio.ensure_future(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    call.run(None)  # type: ignore[arg-type]
    assert not any(task.done() for task in early)
    call.settle()
    assert await asyncio.gather(*early) == ["hello you"] * 3
    assert await call == "hello you"


async def test_a_waiter_who_gives_up_takes_nothing_from_the_others() -> None:
    call = pending()

    async def wait() -> str:
        return await call

    given_up, patient = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    call.run(None)  # type: ignore[arg-type]
    call.settle()
    assert await patient == "hello you"


async def test_nobody_waits_any_more_so_a_failure_is_logged() -> None:
    call = pending()

    async def wait() -> str:
        return await call

    given_up = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    call.error = ValueError("bad")
    with capture_logs() as logs:
        call.settle()
    assert [(line["step"], line["error"]) for line in logs] == [("greet", "ValueError('bad')")]
    with pytest.raises(ValueError, match="bad"):
        await call


async def test_many_arrivals_take_one_wake_up() -> None:
    wake_ups: list[Callable[[], None]] = []
    arrivals = Arrivals(wake_ups.append)
    calls = [pending() for _ in range(30)]
    for number in range(0, 30, 10):
        arrivals.bring(calls[number : number + 10])
    assert len(wake_ups) == 1
    wake_ups.pop()()
    assert all(call.settled for call in calls)
    late = pending()
    arrivals.bring([late])
    assert len(wake_ups) == 1, "what comes after the loop came wakes it again"
    wake_ups.pop()()
    assert late.settled


def test_a_write_step_is_a_pair_of_failpoints_by_being_made() -> None:
    def test_only(db: Any) -> None: ...

    step = WriteStep(test_only)
    assert {step.before, step.after} == {"store.test_only.before", "store.test_only.after"} <= set(failpoints.names())
