"""Every operation of the HTTP side, in one table: what is routed, and what /openapi.json says about it."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.api import admin, assets, chats, histories, model_list
from holdfast.api.chat_completions import ChatCompletion, ChatCompletionRequest, chat_completions
from holdfast.api.exchange import Exchange
from holdfast.api.openapi import openapi
from holdfast.api.operation import ANY, EVENTS, JSON, TEXT, Operation, Parameter
from holdfast.api.replies import Reply
from holdfast.api.response_objects import Response
from holdfast.api.responses import ResponseRequest, create_response, get_response
from holdfast.api.surface import Reloaded
from holdfast.gateway.status import Status


async def describe(exchange: Exchange) -> Reply:
    return Reply(document(exchange.surface.version))


@cache
def document(version: str) -> bytes:
    return msgspec.json.encode(openapi(OPERATIONS, PATH_VALUES, version))


_TURN_ERRORS = (400, 404, 408, 413, 422, 429, 500, 502, 504)
_SESSION = Parameter(
    "X-Holdfast-Session",
    Annotated[str, Meta(pattern=r"^(?!request/)[\x20-\x7e]{1,128}$")],
    "The chat whose current session answers. Without it the request carries its own history.",
    "header",
)
_IDEMPOTENCY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(pattern=r"^[\x20-\x7e]{1,255}$")],
    "A request that repeats its key gets the same answer, not a second turn.",
    "header",
)
_BEFORE = Parameter(
    "before", Annotated[int, Meta(ge=0, le=2**63 - 1)], "Only messages whose `seq` is lower: an earlier page."
)

PATH_VALUES: Mapping[str, Any] = {
    "model": Annotated[str, Meta(min_length=1)],
    "response_id": Annotated[str, Meta(min_length=1)],
    "channel": chats.ChannelName,
    "chat": Annotated[str, Meta(pattern=chats.CHAT_PATTERN)],
    "session": Annotated[str, Meta(pattern=r"^[0-9a-z]+$")],
    "file": Annotated[str, Meta(pattern=r"^[a-z]+\.[a-z]+$")],
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/v1/models",
        endpoint=model_list.list_models,
        tag="OpenAI",
        summary="The model that answers, by its names.",
        replies={200: {JSON: model_list.ModelList}},
    ),
    Operation(
        method="GET",
        path="/v1/models/{model*}",
        endpoint=model_list.get_model,
        tag="OpenAI",
        summary="One of the names.",
        replies={200: {JSON: model_list.ModelEntry}},
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/chat/completions",
        endpoint=chat_completions,
        tag="OpenAI",
        summary="Ask, in the chat completions format; with `stream`, the answer comes as events.",
        body=ChatCompletionRequest,
        parameters=(_SESSION, _IDEMPOTENCY),
        replies={200: {JSON: ChatCompletion, EVENTS: None}},
        errors=_TURN_ERRORS,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        endpoint=create_response,
        tag="OpenAI",
        summary="Ask, in the responses format; with `stream`, the answer comes as typed events.",
        body=ResponseRequest,
        parameters=(_SESSION, _IDEMPOTENCY),
        replies={200: {JSON: Response, EVENTS: None}},
        errors=_TURN_ERRORS,
    ),
    Operation(
        method="GET",
        path="/v1/responses/{response_id}",
        endpoint=get_response,
        tag="OpenAI",
        summary="A response that was stored.",
        replies={200: {JSON: Response}},
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/api/chats/{channel}/{chat}/messages",
        endpoint=chats.send_message,
        tag="Chats",
        summary="Send a message. Accepting `text/event-stream` shows the turn as it happens.",
        body=chats.ChatMessage,
        replies={200: {EVENTS: None}, 202: {JSON: chats.MessageTaken}},
        errors=(400, 404, 408, 413, 422, 429),
    ),
    Operation(
        method="GET",
        path="/api/chats/{channel}/{chat}/events",
        endpoint=chats.watch_chat,
        tag="Chats",
        summary="The turn that runs in a chat, from its beginning to its answer.",
        replies={200: {EVENTS: None}, 204: {}},
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/api/chats/{channel}/{chat}",
        endpoint=chats.get_chat,
        tag="Chats",
        summary="The conversation that goes on in a chat, with its newest messages.",
        parameters=(_BEFORE,),
        replies={200: {JSON: histories.History}},
        errors=(400, 404),
    ),
    Operation(
        method="GET",
        path="/api/sessions",
        endpoint=histories.list_sessions,
        tag="Chats",
        summary="Conversations, the last used first; with `q`, those in which it was said, the best first.",
        parameters=(
            Parameter("channel", str, "Only those of one channel."),
            Parameter("q", Annotated[str, Meta(max_length=1000)], "Words to look for."),
            Parameter(
                "before", Annotated[float, Meta(ge=0, lt=1e12)], "Only those last used before: `next` of a page."
            ),
            Parameter("limit", Annotated[int, Meta(ge=1, le=histories.MOST_SESSIONS)], "How many at most."),
        ),
        replies={200: {JSON: histories.SessionList}},
        errors=(400,),
    ),
    Operation(
        method="GET",
        path="/api/sessions/{session}",
        endpoint=histories.get_session,
        tag="Chats",
        summary="One conversation, with its newest messages.",
        parameters=(_BEFORE,),
        replies={200: {JSON: histories.History}},
        errors=(400, 404),
    ),
    Operation(
        method="GET",
        path="/api/status",
        endpoint=chats.get_status,
        tag="Chats",
        summary="The model, why it was chosen, and the version.",
        replies={200: {JSON: chats.GatewayStatus}},
    ),
    Operation(
        method="GET",
        path="/api/commands",
        endpoint=chats.list_commands,
        tag="Chats",
        summary="The slash commands.",
        replies={200: {JSON: list[chats.CommandEntry]}},
    ),
    Operation(
        method="GET",
        path="/admin/status",
        endpoint=admin.status,
        tag="Operations",
        summary="What is in memory and who holds it.",
        replies={200: {JSON: Status}},
    ),
    Operation(
        method="POST",
        path="/admin/reload",
        endpoint=admin.reload,
        tag="Operations",
        summary="Read the settings again: what took effect, and what waits for a restart.",
        replies={200: {JSON: Reloaded}},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/admin/sessions/{session}/evict",
        endpoint=admin.evict_session,
        tag="Operations",
        summary="Let a warm agent go; the conversation stays open.",
        replies={200: {JSON: admin.Evicted}},
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/admin/sessions/{session}/end",
        endpoint=admin.end_session,
        tag="Operations",
        summary="End a conversation, as /new in its chat would.",
        replies={200: {JSON: admin.Ended}},
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/metrics",
        endpoint=admin.metrics,
        tag="Operations",
        summary="Figures for Prometheus.",
        replies={200: {TEXT: None}},
    ),
    Operation(
        method="GET",
        path="/healthz",
        endpoint=admin.healthz,
        tag="Operations",
        summary="The process lives.",
        replies={200: {TEXT: None}},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/readyz",
        endpoint=admin.readyz,
        tag="Operations",
        summary="The gateway takes messages; 503 while it stops.",
        replies={200: {TEXT: None}, 503: {TEXT: None}},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        endpoint=describe,
        tag="Operations",
        summary="This document.",
        replies={200: {JSON: dict[str, Any]}},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/",
        endpoint=assets.index,
        tag="Page",
        summary="The web chat.",
        replies={200: {"text/html": None}, 304: {}},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/{file}",
        endpoint=assets.file,
        tag="Page",
        summary="A file of the web chat.",
        replies={200: {ANY: None}, 304: {}},
        errors=(404,),
        is_open=True,
    ),
)
