"""A model that says what a test tells it to: the `Model` protocol in-process, without a wire."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

import anyio
import msgspec

from holdfast.agent.agent import ModelConfig
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, Message, ToolCall, Usage
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest, ToolSpec

Emit: TypeAlias = Callable[[Text | Reasoning], None]
Script: TypeAlias = Callable[[Sequence[Message], Emit], Awaitable[str | AssistantMessage]]
"""Gets the conversation as it was sent and returns the model's next message; may wait, emit and raise."""

_decode = msgspec.json.Decoder(Message).decode


class ScriptedModel:
    """Keeps every request, so that a test can compare what was sent to the byte."""

    name = "scripted"
    wire = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[tuple[bytes, bytes, tuple[bytes, ...]]] = []
        self.leases = 0
        """How many residencies hold it right now."""
        self.leased: list[str] = []
        """The names under which it was leased, one for each residency."""
        self.efforts: list[str] = []
        """How hard it was to think, request by request."""
        self.around: Callable[[str], AbstractAsyncContextManager[Any]] = nullcontext
        """Entered before a lease of a name is there and left after it: for one that is slow, hangs or fails."""

    def encode_system(self, prompt: str) -> bytes:
        return msgspec.json.encode(prompt)

    def encode_message(self, message: Message) -> bytes:
        return msgspec.json.encode(message)

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return msgspec.json.encode(tools)

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        self.requests.append((request.system, request.tools, tuple(request.messages)))
        self.efforts.append(request.reasoning)
        said = await self._script([_decode(message) for message in request.messages], emit)
        message = AssistantMessage(said) if isinstance(said, str) else said
        if request.stream and message.text:
            emit(Text(message.text))
        return ModelAnswer(message, Usage(len(request.messages), 1))

    def config(self) -> ModelConfig:
        """What the gateway needs to lease it."""

        @asynccontextmanager
        async def open_model(name: str) -> AsyncIterator[Model]:
            async with self.around(name):
                self.leases += 1
                self.leased.append(name)
                try:
                    yield self
                finally:
                    self.leases -= 1

        return ModelConfig("scripted", self.name, "", self.wire, "", open_model)


async def echo(messages: Sequence[Message], emit: Emit) -> str:  # noqa: ARG001
    """The simplest script: says what the user said."""
    last = messages[-1]
    return f"you said {last.text}"


class Gate:
    """A script that answers only once it is opened, and knows how many wait at it."""

    def __init__(self) -> None:
        self.asked = 0
        self.inside = 0
        self.most_inside = 0
        self._open = anyio.Event()

    async def __call__(self, messages: Sequence[Message], emit: Emit) -> str:
        self.asked += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await self._open.wait()
        finally:
            self.inside -= 1
        return await echo(messages, emit)

    def open(self) -> None:
        self._open.set()

    async def has(self, waiting: int) -> None:
        """Until so many wait at it."""
        await until(lambda: self.inside >= waiting)


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    """Let others run until something is true; raises `TimeoutError` when it never is."""
    with anyio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - a test looks from outside, where nobody rings a bell
            await anyio.sleep(0.001)


def calls(*wanted: tuple[str, str], text: str = "") -> AssistantMessage:
    """A message that calls tools: pairs of a tool's name and its arguments as JSON."""
    return AssistantMessage(text, tuple(ToolCall(f"call_{i}", name, args) for i, (name, args) in enumerate(wanted)))
