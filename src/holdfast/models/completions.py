"""Chat completions as they are read: the fields that matter, loosely typed where servers differ."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, ToolCall, Usage
from holdfast.core.protocols import ModelAnswer
from holdfast.models import failures
from holdfast.models.providers import ModelChoice

Emit = Callable[[Text | Reasoning], None]

_encode = msgspec.json.Encoder().encode


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(Struct, gc=False):
    text: str | None = None


class _Delta(Struct, gc=False):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class _CallInParts:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class Assembly:
    """An answer as it comes together, in chunks or in one piece. `emit` is None when nobody looks on."""

    def __init__(self, choice: ModelChoice, made_up_ids: str, emit: Emit | None) -> None:
        self._choice = choice
        self._made_up_ids = made_up_ids
        self._emit = emit
        self._text: list[str] = []
        self._new_text: list[str] = []
        self._new_thoughts: list[str] = []
        self._calls: list[_CallInParts] = []
        self._by_index: dict[int, _CallInParts] = {}
        self._usage = Usage()
        self._begun = False
        self.finish_reason = ""
        self.done = False

    def take(self, payload: bytes) -> None:
        """Take in one event of a stream, or a whole response."""
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError as error:
            bare = payload.strip()
            if bare not in (b"[DONE]", b""):
                raise failures.unreadable(self._choice, payload, str(error)) from None
            self.done = self.done or bool(bare)
            return
        if chunk.error:
            raise failures.from_error_object(self._choice, chunk.error)
        if chunk.usage:
            self._usage = Usage(int(chunk.usage.prompt_tokens or 0), int(chunk.usage.completion_tokens or 0))
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if choice.error:
            raise failures.from_error_object(self._choice, choice.error)
        self._begun = True
        if delta := choice.delta or choice.message:
            self._add(delta)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason

    def show(self) -> None:
        """Emit what is new. What came in one read goes out as one event."""
        if self._new_thoughts:
            if self._emit:
                self._emit(Reasoning("".join(self._new_thoughts)))
            self._new_thoughts.clear()
        if self._new_text:
            text = "".join(self._new_text)
            self._new_text.clear()
            self._text.append(text)
            if self._emit:
                self._emit(Text(text))

    def answer(self) -> ModelAnswer:
        """The whole. Raises when it is not whole: the stream was cut, or a filter took it away."""
        if not self._begun or not (self.finish_reason or self.done):
            raise failures.cut_short(self._choice)
        calls = tuple(
            ToolCall(call.id or f"{self._made_up_ids}{number:03x}", call.name, "".join(call.arguments) or "{}")
            for number, call in enumerate(self._calls)
        )
        message = AssistantMessage("".join(self._text), calls)
        if self.finish_reason == "content_filter" and not message.text and not calls:
            raise failures.filtered(self._choice)
        return ModelAnswer(message, self._usage, truncated=self.finish_reason in ("length", "max_tokens"))

    def _add(self, delta: _Delta) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if thought and isinstance(thought, str):
            if self._new_text:
                self.show()  # in the order in which they came
            self._new_thoughts.append(thought)
        content = delta.content or delta.refusal
        if content:
            if isinstance(content, str):
                self._new_text.append(content)
            else:
                self._new_text.extend(part.text for part in content if part.text)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._add_call(call)

    def _add_call(self, part: _Call) -> None:
        """Parts of one call share an index; where servers leave it out, or reuse it, id and name tell calls apart."""
        function = part.function or _Function()
        last = self._calls[-1] if self._calls else None
        known = last if part.index is None else self._by_index.get(part.index)
        if known and known.name and function.name and (part.id != known.id if part.id else part.index is None):
            known = None  # it names itself anew: another call
        if known is None:
            known = _CallInParts()
            self._calls.append(known)
            if part.index is not None:
                self._by_index[part.index] = known
        known.id = known.id or part.id or ""
        if function.name and function.name != known.name:
            known.name += function.name
        if isinstance(function.arguments, str):
            known.arguments.append(function.arguments)
        elif function.arguments is not None:
            known.arguments.append(_encode(function.arguments).decode())
