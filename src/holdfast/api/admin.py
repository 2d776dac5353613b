"""For operators: whether the gateway is up, what it holds, how to let go of it, and other settings."""

from typing import Literal

import msgspec

from holdfast.api.errors import Refusal
from holdfast.api.exchange import Exchange
from holdfast.api.metrics import CONTENT_TYPE as METRICS
from holdfast.api.replies import Header, Reply, json_reply
from holdfast.core.errors import SettingsError
from holdfast.core.keys import SessionId
from holdfast.gateway.status import take_status

TEXT: Header = (b"content-type", b"text/plain; charset=utf-8")


class Evicted(msgspec.Struct, frozen=True):
    evicted: Literal[True] = True


class Ended(msgspec.Struct, frozen=True):
    ended: Literal[True] = True


async def healthz(_: Exchange) -> Reply:
    return Reply(b"ok", content_type=TEXT)


async def readyz(exchange: Exchange) -> Reply:
    if exchange.surface.gateway.leaving:
        return Reply(b"stopping", 503, ((b"retry-after", b"5"),), TEXT)
    return Reply(b"ready", content_type=TEXT)


async def metrics(exchange: Exchange) -> Reply:
    return Reply(exchange.shared.metrics.exposition(), content_type=METRICS)


async def status(exchange: Exchange) -> Reply:
    surface = exchange.surface
    return json_reply(take_status(surface.gateway, surface.ledger, version=surface.version, started=surface.started))


async def reload(exchange: Exchange) -> Reply:
    """Take over what changed in the settings, as far as that can be done while the gateway runs."""
    try:
        return json_reply(await exchange.surface.reload())
    except SettingsError as error:
        raise Refusal(422, str(error), code="invalid_settings") from None


async def evict_session(exchange: Exchange) -> Reply:
    """Let a warm agent go; the conversation goes on with its next message."""
    (session,) = exchange.values
    gateway = exchange.surface.gateway
    resident = any(
        chat.session and chat.session.id == session and chat.session.agent for chat in gateway.awake.values()
    )
    if not resident:
        raise Refusal(404, "No agent is warm for a conversation with this id.", code="not_found")
    if not gateway.residents.evict(SessionId(session)):
        raise Refusal(409, "The agent is mid-turn and stays until the turn ends.", code="mid_turn")
    return json_reply(Evicted())


async def end_session(exchange: Exchange) -> Reply:
    """End a conversation, as /new in its chat would."""
    (session,) = exchange.values
    await exchange.surface.gateway.end(SessionId(session))
    return json_reply(Ended())
