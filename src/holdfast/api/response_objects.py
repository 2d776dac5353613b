"""A response as /v1/responses shows it, and what is kept of its request to show it again."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.core.messages import Answer, Message, Sampling, Usage

ID_PREFIX = "resp_"

ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Phase: TypeAlias = Literal["commentary", "final_answer"]


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer's memo: the request's own input and whatever else the response repeats."""

    input: tuple[Message, ...]
    model: str
    previous: str | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    sampling: Sampling = Sampling()
    stored: bool = True


class OutputText(msgspec.Struct, frozen=True, tag="output_text", tag_field="type"):
    text: str
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] = []
    logprobs: Annotated[list[Any], msgspec.Meta(max_length=0)] = []


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text", tag_field="type"):
    text: str


class OutputMessage(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    phase: Phase | None = None
    """What the agent says between tool calls is commentary."""


class OutputReasoning(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: Annotated[list[Any], msgspec.Meta(max_length=0)] = []


OutputItem: TypeAlias = OutputMessage | OutputReasoning


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text"] = "text"


class TextSettings(msgspec.Struct, frozen=True):
    format: TextFormat = TextFormat()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    """Why it is incomplete; null for an answer that somebody stopped."""
    previous_response_id: str | None = None
    instructions: str | None = None
    metadata: dict[str, str] = {}
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    store: bool = True
    background: Literal[False] = False
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: Annotated[list[Any], msgspec.Meta(max_length=0)] = []
    text: TextSettings = TextSettings()


def in_progress(kept: Kept, token: str, created: int) -> Response:
    return Response(
        id=ID_PREFIX + token,
        created_at=created,
        status="in_progress",
        model=kept.model,
        output=[],
        previous_response_id=kept.previous,
        instructions=kept.instructions,
        metadata=kept.metadata,
        temperature=kept.sampling.temperature,
        top_p=kept.sampling.top_p,
        max_output_tokens=kept.sampling.max_tokens,
        store=kept.stored,
    )


def finished(kept: Kept, token: str, answer: Answer) -> Response:
    """The response as its stored answer has it: the agent's last word."""
    begun = in_progress(kept, token, int(answer.created))
    said = OutputMessage(f"msg_{token}", item_status(answer), [OutputText(answer.text)], phase="final_answer")
    return concluded(begun, answer, [] if answer.outcome == "failed" else [said])


def concluded(begun: Response, answer: Answer, output: list[OutputItem]) -> Response:
    truncated = answer.error == "length"
    status: ResponseStatus = "completed" if item_status(answer) == "completed" else "incomplete"
    failed = answer.outcome == "failed"
    return msgspec.structs.replace(
        begun,
        status="failed" if failed else status,
        output=output,
        usage=_usage(answer.usage),
        error=ResponseError(answer.error, answer.text) if failed else None,
        incomplete_details=IncompleteDetails("max_output_tokens") if truncated else None,
    )


def item_status(answer: Answer) -> ItemStatus:
    return "completed" if answer.outcome == "ok" and answer.error != "length" else "incomplete"


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(usage.input, usage.output, usage.input + usage.output)
