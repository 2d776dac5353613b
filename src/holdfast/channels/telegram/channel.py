"""The bot: its connections to Telegram, and the two directions that share them."""

import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec
from telegram import Bot
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest

from holdfast.channels.telegram import Pace
from holdfast.channels.telegram.inbound import Inbound
from holdfast.channels.telegram.outbound import Flood, Outbound
from holdfast.core.clock import Clock
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer
from holdfast.core.protocols import Accept
from holdfast.core.settings import TelegramSettings

CONNECTIONS = 64

_decode = msgspec.json.Decoder().decode


class TelegramChannel:
    """A `Channel` of private chats with one bot."""

    name = "telegram"

    def __init__(self, inbound: Inbound, outbound: Outbound) -> None:
        self._inbound = inbound
        self._outbound = outbound

    def __repr__(self) -> str:
        return f"<TelegramChannel: {self._inbound!r}, {self._outbound!r}>"

    async def receive(self, accept: Accept) -> None:
        await self._inbound.receive(accept)

    async def send(self, answer: Answer) -> None:
        await self._outbound.send(answer)


@asynccontextmanager
async def open_channel(
    settings: TelegramSettings, ledger: Ledger, clock: Clock, *, pace: Pace
) -> AsyncIterator[TelegramChannel]:
    """Opens the pool of connections and asks Telegram nothing yet: that is `receive`'s and `send`'s business."""
    token = settings.token.reveal()
    base = settings.api_base.rstrip("/")
    pool = _Connections()
    with (
        _out_of_logs(token),
        ledger.enter("socket pool", _origin(base), since=clock.now(), holds=pool.descriptors),
    ):
        async with _Request(
            connection_pool_size=CONNECTIONS,
            connect_timeout=pace.reply,
            read_timeout=pace.reply,
            write_timeout=pace.reply,
            pool_timeout=pace.reply,
            # As for models: a proxy variable or a .netrc meant for others must not reroute conversations.
            httpx_kwargs={
                "verify": ssl.create_default_context(),
                "trust_env": False,
                "event_hooks": {"request": [pool.watch]},
            },
        ) as request:
            # The bot is not entered: that would ask Telegram, fail when it is down, and put the token in the error.
            bot = Bot(token, base_url=f"{base}/bot", request=request, get_updates_request=request)
            outbound = Outbound(bot, pace)
            yield TelegramChannel(Inbound(bot, outbound, settings.allow, clock, pace), outbound)


class _Connections:
    """The connections that requests have opened, as long as they are open."""

    def __init__(self) -> None:
        self._streams: WeakSet[Any] = WeakSet()

    async def watch(self, request: Any) -> None:
        request.extensions["trace"] = self._note

    async def _note(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.add(info["return_value"])

    def descriptors(self) -> list[int]:
        sockets = (stream.get_extra_info("socket") for stream in self._streams)
        return [number for socket in sockets if socket and (number := socket.fileno()) >= 0]


class _Request(HTTPXRequest):
    """HTTP as the library does it, but for errors.

    No page of HTML gets into a message or the log, nor is one from a proxy on the way taken for Telegram's own
    word; and a flood's waiting time is a plain number, where the library's error warns about its type.
    """

    __slots__ = ()

    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        status, payload = await super().do_request(*args, **options)
        if status >= 500:
            raise NetworkError(f"it answered with the status {status}")
        if status >= 400:
            reply = self.parse_json_payload(payload)
            if status == 429:
                raise Flood((reply.get("parameters") or {}).get("retry_after") or 1)
        return status, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        try:
            decoded = _decode(payload)
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):
            raise TelegramError("it answered with something that is not the Bot API's")
        return decoded


@contextmanager
def _out_of_logs(token: str) -> Iterator[None]:
    """Drop the log lines of libraries that show the token, which is part of every address of the Bot API."""

    def shows_no_token(record: logging.LogRecord) -> bool:
        return token not in record.getMessage()

    loggers = [logging.getLogger(name) for name in ("httpx", "telegram.Bot")]
    for logger in loggers:
        logger.addFilter(shows_no_token)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(shows_no_token)


def _origin(base: str) -> str:
    parts = urlsplit(base)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
