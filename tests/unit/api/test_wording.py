"""Words from events."""

import pytest

from holdfast.api.wording import Wording
from holdfast.core.events import Answered, Retrying, Started, Text, ToolFinished, ToolStarted


def told(*events) -> str:
    wording = Wording()
    return "".join(wording.hear(event) for event in events)


def answer(text: str) -> Answered:
    return Answered("id", text, "ok")


USE = (ToolStarted("c", "t", "{}"), ToolFinished("c", "t", "x"))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((Started("s"), answer("All at once.")), "All at once."),
        ((Text("A "), Text("bit."), answer("A bit.")), "A bit."),
        ((Text("First."), *USE, Text("Then."), answer("Then.")), "First.\n\nThen."),
        ((*USE, Text("Then."), answer("Then.")), "Then."),
        ((Text("First."), *USE, answer("Not streamed.")), "First.\n\nNot streamed."),
        ((Text("Cut "), answer("Cut\n\n(Stopped.)")), "Cut \n\n(Stopped.)"),
        ((Text("Half"), Retrying("why", 1), Text("Whole."), answer("Whole.")), "Half\n\nWhole."),
        ((Text("One thing"), answer("Another")), "One thing\n\nAnother"),
        ((Text(" "), answer("Late words")), " Late words"),
    ],
)
def test_what_is_told_ends_with_the_answer(events, words):
    assert told(*events) == words
