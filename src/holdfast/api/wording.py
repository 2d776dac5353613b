"""The words of an answer as one stream, although a turn may take several steps and begin one of them again."""

from holdfast.core.events import Answered, Event, Retrying, Text, ToolStarted

_BREAK = "\n\n"


class Wording:
    """Turns events into words to add. What was said can't be taken back: a new beginning is a new paragraph."""

    def __init__(self) -> None:
        self._step: list[str] = []
        """What was said since the last tool call or retry."""
        self._spoken = False

    def hear(self, event: Event) -> str:
        """The words that this event adds."""
        match event:
            case Text():
                before = _BREAK if self._spoken and not self._step else ""
                self._step.append(event.text)
                self._spoken = True
                return before + event.text
            case ToolStarted() | Retrying():
                self._step.clear()
            case Answered():
                return self._rest(event.text)
        return ""

    def _rest(self, answer: str) -> str:
        rest = rest_of("".join(self._step), answer) if self._step else None
        if rest is None:
            return _BREAK + answer if self._spoken else answer
        return rest


def rest_of(said: str, answer: str) -> str | None:
    """What a stored answer has beyond what was said of it; None when something else was said."""
    for known in (said, said.rstrip()):  # a stopped answer goes on after its last word
        if answer.startswith(known):
            return answer[len(known) :]
    return None
