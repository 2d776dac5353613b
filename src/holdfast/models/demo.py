"""The built-in demo model: it thinks nothing, but shows all that Holdfast does, without a key.

It answers a few plain phrases, streams, and calls whatever tools it is given when asked to in plain
words. The same conversation always gets the same answer.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec

from holdfast.core.errors import GiveUp
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, Message, ToolMessage, Usage, UserMessage
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest, ToolSpec
from holdfast.models.demo_wishes import wished_calls
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import Transports

PACE = 0.015
"""Seconds a word."""

_MOST_OF_A_RESULT = 1500
_HIGHEST_COUNT = 10_000
_LONG_TEXT = 40

_encode = msgspec.json.Encoder().encode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_tools = msgspec.json.Decoder(list[ToolSpec]).decode


class DemoModel:
    name = "demo"
    wire = "demo"

    def __init__(self, pace: float) -> None:
        self._pace = pace

    def __repr__(self) -> str:
        return "<DemoModel>"

    def encode_system(self, prompt: str) -> bytes:
        return _encode(prompt)

    def encode_message(self, message: Message) -> bytes:
        return _encode(message)

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return _encode(tools) if tools else b""

    async def answer(self, request: ModelRequest, emit: Callable[[Text | Reasoning], None]) -> ModelAnswer:
        messages = [_decode_message(message) for message in request.messages]
        tools = _decode_tools(request.tools) if request.tools else []
        reply = _reply(messages, tools)
        words = re.findall(r"\S+\s*|\s+", reply.text)
        most = request.sampling.max_tokens or len(words)
        await anyio.lowlevel.checkpoint()
        if request.stream:
            await self._speak(words[:most], _thoughts(messages), emit)
        usage = Usage(sum(map(len, request.messages)) // 4, min(len(words), most))
        message = AssistantMessage("".join(words[:most]), reply.tool_calls)
        return ModelAnswer(message, usage, truncated=most < len(words))

    async def _speak(self, words: list[str], thoughts: str, emit: Callable[[Text | Reasoning], None]) -> None:
        if thoughts:
            emit(Reasoning(thoughts))
        for word in words:
            if self._pace:
                await anyio.sleep(self._pace)
            emit(Text(word))


@asynccontextmanager
async def open_model(
    choice: ModelChoice | None = None,  # noqa: ARG001
    transports: Transports | None = None,  # noqa: ARG001
    *,
    pace: float = PACE,
) -> AsyncIterator[Model]:
    """It needs neither a choice nor transports; they are there because every model is opened with them."""
    yield DemoModel(pace)


# ── what it says ────────────────────────────────────────────────────────────────────────────────


def _reply(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AssistantMessage:
    results = _last_results(messages)
    if results:
        return AssistantMessage("\n\n".join(map(_sum_up, results)))
    text = next((message.text for message in reversed(messages) if isinstance(message, UserMessage)), "")
    plain = text.strip().lower().rstrip("!.? ")
    if plain == "fail":
        raise GiveUp("The demo model was asked to fail, and did.", code="demo_failed")
    if text[:4].lower() == "say ":
        return AssistantMessage(text[4:])
    if counted := re.fullmatch(r"count to (\d{1,6})", plain):
        return AssistantMessage(" ".join(map(str, range(1, min(int(counted[1]), _HIGHEST_COUNT) + 1))))
    if re.fullmatch(r"(please )?(write|tell)( me)? (a |something )?(very )?long( text| story| answer)?", plain):
        return AssistantMessage(_long_text())
    if calls := wished_calls(text, tools, number=len(messages)):
        using = " and ".join(f"`{call.name}`" for call in calls)
        return AssistantMessage(f"I'll use {using}.", calls)
    if re.match(r"(hello|hi|hey|good (morning|day|evening)|moin|hallo)\b", plain) and len(plain) < 40:
        return AssistantMessage(f"Hello! {_introduction()}\n\n{_help(tools)}")
    if plain in ("help", "?", "") or re.search(r"what (can|do) you|who are you|which tools|what tools", plain):
        return AssistantMessage(f"{_introduction()}\n\n{_help(tools)}")
    return AssistantMessage(
        f"{_introduction()} I can repeat what you wrote, but not think about it:\n\n{_quoted(text)}\n\n{_help(tools)}"
    )


def _thoughts(messages: Sequence[Message]) -> str:
    last = messages[-1] if messages else None
    asked = isinstance(last, UserMessage) and last.text.lower().startswith("think")
    return "I am asked to think. I am a demo model. I shall say so." if asked else ""


def _last_results(messages: Sequence[Message]) -> list[ToolMessage]:
    """What the tools said since the last question, if they spoke last."""
    results: list[ToolMessage] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            break
        results.insert(0, message)
    return results


def _sum_up(result: ToolMessage) -> str:
    text = result.text.strip("\n")
    if result.failed:
        return f"`{result.name}` failed:\n\n{_fenced(text)}"
    if not text:
        return f"`{result.name}` said nothing."
    lines = text.count("\n") + 1
    return f"`{result.name}` said ({lines} line{'s' if lines > 1 else ''}):\n\n{_fenced(text)}"


def _fenced(text: str) -> str:
    cut = text[:_MOST_OF_A_RESULT]
    longest = max((len(run) for run in re.findall(r"`+", cut)), default=0)
    fence = "`" * max(3, longest + 1)  # so that a fence inside the text does not end the block
    more = f"\n\n… and {len(text) - len(cut):,} more characters." if len(cut) < len(text) else ""
    return f"{fence}text\n{cut}\n{fence}{more}"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.strip()[:500].splitlines())


def _introduction() -> str:
    return "I am Holdfast's built-in **demo model**: no AI, just enough to try everything out."


def _help(tools: Sequence[ToolSpec]) -> str:
    named = "\n".join(f"- `{tool.name}`: {tool.description.split(chr(10))[0]}" for tool in tools)
    first = f"Tools that I have here, to be asked for in plain words:\n\n{named}\n\n" if tools else ""
    return (
        f"{first}Try:\n\n"
        "- `list files`, `read notes.txt` or any other tool by its name, several joined by *and*\n"
        '- `use <tool> with {"argument": "value"}` for any tool\n'
        "- `count to 500` or `write a long text`, then stop me\n"
        "- `say <anything>`, `think`, `fail`\n\n"
        "For a real model, set `OPENAI_API_KEY`, `ANTHROPIC_API_KEY` or `OPENROUTER_API_KEY`, start Ollama or "
        "LM Studio, or run `holdfast init`; then restart."
    )


def _long_text() -> str:
    paragraphs = (
        f"**{number}.** This is paragraph {number} of {_LONG_TEXT}, and it says nothing but that it is there, so that "
        "you can watch a long answer arrive word by word, scroll while it does, and stop it when you have seen enough."
        for number in range(1, _LONG_TEXT + 1)
    )
    return "\n\n".join(paragraphs)
