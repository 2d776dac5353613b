"""What was said before: conversations, and their messages page by page."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.api.errors import Refusal, bad
from holdfast.api.exchange import Exchange
from holdfast.api.replies import Reply, json_reply
from holdfast.core.keys import SessionId
from holdfast.core.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from holdfast.core.protocols import MessageRow, SessionRow

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

PAGE = 200
SESSIONS_PAGE = 50
MOST_SESSIONS = 200
_LAST_SEQ = 2**63 - 1
_ROLES: Mapping[type[Message], Role] = {
    SystemMessage: "system",
    UserMessage: "user",
    AssistantMessage: "assistant",
    ToolMessage: "tool",
}


class SessionEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    chat: str
    title: str
    created: float
    last_used: float
    ended: float | None = None
    end_reason: str = ""
    snippet: str = ""


class CallEntry(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class MessageEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    role: Role
    text: str
    created: float
    tool_calls: list[CallEntry] = []
    call_id: str = ""
    name: str = ""
    failed: bool = False


class History(msgspec.Struct, frozen=True):
    """The newest page of a conversation, or the page before `before`, oldest message first."""

    session: SessionEntry | None
    messages: list[MessageEntry]
    more: bool


class SessionList(msgspec.Struct, frozen=True):
    sessions: list[SessionEntry]
    next: float | None
    """Give this as `before` to see older ones; null at the end, and for a search."""


async def list_sessions(exchange: Exchange) -> Reply:
    query = exchange.query
    search = query.get("q", "")
    if "\0" in search or len(search) > 1000:
        raise bad("q must be at most 1000 characters, none of them NUL.", "q")
    limit = _number(query, "limit", SESSIONS_PAGE, least=1, most=MOST_SESSIONS)
    rows = await exchange.surface.gateway.store.sessions(
        channel=query.get("channel", "").replace("\0", ""),
        search=search,
        before=_moment(query),
        limit=limit,
    )
    older = rows[-1].last_used if len(rows) == limit and not search else None
    return json_reply(SessionList([_session(row) for row in rows], older))


async def get_session(exchange: Exchange) -> Reply:
    (session_id,) = exchange.values
    row = await exchange.surface.gateway.store.session(SessionId(session_id))
    if row is None:
        raise Refusal(404, "There is no conversation with this id.", code="not_found")
    return await show_history(exchange, row)


async def show_history(exchange: Exchange, session: SessionRow | None) -> Reply:
    before = _number(exchange.query, "before", _LAST_SEQ, least=0, most=_LAST_SEQ)
    if session is None:
        return json_reply(History(None, [], False))
    store = exchange.surface.gateway.store
    rows = await store.messages(session.id, before=before, limit=PAGE + 1)
    return json_reply(History(_session(session), [_message(row) for row in rows[-PAGE:]], len(rows) > PAGE))


def _session(row: SessionRow) -> SessionEntry:
    return SessionEntry(
        row.id, str(row.chat), row.title, row.created, row.last_used, row.ended, row.end_reason, row.snippet
    )


def _message(row: MessageRow) -> MessageEntry:
    message = row.message
    entry = MessageEntry(row.seq, _ROLES[type(message)], message.text, row.created)
    match message:
        case AssistantMessage(tool_calls=calls) if calls:
            shown = [CallEntry(call.id, call.name, call.arguments) for call in calls]
            return msgspec.structs.replace(entry, tool_calls=shown)
        case ToolMessage():
            return msgspec.structs.replace(entry, call_id=message.call_id, name=message.name, failed=message.failed)
    return entry


def _number(query: dict[str, str], name: str, default: int, *, least: int, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise bad(f"{name} must be a whole number from {least} to {most}.", name)
    return int(text)


def _moment(query: dict[str, str]) -> float | None:
    text = query.get("before", "")
    if not text:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = float("nan")
    if not 0 <= moment < 1e12:
        raise bad("before must be a moment in seconds since 1970.", "before")
    return moment
