"""OpenAI's chat-completions format, as its many speakers really speak it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import msgspec
import structlog
from yarl import URL

from holdfast.core.messages import (
    AssistantMessage,
    Message,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest, ToolSpec
from holdfast.models import failures
from holdfast.models.completions import Assembly, Emit
from holdfast.models.providers import ModelChoice
from holdfast.models.sse import EventParser, EventTooLong
from holdfast.models.transports import Lease, Transports

_LARGEST_ERROR = 64 * 1024
_LARGEST_ANSWER = 64 * 1024 * 1024
_ERROR_GRACE = 5.0
"""How long the rest of an error may take: its first bytes tell enough."""
_USAGE_GRACE = 5.0
"""How long to wait for the token count after the answer's end; some servers send none and never hang up."""
_END_GRACE = 0.25
"""How long to wait for the response's end after [DONE], to keep its connection for the next request."""

log = structlog.get_logger(__name__)

_encode = msgspec.json.Encoder().encode
_USUAL = Sampling()
_ABOUT_THINKING = ('"reasoning_effort"', '"thinking"')
"""Members of `Dialect.with_tools` that leave no choice of how hard to think."""


class ChatModel:
    """A model behind a chat-completions endpoint."""

    def __init__(self, choice: ModelChoice, lease: Lease) -> None:
        self._choice = choice
        self._lease = lease
        url = URL(choice.base_url)
        self._url = (url.with_user(None) / "chat/completions").with_query(url.query)
        self._headers = {"Content-Type": "application/json", "User-Agent": "holdfast"}
        if choice.api_key:
            self._headers["Authorization"] = f"Bearer {choice.api_key.reveal()}"
        elif url.user:
            self._headers["Authorization"] = aiohttp.encode_basic_auth(url.user, url.password or "")
        times = choice.timeouts
        self._streaming = aiohttp.ClientTimeout(total=None, sock_connect=times.connect, sock_read=times.silence)
        # In one piece, silence until the end is usual. Not `total`, whose timer costs more than it is worth.
        self._whole = aiohttp.ClientTimeout(total=None, sock_connect=times.connect, sock_read=times.whole)
        self._head = b'{"model":' + _json(choice.name) + b',"messages":['
        self._with_tools = f",{choice.dialect.with_tools}".encode() if choice.dialect.with_tools else b""
        self._effort_pinned = any(word in choice.dialect.with_tools for word in _ABOUT_THINKING)
        self._on_calls = f",{choice.dialect.on_calls}".encode() if choice.dialect.on_calls else b""

    def __repr__(self) -> str:
        return f"<ChatModel {self._choice.name} at {self._url.host}>"

    @property
    def name(self) -> str:
        return self._choice.name

    @property
    def wire(self) -> str:
        return f"openai_chat/{self._choice.provider}" if self._on_calls else "openai_chat"

    def encode_system(self, prompt: str) -> bytes:
        return _json({"role": "system", "content": prompt}) if prompt else b""

    def encode_message(self, message: Message) -> bytes:
        match message:
            case UserMessage():
                return _json({"role": "user", "content": message.told})
            case SystemMessage():
                return _json({"role": "system", "content": message.text})
            case ToolMessage():
                return _json({"role": "tool", "tool_call_id": message.call_id, "content": message.text})
            case AssistantMessage(tool_calls=()):
                return _json({"role": "assistant", "content": message.text})
            case AssistantMessage():
                said = _json({"role": "assistant", "content": message.text or None})
                calls = b",".join(map(self._encode_call, message.tool_calls))
                return said[:-1] + b',"tool_calls":[' + calls + b"]}"

    def encode_tools(self, tools: Sequence[ToolSpec]) -> bytes:
        return _json([{"type": "function", "function": tool} for tool in tools]) if tools else b""

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        # Ids for calls that come without: new in this conversation, and short enough for the strictest server.
        assembly = Assembly(self._choice, f"c{len(request.messages):05x}", emit if request.stream else None)
        try:
            async with self._lease.request(
                "POST",
                self._url,
                body=self._body(request),
                headers=self._headers,
                timeout=self._streaming if request.stream else self._whole,
            ) as response:
                if response.status != 200:
                    raise failures.from_response(
                        self._choice, response.status, response.headers, await _start_of(response)
                    )
                if _is_stream(response.content_type, request.stream):
                    await _follow(response, assembly)
                else:
                    assembly.take(await _all_of(response))
                    assembly.done = True
                    assembly.show()
        except (EventTooLong, _TooLarge) as error:
            raise failures.unreadable(self._choice, b"", type(error).__name__) from error
        except (aiohttp.ClientError, OSError) as error:
            raise failures.from_exception(self._choice, error) from error
        return assembly.answer()

    def _body(self, request: ModelRequest) -> bytes:
        """The request, joined from what was encoded before."""
        messages = request.messages
        parts = [self._head, b",".join((request.system, *messages) if request.system else messages), b"]"]
        if request.tools:
            parts += (b',"tools":', request.tools, self._with_tools)
        if request.sampling != _USUAL:
            parts.append(self._encode_sampling(request.sampling))
        if request.reasoning and not (request.tools and self._effort_pinned):
            parts.append(b',"reasoning_effort":' + _json(request.reasoning))
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}}' if request.stream else b"}")
        return b"".join(parts)

    def _encode_sampling(self, sampling: Sampling) -> bytes:
        wishes = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._choice.dialect.limit: sampling.max_tokens,
            "stop": sampling.stop or None,
        }
        return b"," + _json({name: wish for name, wish in wishes.items() if wish is not None})[1:-1]

    def _encode_call(self, call: ToolCall) -> bytes:
        arguments = call.arguments
        try:
            msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:
            # Many servers refuse a history with arguments that are no JSON object, for ever after.
            arguments = _json({"not_json": arguments}).decode()
        function = {"name": call.name, "arguments": arguments}
        return _json({"id": call.id, "type": "function", "function": function})[:-1] + self._on_calls + b"}"


@asynccontextmanager
async def open_model(choice: ModelChoice, transports: Transports) -> AsyncIterator[Model]:
    async with transports.lease(choice.base_url) as lease:
        yield ChatModel(choice, lease)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


class _TooLarge(Exception):
    """More than any answer has."""


def _is_stream(content_type: str, asked: bool) -> bool:
    """What was sent counts more than what was asked for: some can't stream, some always do."""
    return "event-stream" in content_type or (asked and "json" not in content_type and "html" not in content_type)


async def _follow(response: aiohttp.ClientResponse, assembly: Assembly) -> None:
    """Read a stream to its end, taking in each read at once."""
    events = EventParser()
    content = response.content

    async def read_on() -> bool:
        data = await content.readany()
        for payload in events.feed(data) if data else events.finish():
            assembly.take(payload)
        assembly.show()
        return bool(data) and not assembly.done

    while await read_on() and not assembly.finish_reason:
        pass
    if content.at_eof() or not (assembly.done or assembly.finish_reason):
        return
    # The answer is whole. What may follow, a count of tokens and the end, is waited for but not insisted on.
    try:
        if not assembly.done:
            with anyio.move_on_after(_USAGE_GRACE):
                while await read_on():
                    pass
        if assembly.done:
            with anyio.move_on_after(_END_GRACE):
                while not content.at_eof():
                    await content.readany()
    except aiohttp.ClientError as error:
        log.debug("the connection broke after the answer", error=type(error).__name__)


async def _all_of(response: aiohttp.ClientResponse) -> bytes:
    pieces = []
    size = 0
    while data := await response.content.readany():
        pieces.append(data)
        size += len(data)
        if size > _LARGEST_ANSWER:
            raise _TooLarge
    return b"".join(pieces)


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error as is worth reading."""
    start = b""
    try:
        with anyio.move_on_after(_ERROR_GRACE):
            while len(start) < _LARGEST_ERROR and (data := await response.content.readany()):
                start += data
    except aiohttp.ClientError as error:
        log.debug("the connection broke in an error's words", error=type(error).__name__)
    return start[:_LARGEST_ERROR]


def _json(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair; nothing that JSON can carry
        return _encode(_mended(value))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _mended(item) for name, item in value.items()}
    return value
