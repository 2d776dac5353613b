"""POST /v1/responses and what can be asked of a response later."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.api.asking import (
    answer_bit_by_bit,
    answer_in_one_piece,
    ask,
    check_model,
    mail_id,
    question,
    session_name,
    token_of,
)
from holdfast.api.bodies import check_text, decode, read_body
from holdfast.api.errors import Refusal, bad
from holdfast.api.exchange import Exchange
from holdfast.api.parameters import MaxTokens, Temperature, TopP, Unsupported, sampling
from holdfast.api.replies import Reply, Stream, json_reply
from holdfast.api.response_objects import ID_PREFIX, Kept, finished
from holdfast.api.response_stream import ResponseEvents
from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

MOST_LINKS = 1000
"""How far back a chain of responses is followed."""

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text")


class ItemPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


ItemContent: TypeAlias = str | list[ItemPart]


class Item(msgspec.Struct, frozen=True):
    """A message, or a tool call or its result that the client had elsewhere."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: ItemContent | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: ItemContent | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: dict[str, Any] | None = None


class ResponseRequest(msgspec.Struct, frozen=True):
    """Parameters that are not named here are ignored, as hints that a server may not know."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_output_tokens: MaxTokens | None = None
    # What would change the meaning of the answer is refused when it is asked for.
    tools: list[Any] | None = None
    tool_choice: Any = None
    text: TextOptions | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: int | None = None


_decoder = msgspec.json.Decoder(ResponseRequest)
_memo_decoder = msgspec.json.Decoder(Kept)
_unsupported = Unsupported(
    tools=(([],), "Holdfast runs its own tools; leave it out."),
    tool_choice=(("none", "auto"), "Holdfast chooses among its own tools; leave it out."),
    text=((TextOptions(), TextOptions({"type": "text"})), "Holdfast answers in text; leave out its format."),
    background=((False,), "use stream, or an Idempotency-Key to ask for the answer again."),
    conversation=((), "name a session with X-Holdfast-Session instead."),
    prompt=((), "send the text itself as instructions and input."),
    top_logprobs=((0,), "Holdfast does not report probabilities; leave it out."),
)


async def create_response(exchange: Exchange) -> Reply | Stream:
    body = await read_body(exchange)
    request = decode(body, _decoder)
    model = check_model(exchange.surface, request.model)
    _unsupported.check(request)
    items = [UserMessage(request.input)] if isinstance(request.input, str) else core_messages(request.input)
    check_text((message.text for message in items), "input")
    check_text((request.instructions or "",), "instructions")
    before = await _before(exchange, request)
    instructed = [SystemMessage(request.instructions)] if request.instructions else []
    chosen = sampling(request.temperature, request.top_p, request.max_output_tokens)
    asked = question([*instructed, *before, *items], chosen, "input")
    kept = Kept(
        input=tuple(items),
        model=model,
        previous=request.previous_response_id,
        instructions=request.instructions,
        metadata=request.metadata or {},
        sampling=chosen,
        stored=request.store is not False,
    )
    memo = msgspec.json.encode(kept).decode() if kept.stored else ""
    mail = await ask(exchange, asked, kind="response", body=body, watched=bool(request.stream), memo=memo)
    if request.stream:
        audience = await answer_bit_by_bit(exchange, mail)
        return Stream(ResponseEvents(kept, token_of(mail), int(mail.incoming.received)).pieces(audience))
    answer = await answer_in_one_piece(exchange, mail)
    return json_reply(finished(kept, token_of(mail), answer))


async def get_response(exchange: Exchange) -> Reply:
    (response_id,) = exchange.values
    answer, kept = await _stored(exchange, response_id, param="response_id")
    return json_reply(finished(kept, response_id.removeprefix(ID_PREFIX), answer))


async def _before(exchange: Exchange, request: ResponseRequest) -> list[Message]:
    """What was said in the chain of responses that the request continues."""
    if not request.previous_response_id:
        return []
    param = "previous_response_id"
    if session_name(exchange.headers):
        raise bad("A session keeps its own history: leave out previous_response_id, or X-Holdfast-Session.", param)
    links: list[tuple[Answer, Kept]] = []
    left = exchange.surface.settings.server.body_limit  # as if the client had sent all of it itself
    response_id: str | None = request.previous_response_id
    while response_id:
        answer, kept = await _stored(exchange, response_id, param=param)
        left -= len(answer.memo) + len(answer.text)
        if left < 0 or len(links) == MOST_LINKS:
            raise bad("The conversation behind previous_response_id is too long; begin a new one.", param)
        links.append((answer, kept))
        response_id = kept.previous
    said: list[Message] = []
    for answer, kept in reversed(links):
        said.extend(kept.input)
        if answer.outcome != "failed":
            said.append(AssistantMessage(answer.text))
    return said


async def _stored(exchange: Exchange, response_id: str, *, param: str) -> tuple[Answer, Kept]:
    """A response that was kept; one of another endpoint, or made with `store: false`, was not."""
    token = response_id.removeprefix(ID_PREFIX)
    answer = None
    if token != response_id and token.isalnum() and len(token) <= 64:
        answer = await exchange.surface.gateway.store.answer_to(mail_id(token))
    if answer is None or not answer.memo:
        raise Refusal(404, f"There is no response {response_id[:100]!r}.", param=param, code="not_found")
    return answer, _memo_decoder.decode(answer.memo)


# ── what the client sends ───────────────────────────────────────────────────────────────────────


def core_messages(items: Sequence[Item]) -> list[Message]:
    """The client's items as Holdfast's own messages. Calls that belong to one message become one again."""
    messages: list[Message] = []
    called: dict[str, str] = {}
    for number, item in enumerate(items):
        where = f"input[{number}]"
        match item.type:
            case "message":
                messages.append(_message(item, where))
            case "function_call":
                call = ToolCall(item.call_id or "", item.name or "", item.arguments or "")
                check_text((call.id, call.name, call.arguments), where)
                called[call.id] = call.name
                last = messages.pop() if messages and isinstance(messages[-1], AssistantMessage) else None
                spoken = last if isinstance(last, AssistantMessage) else AssistantMessage("")
                messages.append(AssistantMessage(spoken.text, (*spoken.tool_calls, call)))
            case "function_call_output":
                if item.call_id not in called:
                    raise bad(f"{where}.call_id belongs to no call before it.", f"{where}.call_id")
                text = _text(item.output, f"{where}.output")
                messages.append(ToolMessage(item.call_id, called[item.call_id], text))
            case "reasoning":
                pass  # a model's thoughts of an earlier answer: nobody needs them here
            case _:
                raise bad(f"{where} is of the type {item.type[:60]!r}, which is not supported.", f"{where}.type")
    return messages


def _message(item: Item, where: str) -> Message:
    text = _text(item.content, f"{where}.content")
    match item.role:
        case "user":
            return UserMessage(text)
        case "assistant":
            return AssistantMessage(text)
        case "system" | "developer":
            return SystemMessage(text)
    raise bad(f"{where}.role is missing.", f"{where}.role")


def _text(content: ItemContent | None, where: str) -> str:
    if content is None:
        raise bad(f"{where} is missing.", where)
    if isinstance(content, str):
        return content
    words: list[str] = []
    for number, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if text is None or part.type not in (*_TEXT_PARTS, "refusal"):
            kind = part.type[:60]
            raise bad(f"{where}[{number}] is of the type {kind!r}; Holdfast takes text only.", f"{where}[{number}]")
        words.append(text)
    return "\n".join(words)
