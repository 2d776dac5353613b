"""One answer over several connections."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from holdfast.cli.client import Accepted, GatewayAway, RequestRefused, Streamed
from holdfast.cli.exchange import Away, Back, Happening, StartsOver, follow
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.events import Answered, Reasoning, Retrying, Started, Text, ToolFinished, ToolStarted

pytestmark = pytest.mark.anyio

ACCEPTED, STARTED, ANSWER = Accepted("1"), Started("s"), Answered("a", "done", "ok")
CALL, RESULT = ToolStarted("c", "ls", "{}"), ToolFinished("c", "ls", "x")
AWAY = GatewayAway("It is away.")


class Connections:
    """A gateway whose connections go as written: each its events, then an error or the end."""

    def __init__(self, *scripts: Sequence[Streamed | HoldfastError]) -> None:
        self._scripts = list(scripts)
        self.asked: list[tuple[str, str, str]] = []

    async def ask(self, chat: str, text: str, message_id: str) -> AsyncGenerator[Streamed, None]:
        self.asked.append((chat, text, message_id))
        for event in self._scripts.pop(0):
            if isinstance(event, HoldfastError):
                raise event
            yield event


async def seen(*scripts: Sequence[Streamed | HoldfastError], patience: float = float("inf")) -> list[Happening]:
    connections = Connections(*scripts)
    happenings = [event async for event in follow(connections, "main", "hi", "1", patience=patience)]  # type: ignore[arg-type]
    assert connections.asked == [("main", "hi", "1")] * len(scripts)
    return happenings


async def test_an_answer_comes_through_as_it_is() -> None:
    events = [ACCEPTED, STARTED, Text("a"), Text("b"), CALL, RESULT, Text("c"), ANSWER]
    assert await seen(events) == events


async def test_what_is_told_again_by_the_same_gateway_is_left_out() -> None:
    first: list[Streamed | HoldfastError] = [ACCEPTED, STARTED, Text("a"), Text("b"), AWAY]
    second: list[Streamed | HoldfastError] = [ACCEPTED, STARTED, Text("a"), Text("bc"), CALL, AWAY]
    third = [ACCEPTED, STARTED, Text("ab"), Text("c"), CALL, RESULT, ANSWER]
    assert await seen(first, second, third) == [
        *[ACCEPTED, STARTED, Text("a"), Text("b"), Away("It is away.")],
        *[Back(), STARTED, Text("c"), CALL, Away("It is away.")],
        *[Back(), STARTED, RESULT, ANSWER],
    ]


async def test_a_gateway_that_was_started_anew_goes_on_from_its_last_step() -> None:
    first = [ACCEPTED, STARTED, Text("look"), CALL, RESULT, Text("the fi"), AWAY]
    second = [ACCEPTED, STARTED, Text("the file"), ANSWER]
    assert (await seen(first, second))[-4:] == [Back(), STARTED, Text("le"), ANSWER]


async def test_an_answer_that_is_made_anew_with_other_words_starts_over() -> None:
    first = [ACCEPTED, STARTED, Text("one way"), AWAY]
    second = [ACCEPTED, STARTED, Text("one "), Text("more"), Text(" word"), ANSWER]
    assert (await seen(first, second))[-5:] == [STARTED, StartsOver(), Text("one more"), Text(" word"), ANSWER]


async def test_thoughts_and_retries_are_told_apart_from_words() -> None:
    events = [Reasoning("hm"), Retrying("busy", 1.0), Text("a")]
    first = [ACCEPTED, STARTED, *events, AWAY]
    second = [ACCEPTED, STARTED, *events, Text("b"), ANSWER]
    assert (await seen(first, second))[-4:] == [Back(), STARTED, Text("b"), ANSWER]
    other = [ACCEPTED, STARTED, Text("hm"), ANSWER]
    assert (await seen(first, other))[-3:] == [StartsOver(), Text("hm"), ANSWER]


async def test_a_stored_answer_comes_alone() -> None:
    assert (await seen([ACCEPTED, STARTED, Text("a"), AWAY], [ACCEPTED, ANSWER]))[-2:] == [Back(), ANSWER]


async def test_a_gateway_is_away_once_however_often_it_is_tried() -> None:
    assert await seen([AWAY], [AWAY], [ACCEPTED, AWAY], [ACCEPTED, ANSWER]) == [
        Away("It is away."),
        ACCEPTED,
        Back(),
        ANSWER,
    ]


async def test_a_busy_gateway_is_asked_again_when_it_said() -> None:
    happenings = await seen([TryLater("Too much.", after=0.01)], [ACCEPTED, ANSWER])
    assert happenings == [Away("Too much."), ACCEPTED, Back(), ANSWER]


async def test_patience_has_an_end() -> None:
    with pytest.raises(GatewayAway):
        await seen(*[[AWAY]] * 3, patience=0.25)


async def test_a_refusal_is_final() -> None:
    with pytest.raises(RequestRefused):
        await seen([RequestRefused("No.", status=404)])
