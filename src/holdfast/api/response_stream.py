"""A response as the typed events that /v1/responses streams."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.api.asking import Audience
from holdfast.api.errors import HungUp, refusal
from holdfast.api.response_objects import (
    ItemStatus,
    Kept,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    Phase,
    ReasoningText,
    concluded,
    in_progress,
    item_status,
)
from holdfast.api.sse import KEEP_ALIVE
from holdfast.api.wording import rest_of
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Answered, Event, Reasoning, Retrying, Text, ToolStarted
from holdfast.core.messages import Answer

_encode = msgspec.json.Encoder().encode


class _Item:
    """An output item that is being said."""

    def __init__(self, kind: str, id: str, index: int) -> None:
        self.kind = kind
        """`output_text` for the answer's words, `reasoning_text` for thoughts."""
        self.id = id
        self.index = index
        self.words: list[str] = []
        self.extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}

    @property
    def text(self) -> str:
        return "".join(self.words)

    def part(self, text: str) -> OutputText | ReasoningText:
        return OutputText(text) if self.kind == "output_text" else ReasoningText(text)

    def begun(self) -> OutputItem:
        if self.kind == "output_text":
            return OutputMessage(self.id, "in_progress", [])
        return OutputReasoning(self.id, "in_progress", [])

    def done(self, status: ItemStatus, phase: Phase | None) -> OutputItem:
        if self.kind == "output_text":
            return OutputMessage(self.id, status, [OutputText(self.text)], phase=phase)
        return OutputReasoning(self.id, status, [ReasoningText(self.text)])


class ResponseEvents:
    """Tells a turn as typed events. Each step of a turn is an output item of its own."""

    def __init__(self, kept: Kept, token: str, created: int) -> None:
        self._token = token
        self._begun = in_progress(kept, token, created)
        self._number = -1
        self._output: list[OutputItem] = []
        self._item: _Item | None = None

    async def pieces(self, audience: Audience) -> AsyncIterator[bytes]:
        begun = (self._event(f"response.{state}", response=self._begun) for state in ("created", "in_progress"))
        yield b"".join(begun)
        try:
            while not audience.over:
                events = await audience.batch()
                yield b"".join(self._told(events, audience.mail.answer)) or KEEP_ALIVE
        except HungUp:
            raise
        except HoldfastError as error:  # the stream has begun: the status can't tell any more
            problem = refusal(error).problem
            yield self._event("error", code=problem.code, message=problem.message, param=None)

    def _told(self, events: Iterable[Event], answer: Answer | None) -> Iterator[bytes]:
        for event in events:
            match event:
                case Text():
                    yield from self._say("output_text", event.text)
                case Reasoning():
                    yield from self._say("reasoning_text", event.text)
                case ToolStarted():
                    yield from self._close("completed", "commentary")
                case Retrying():
                    yield from self._close("incomplete", "commentary")  # what was said so far is void
                case Answered():
                    assert answer is not None, "the last event comes with the answer"
                    yield from self._conclude(answer)

    def _say(self, kind: str, text: str) -> Iterator[bytes]:
        if self._item is None or self._item.kind != kind:
            yield from self._close("completed", "commentary")
            yield from self._open(kind)
        assert self._item is not None
        self._item.words.append(text)
        yield self._of_item(f"response.{kind}.delta", content_index=0, delta=text, **self._item.extra)

    def _open(self, kind: str) -> Iterator[bytes]:
        index = len(self._output)
        prefix = "msg" if kind == "output_text" else "rs"
        self._item = item = _Item(kind, f"{prefix}_{self._token}_{index}", index)
        yield self._event("response.output_item.added", output_index=index, item=item.begun())
        yield self._of_item("response.content_part.added", content_index=0, part=item.part(""))

    def _close(self, status: ItemStatus, phase: Phase | None) -> Iterator[bytes]:
        item = self._item
        if item is None:
            return
        yield self._of_item(f"response.{item.kind}.done", content_index=0, text=item.text, **item.extra)
        yield self._of_item("response.content_part.done", content_index=0, part=item.part(item.text))
        done = item.done(status, phase)
        yield self._event("response.output_item.done", output_index=item.index, item=done)
        self._output.append(done)
        self._item = None

    def _conclude(self, answer: Answer) -> Iterator[bytes]:
        """The last word, as far as it was not said yet, and the end."""
        if answer.outcome == "failed":
            yield from self._close("incomplete", None)
        else:
            said = self._item.text if self._item and self._item.kind == "output_text" else None
            rest = None if said is None else rest_of(said, answer.text)
            if rest is None:
                if said is not None:
                    yield from self._close("incomplete", "commentary")
                rest = answer.text
            if rest:
                yield from self._say("output_text", rest)
            yield from self._close(item_status(answer), "final_answer")
        response = concluded(self._begun, answer, self._output)
        yield self._event(f"response.{response.status}", response=response)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self._event(kind, item_id=self._item.id, output_index=self._item.index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        content = _encode({"type": kind, "sequence_number": self._number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + content + b"\n\n"
