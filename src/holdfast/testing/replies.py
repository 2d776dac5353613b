"""What a scripted model server may say, and how OpenAI words it on the wire."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.messages import ToolCall, Usage


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the server does with one request. A stream's events are: role, reasoning, text, calls, finish, usage."""

    text: str | tuple[str, ...] = ""
    """Streamed piece by piece; a plain string word by word."""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = ""
    """The finish_reason: empty is the natural one, None never comes."""
    usage: Usage | None = Usage(12, 7)
    done: bool = True
    """Whether a stream ends with [DONE]."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    """Sent as it is in place of an answer, with `headers` and `status`."""

    first_wait: float = 0.0
    pace: float = 0.0
    """Seconds before the first byte, and between one write and the next."""
    cut: int = 0
    """Bytes per write; 0 writes each event by itself when there is a pace, else all at once."""
    stall_after: int | None = None
    """After so many events, fall silent until `server.resume()` is called or the client leaves."""
    close_after: int | None = None
    """After so many events, hang up."""
    newline: str = "\n"
    comments: bool = False
    """Puts a keep-alive comment before each event."""
    whole_calls: bool = False
    """Sends each tool call in one chunk; otherwise in parts, those of several calls in turns."""
    call_ids: bool = True
    gzip: bool = False
    event_stream: bool | None = None
    """True streams even unasked, False never does, None does as asked."""


def says(*pieces: str, **more: Any) -> Reply:
    """An answer in words."""
    return Reply(text=pieces[0] if len(pieces) == 1 else pieces, **more)


def calls(*wishes: tuple[str, Any], **more: Any) -> Reply:
    """An answer that calls tools: ("read_file", {"path": "README.md"}), several for parallel calls."""
    return Reply(
        calls=tuple(
            ToolCall(f"call_{number}", name, arguments if isinstance(arguments, str) else _dump(arguments).decode())
            for number, (name, arguments) in enumerate(wishes, 1)
        ),
        **more,
    )


def fails(status: int, message: str = "", *, code: str = "", kind: str = "", **more: Any) -> Reply:
    """An error as OpenAI words it; 401, 402, 404, 413, 429, 500, 502, 503 and 529 have their usual words."""
    usual_message, usual_kind, usual_code = _USUAL_ERRORS.get(status, ("Something failed.", "server_error", None))
    error = {
        "message": message or usual_message,
        "type": kind or usual_kind,
        "param": None,
        "code": code or usual_code,
    }
    return Reply(status=status, body=_dump({"error": error}), **more)


def lists(*names: str) -> Reply:
    """The list of models."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in names]
    return Reply(body=_dump({"object": "list", "data": data}))


def context_too_long() -> Reply:
    return fails(
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        kind="invalid_request_error",
        code="context_length_exceeded",
    )


_USUAL_ERRORS: Mapping[int, tuple[str, str, str | None]] = {
    400: ("Invalid value for 'messages'.", "invalid_request_error", None),
    401: ("Incorrect API key provided: sk-wrong*****key1.", "invalid_request_error", "invalid_api_key"),
    402: ("Insufficient Balance", "unknown_error", "invalid_request_error"),
    403: ("Country, region, or territory not supported", "request_forbidden", "unsupported_country_region_territory"),
    404: (
        "The model `gone` does not exist or you do not have access to it.",
        "invalid_request_error",
        "model_not_found",
    ),
    413: ("Request exceeds the maximum size", "request_too_large", None),
    429: ("Rate limit reached for requests", "requests", "rate_limit_exceeded"),
    500: ("The server had an error while processing your request.", "server_error", None),
    502: ("Bad gateway", "server_error", None),
    503: ("The engine is currently overloaded, please try again later", "server_error", None),
    529: ("Overloaded", "overloaded_error", None),
}


# ── on the wire ─────────────────────────────────────────────────────────────────────────────────


def whole(reply: Reply, request: dict[str, Any]) -> bytes:
    """The reply in one piece."""
    if reply.body is not None:
        return reply.body
    text = reply.text if isinstance(reply.text, str) else "".join(reply.text)
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": reply.refusal or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call(call, reply) for call in reply.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
    return _dump(_envelope("chat.completion", request, [choice]) | _usage(reply))


def events(reply: Reply, request: dict[str, Any]) -> Iterator[bytes]:
    """The reply as a stream, event by event."""
    wants_usage = (request.get("stream_options") or {}).get("include_usage")
    before = f": keep-alive{reply.newline}{reply.newline}".encode() if reply.comments else b""
    after = (reply.newline * 2).encode()

    def event(choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        chunk = _envelope("chat.completion.chunk", request, choices) | usage
        return before + b"data: " + _dump(chunk) + after

    no_usage = {"usage": None} if wants_usage else {}
    for delta in _deltas(reply):
        yield event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], no_usage)
    if (finish := _finish(reply)) is not None:
        yield event([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}], no_usage)
    if wants_usage and reply.usage:
        yield event([], _usage(reply))
    if reply.done:
        yield before + b"data: [DONE]" + after


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if reply.calls else "", "refusal": None}
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}
    if reply.refusal:
        yield {"refusal": reply.refusal}
    words = reply.text.split(" ") if isinstance(reply.text, str) else []
    pieces = reply.text if isinstance(reply.text, tuple) else [*(f"{word} " for word in words[:-1]), *words[-1:]]
    for piece in pieces:
        if piece:
            yield {"content": piece}
    if reply.whole_calls:
        yield from ({"tool_calls": [{"index": index} | _call(call, reply)]} for index, call in enumerate(reply.calls))
        return
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index} | _call(ToolCall(call.id, call.name, ""), reply)]}
    longest = max((len(call.arguments) for call in reply.calls), default=0)
    for start in range(0, longest, 5):
        for index, call in enumerate(reply.calls):
            if part := call.arguments[start : start + 5]:
                yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _call(call: ToolCall, reply: Reply) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return ({"id": call.id} if reply.call_ids else {}) | {"type": "function", "function": function}


def _finish(reply: Reply) -> str | None:
    return ("tool_calls" if reply.calls else "stop") if reply.finish == "" else reply.finish


def _envelope(kind: str, request: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    model = request.get("model", "scripted")
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1700000000, "model": model, "choices": choices}


def _usage(reply: Reply) -> dict[str, Any]:
    if not reply.usage:
        return {}
    counts = {"prompt_tokens": reply.usage.input, "completion_tokens": reply.usage.output}
    return {"usage": counts | {"total_tokens": reply.usage.input + reply.usage.output}}


def _dump(value: Any) -> bytes:
    return msgspec.json.encode(value)
