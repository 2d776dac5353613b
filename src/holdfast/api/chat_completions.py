"""POST /v1/chat/completions: the format that most clients speak."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.api.asking import (
    Audience,
    answer_bit_by_bit,
    answer_in_one_piece,
    ask,
    check_model,
    question,
    token_of,
)
from holdfast.api.bodies import check_text, decode, read_body
from holdfast.api.errors import ErrorBody, HungUp, bad, failure, refusal
from holdfast.api.exchange import Exchange
from holdfast.api.parameters import MaxTokens, Stop, Temperature, TopP, Unsupported, sampling
from holdfast.api.replies import Reply, Stream, json_reply
from holdfast.api.sse import KEEP_ALIVE, data
from holdfast.api.wording import Wording
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Answered, Event, Reasoning
from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)

# ── the request ─────────────────────────────────────────────────────────────────────────────────


class TextPart(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class RefusalPart(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    refusal: str


class ImagePart(msgspec.Struct, frozen=True, tag="image_url", tag_field="type"):
    """Refused for now."""


class AudioPart(msgspec.Struct, frozen=True, tag="input_audio", tag_field="type"):
    """Refused for now."""


class FilePart(msgspec.Struct, frozen=True, tag="file", tag_field="type"):
    """Refused for now."""


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Content: TypeAlias = str | list[Part]


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CallPart(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall


class SystemTurn(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    content: Content


class DeveloperTurn(msgspec.Struct, frozen=True, tag="developer", tag_field="role"):
    content: Content


class UserTurn(msgspec.Struct, frozen=True, tag="user", tag_field="role"):
    content: Content


class AssistantTurn(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    content: Content | None = None
    tool_calls: list[CallPart] | None = None


class ToolTurn(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    tool_call_id: str
    content: Content


ChatTurn: TypeAlias = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ChatCompletionRequest(msgspec.Struct, frozen=True):
    """Parameters that are not named here are ignored, as hints that a server may not know."""

    messages: Annotated[list[ChatTurn], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: Stop | None = None
    # What would change the meaning of the answer is refused when it is asked for.
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    function_call: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None


_decoder = msgspec.json.Decoder(ChatCompletionRequest)
_OWN_TOOLS = "Holdfast runs its own tools; leave it out."
_OWN_CHOICE = "Holdfast chooses among its own tools; leave it out."
_NO_PROBABILITIES = "Holdfast does not report probabilities; leave it out."
_TEXT_ONLY = "Holdfast answers in text; leave it out."
_unsupported = Unsupported(
    n=((1,), "Holdfast gives one answer; leave it out or send 1."),
    tools=(([],), _OWN_TOOLS),
    functions=(([],), _OWN_TOOLS),
    tool_choice=(("none", "auto"), _OWN_CHOICE),
    function_call=(("none", "auto"), _OWN_CHOICE),
    logprobs=((False,), _NO_PROBABILITIES),
    top_logprobs=((0,), _NO_PROBABILITIES),
    response_format=(({"type": "text"},), _TEXT_ONLY),
    modalities=(([], ["text"]), _TEXT_ONLY),
    audio=((), _TEXT_ONLY),
    web_search_options=((), "Holdfast searches with its own tools; leave it out."),
)


def core_messages(turns: Sequence[ChatTurn]) -> list[Message]:
    """The client's messages as Holdfast's own."""
    messages: list[Message] = []
    called: dict[str, str] = {}
    for number, turn in enumerate(turns):
        where = f"messages[{number}]"
        text = "" if turn.content is None else _text(turn.content, f"{where}.content")
        match turn:
            case UserTurn():
                messages.append(UserMessage(text))
            case SystemTurn() | DeveloperTurn():
                messages.append(SystemMessage(text))
            case AssistantTurn():
                calls = tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in turn.tool_calls or ())
                check_text((part for call in calls for part in (call.id, call.name, call.arguments)), where)
                called.update({call.id: call.name for call in calls})
                messages.append(AssistantMessage(text, calls))
            case ToolTurn():
                if turn.tool_call_id not in called:
                    raise bad(f"{where}.tool_call_id belongs to no call before it.", f"{where}.tool_call_id")
                messages.append(ToolMessage(turn.tool_call_id, called[turn.tool_call_id], text))
    return messages


def _text(content: Content, where: str) -> str:
    if isinstance(content, str):
        check_text((content,), where)
        return content
    words: list[str] = []
    for number, part in enumerate(content):
        match part:
            case TextPart():
                words.append(part.text)
            case RefusalPart():
                words.append(part.refusal)
            case _:
                kind = str(part.__struct_config__.tag)
                raise bad(f"{where}[{number}] is of the type {kind}; Holdfast takes text only.", f"{where}[{number}]")
    check_text(words, where)
    return "\n".join(words)


# ── the answer ──────────────────────────────────────────────────────────────────────────────────


class TokenCounts(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Said(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    message: Said
    finish_reason: Literal["stop", "length"]
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: TokenCounts
    object: Literal["chat.completion"] = "chat.completion"


async def chat_completions(exchange: Exchange) -> Reply | Stream:
    body = await read_body(exchange)
    request = decode(body, _decoder)
    model = check_model(exchange.surface, request.model)
    _unsupported.check(request)
    limit = request.max_completion_tokens or request.max_tokens
    asked = question(
        core_messages(request.messages), sampling(request.temperature, request.top_p, limit, request.stop), "messages"
    )
    mail = await ask(exchange, asked, kind="chat", body=body, watched=bool(request.stream))
    if not request.stream:
        answer = await answer_in_one_piece(exchange, mail)
        return json_reply(completion(answer, token_of(mail), model))
    counted = bool(request.stream_options and request.stream_options.include_usage)
    chunks = _Chunks(token_of(mail), int(mail.incoming.received), model, counted=counted)
    audience = await answer_bit_by_bit(exchange, mail)
    return Stream(chunks.pieces(audience))


def completion(answer: Answer, token: str, model: str) -> ChatCompletion:
    choice = Choice(Said(answer.text), _finish_reason(answer.error))
    return ChatCompletion(f"chatcmpl-{token}", int(answer.created), model, [choice], _counts(answer.usage))


def _finish_reason(error: str) -> Literal["stop", "length"]:
    return "length" if error == "length" else "stop"


def _counts(usage: Usage) -> TokenCounts:
    return TokenCounts(usage.input, usage.output, usage.input + usage.output)


class _Chunks:
    """An answer as chunks. What does not change from one to the next is encoded once."""

    def __init__(self, token: str, created: int, model: str, *, counted: bool) -> None:
        head = {"id": f"chatcmpl-{token}", "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1]
        self._counted = counted
        self._before = self._head + b',"choices":[{"index":0,"delta":{'
        self._after = b'},"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if counted else b"") + b"}\n\n"
        self._wording = Wording()

    async def pieces(self, audience: Audience) -> AsyncIterator[bytes]:
        yield self._delta(b'"role":"assistant","content":""')
        try:
            while not audience.over:
                yield b"".join(self._written(await audience.batch())) or KEEP_ALIVE
        except HungUp:
            raise
        except HoldfastError as error:  # the stream has begun: the status can't tell any more
            yield data(ErrorBody(refusal(error).problem))

    def _written(self, events: Iterable[Event]) -> Iterable[bytes]:
        for event in events:
            if isinstance(event, Reasoning):
                yield self._delta(b'"reasoning_content":' + msgspec.json.encode(event.text))
            elif isinstance(event, Answered) and event.outcome == "failed":
                yield data(ErrorBody(failure(event).problem))
            else:
                if words := self._wording.hear(event):
                    yield self._delta(b'"content":' + msgspec.json.encode(words))
                if isinstance(event, Answered):
                    yield self._end(event)

    def _delta(self, members: bytes) -> bytes:
        return self._before + members + self._after

    def _end(self, answer: Answered) -> bytes:
        last = self._delta(b"").replace(
            b'"finish_reason":null', b'"finish_reason":"%s"' % _finish_reason(answer.error).encode()
        )
        if self._counted:
            last += self._head + b',"choices":[],"usage":' + msgspec.json.encode(_counts(answer.usage)) + b"}\n\n"
        return last + b"data: [DONE]\n\n"
