"""The chats of the web page and of the terminal: sending, looking on, and what was said before."""

import hashlib
import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from holdfast.api.bodies import check_text, decode, read_body
from holdfast.api.errors import HungUp, Refusal, bad
from holdfast.api.exchange import Exchange
from holdfast.api.histories import show_history
from holdfast.api.replies import Reply, Stream, json_reply
from holdfast.api.sse import KEEP_ALIVE, Onlooker, comment, data
from holdfast.core.errors import HoldfastError
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Incoming
from holdfast.gateway.commands import COMMANDS

ChannelName: TypeAlias = Literal["web", "terminal"]
CHANNELS: tuple[ChannelName, ...] = get_args(ChannelName)
CHAT_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"
_CHAT = re.compile(CHAT_PATTERN.strip("^$"))


class ChatMessage(msgspec.Struct, frozen=True):
    """A message to a chat. The same id again is the same message, and gets the same answer."""

    text: Annotated[str, Meta(min_length=1)]
    id: Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,128}(?!\n)$")]  # for Python, $ alone may stand before a newline


class Accepted(msgspec.Struct, frozen=True, tag="accepted", tag_field="type"):
    """The message is stored."""

    id: str


class MessageTaken(msgspec.Struct, frozen=True):
    id: str


class Question(msgspec.Struct, frozen=True, tag="question", tag_field="type"):
    """The message that is being answered."""

    text: str
    id: str


class CommandEntry(msgspec.Struct, frozen=True):
    name: str
    help: str


class ModelInUse(msgspec.Struct, frozen=True):
    name: str
    provider: str
    why: str


class GatewayStatus(msgspec.Struct, frozen=True):
    model: ModelInUse
    version: str
    demo: bool


_decoder = msgspec.json.Decoder(ChatMessage)


async def send_message(exchange: Exchange) -> Reply | Stream:
    key = _chat_key(exchange)
    said = decode(await read_body(exchange), _decoder)
    check_text((said.text,), "text")
    if not said.text.strip():
        raise bad("text is empty.", "text")
    watched = exchange.accepts(b"text/event-stream")
    incoming = Incoming(
        id=MailId(f"{key.channel}:{key.chat}:{said.id}"),
        chat=key,
        text=said.text,
        received=exchange.surface.clock.now(),
        fingerprint=hashlib.sha256(said.text.encode()).hexdigest(),
    )
    mail = await exchange.surface.gateway.accept(incoming, watched=watched)
    if not watched:
        return json_reply(MessageTaken(said.id), 202)
    exchange.notice_hang_up()
    return Stream(_told(Onlooker(exchange, mail), data(Accepted(said.id))))


async def watch_chat(exchange: Exchange) -> Reply | Stream:
    key = _chat_key(exchange)
    mail = exchange.surface.gateway.attach(key)
    if mail is None:
        return Reply(b"", 204, content_type=None)
    exchange.notice_hang_up()
    own_id = mail.incoming.id.removeprefix(f"{key.channel}:{key.chat}:")
    return Stream(_told(Onlooker(exchange, mail), data(Question(mail.incoming.text, own_id))))


async def _told(onlooker: Onlooker, first: bytes) -> AsyncIterator[bytes]:
    """The turn's events as they are. A stream that ends without an answer has broken off: ask again."""
    yield first
    try:
        while not onlooker.over:
            yield b"".join(map(data, await onlooker.batch())) or KEEP_ALIVE
    except HungUp:
        raise
    except HoldfastError as reason:
        yield comment(str(reason))


async def get_chat(exchange: Exchange) -> Reply:
    key = _chat_key(exchange)
    return await show_history(exchange, await exchange.surface.gateway.store.open_session(key))


async def list_commands(_: Exchange) -> Reply:
    return json_reply([CommandEntry(command.name, command.help) for command in COMMANDS])


async def get_status(exchange: Exchange) -> Reply:
    surface = exchange.surface
    model = surface.gateway.model
    in_use = ModelInUse(model.name, model.provider, surface.model_why)
    return json_reply(GatewayStatus(in_use, surface.version, model.provider == "demo"))


def _chat_key(exchange: Exchange) -> ChatKey:
    channel, chat = exchange.values
    if channel not in CHANNELS:
        raise Refusal(
            404, f"There is no channel {channel[:60]!r}; there are {' and '.join(CHANNELS)}.", code="not_found"
        )
    if not _CHAT.fullmatch(chat):
        raise Refusal(404, "A chat's name is 1 to 128 of the characters A-Z a-z 0-9 . _ ~ -", code="not_found")
    return ChatKey(channel, chat)
