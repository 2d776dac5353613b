"""Asking again: how often, when, and when not. All on virtual time."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import anyio
import pytest

from holdfast.core.errors import AskUser, FallBack, GiveUp, ModelError, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, Message
from holdfast.core.protocols import ModelAnswer, ModelRequest, ToolSpec
from holdfast.models.retries import ask

pytestmark = pytest.mark.virtual

REQUEST = ModelRequest(b"", [], b"")


class Moody:
    """A model that raises what it is told to before it answers."""

    name = "moody"
    wire = "moody"

    def __init__(self, *moods: ModelError) -> None:
        self.moods = list(moods)
        self.asked: list[float] = []

    def encode_system(self, prompt: str) -> bytes:
        return prompt.encode()

    def encode_message(self, message: Message) -> bytes:
        return message.text.encode()

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return b""

    async def answer(self, request: ModelRequest, emit: Callable[[Text | Reasoning], None]) -> ModelAnswer:
        self.asked.append(anyio.current_time())
        await anyio.lowlevel.checkpoint()
        if self.moods:
            raise self.moods.pop(0)
        emit(Text("fine"))
        return ModelAnswer(AssistantMessage("fine"))


class Asking:
    def __init__(self, *moods: ModelError, seed: int = 1) -> None:
        self.model = Moody(*moods)
        self.retries: list[tuple[str, float]] = []
        self.chance = random.Random(seed)

    async def ask(self, attempts: int = 4) -> ModelAnswer:
        return await ask(
            self.model,
            REQUEST,
            lambda event: None,
            on_retry=lambda reason, wait: self.retries.append((reason, wait)),
            chance=self.chance,
            attempts=attempts,
        )


def busy(after: float | None = None) -> RetryModel:
    return RetryModel("It is busy.", after=after)


async def test_what_may_pass_is_asked_again_and_said_before_the_wait() -> None:
    asking = Asking(busy(), busy())
    assert (await asking.ask()).message.text == "fine"
    assert [reason for reason, _ in asking.retries] == ["It is busy."] * 2
    times = asking.model.asked
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx(
        [wait for _, wait in asking.retries]
    )


async def test_the_last_attempts_error_comes_out() -> None:
    asking = Asking(*(busy() for _ in range(9)))
    with pytest.raises(RetryModel, match="busy"):
        await asking.ask(attempts=3)
    assert len(asking.model.asked) == 3
    assert len(asking.retries) == 2


@pytest.mark.parametrize("kind", [AskUser, FallBack, GiveUp])
async def test_what_will_not_pass_is_not_asked_again(kind: type[ModelError]) -> None:
    asking = Asking(kind("No."))
    with pytest.raises(kind):
        await asking.ask()
    assert len(asking.model.asked) == 1
    assert asking.retries == []


async def test_waits_grow_are_spread_and_replay_with_the_seed() -> None:
    waits = []
    for seed in range(200):
        asking = Asking(*(busy() for _ in range(7)), seed=seed)
        await asking.ask(attempts=8)
        waits.append([wait for _, wait in asking.retries])
    for number, most in enumerate((0.5, 1, 2, 4, 8, 8, 8)):
        column = [row[number] for row in waits]
        assert 0 <= min(column) < most * 0.1
        assert most * 0.9 < max(column) <= most
    again = Asking(*(busy() for _ in range(7)), seed=0)
    await again.ask(attempts=8)
    assert [wait for _, wait in again.retries] == waits[0]


async def test_the_provider_is_not_asked_before_the_time_it_named() -> None:
    asking = Asking(busy(30), busy(60))
    await asking.ask()
    first, second = (wait for _, wait in asking.retries)
    assert 30 <= first <= 31
    assert 60 <= second <= 61


@pytest.mark.parametrize(
    ("after", "when"),
    [(61, "2 minutes"), (300, "5 minutes"), (3600, "1 hour"), (5000, "2 hours"), (86400, "1 day"), (200000, "3 days")],
)
async def test_a_long_wait_is_told_and_not_waited(after: float, when: str) -> None:
    asking = Asking(busy(after))
    started = anyio.current_time()
    with pytest.raises(GiveUp) as caught:
        await asking.ask()
    assert str(caught.value) == f"It is busy; it asks to come back in {when}."
    assert anyio.current_time() == started
    assert asking.retries == []


async def test_cancelling_ends_the_wait_and_the_asking() -> None:
    asking = Asking(busy(50), busy(50))
    with anyio.move_on_after(20) as scope:
        await asking.ask()
    assert scope.cancelled_caught
    assert len(asking.model.asked) == 1
