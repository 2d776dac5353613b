"""A client of the gateway's own HTTP API."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from holdfast import __version__
from holdfast.cli.address import Address
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.events import Answered, Event
from holdfast.models.sse import EventParser

T = TypeVar("T")

EVENTS = "text/event-stream"
CONNECT = 5.0
"""How long a connection may take to come about, in seconds."""
SILENCE = 60.0
"""How long the gateway may say nothing; even a stream that waits says now and then that it is alive."""


class GatewayAway(HoldfastError):
    """No gateway answers: start it, or wait until it is back."""


class RequestRefused(HoldfastError):
    """The gateway does not do this; its message says why."""

    def __init__(self, message: str, *, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Accepted(msgspec.Struct, frozen=True, tag="accepted", tag_field="type"):
    """The message is stored: from now on the gateway answers it, whatever happens."""

    id: str


Streamed: TypeAlias = Accepted | Event
_streamed: msgspec.json.Decoder[Streamed] = msgspec.json.Decoder(Streamed)


class CommandHelp(msgspec.Struct, frozen=True):
    name: str
    help: str


class PastMessage(msgspec.Struct, frozen=True):
    role: str
    text: str = ""


class ModelInUse(msgspec.Struct, frozen=True):
    name: str


class About(msgspec.Struct, frozen=True):
    """What answers there."""

    version: str
    model: ModelInUse


class Question(msgspec.Struct, frozen=True, tag="question", tag_field="type"):
    """The message that is being answered in a chat."""

    text: str
    id: str


class PastSession(msgspec.Struct, frozen=True):
    title: str = ""


class Conversation(msgspec.Struct, frozen=True):
    """What was said in a chat's current session; the session is null when there is none."""

    session: PastSession | None
    messages: list[PastMessage]


class Reloaded(msgspec.Struct, frozen=True):
    """Which settings took effect, and which wait for a restart."""

    changed: list[str]
    needs_restart: list[str]


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""
    code: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Problem


class GatewayClient:
    """Talks to one gateway. Raises `GatewayAway`, `TryLater` and `RequestRefused`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self.base_url = base_url

    def __repr__(self) -> str:
        return f"<GatewayClient of {self.base_url}>"

    async def ready(self) -> bool:
        """Whether a gateway answers there."""
        try:
            await self._get("/readyz")
        except GatewayAway:
            return False
        except TryLater:
            return True  # it is there, and not quite up yet
        return True

    async def about(self) -> About:
        return self._decoded(await self._get("/api/status"), About)

    async def commands(self) -> list[CommandHelp]:
        return self._decoded(await self._get("/api/commands"), list[CommandHelp])

    async def conversation(self, chat: str) -> Conversation:
        return self._decoded(await self._get(_chat_path(chat)), Conversation)

    async def status(self) -> bytes:
        """What the gateway holds, as JSON."""
        return await self._get("/admin/status")

    async def reload(self) -> Reloaded:
        """Have the gateway read its settings again."""
        return self._decoded(await self._get("/admin/reload", method="POST"), Reloaded)

    async def ask(self, chat: str, text: str, message_id: str) -> AsyncGenerator[Streamed, None]:
        """Say something in a chat, and see what comes of it; the last event is `Answered`.

        The same id again joins the answer that is under way or gets the stored one.
        """
        body = msgspec.json.encode({"text": text, "id": message_id})
        parser = EventParser()
        async with self._request("POST", f"{_chat_path(chat)}/messages", body, accept=EVENTS) as response:
            async for data in response.content.iter_any():
                for raw in parser.feed(data):
                    event = _decoded(raw)
                    if event is not None:
                        yield event
                    if isinstance(event, Answered):
                        return
        raise GatewayAway(self._away)

    async def under_way(self, chat: str) -> Question | None:
        """The message that is being answered right now; its id is the way to join its answer."""
        parser = EventParser()
        async with self._request("GET", f"{_chat_path(chat)}/events", accept=EVENTS) as response:
            async for data in response.content.iter_any():
                for raw in parser.feed(data):
                    return self._decoded(raw, Question)
        return None

    async def settle(self, chat: str, text: str, message_id: str) -> Answered:
        """Say something in a chat and wait for its answer."""
        try:
            async with asyncio.timeout(SILENCE), aclosing(self.ask(chat, text, message_id)) as events:
                async for event in events:
                    if isinstance(event, Answered):
                        return event
        except TimeoutError:
            pass
        raise GatewayAway(self._away)

    def _decoded(self, data: bytes, wanted: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=wanted)
        except msgspec.MsgspecError:
            raise RequestRefused(self._stranger, status=200) from None

    async def _get(self, path: str, *, method: str = "GET") -> bytes:
        try:
            async with asyncio.timeout(SILENCE), self._request(method, path) as response:
                return await response.read()
        except TimeoutError:
            raise GatewayAway(self._away) from None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes = b"", *, accept: str = "application/json"
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Accept": accept, **({"Content-Type": "application/json"} if body else {})}
        try:
            async with self._session.request(
                method, self.base_url + path, data=body or None, headers=headers
            ) as response:
                if response.status not in (200, 204):
                    await self._refuse(response)
                yield response
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ConnectionError):
            raise GatewayAway(self._away) from None
        except (aiohttp.ClientError, ValueError):  # another protocol, or an address that can't be one
            raise RequestRefused(self._stranger, status=0) from None

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        try:
            problem = msgspec.json.decode(await response.read(), type=_Refusal).error
        except msgspec.MsgspecError:
            problem = _Problem()
        if response.status in (401, 403):
            message = f"The gateway at {self.base_url} does not accept this token; see --token."
            raise RequestRefused(message, status=response.status, code=problem.code)
        if response.status in (429, 502, 503, 504):
            try:
                after = float(response.headers.get("Retry-After", "1"))
            except ValueError:
                after = 1.0
            raise TryLater(problem.message or self._away, after=after)
        raise RequestRefused(problem.message or self._stranger, status=response.status, code=problem.code)

    @property
    def _away(self) -> str:
        return f"No gateway answers at {self.base_url}."

    @property
    def _stranger(self) -> str:
        return f"What answers at {self.base_url} is not a Holdfast gateway of this version."


def _chat_path(chat: str) -> str:
    return f"/api/chats/terminal/{quote(chat, safe='')}"


def _decoded(raw: bytes) -> Streamed | None:
    try:
        return _streamed.decode(raw)
    except msgspec.ValidationError:
        return None  # a newer gateway may say more than this client understands


@asynccontextmanager
async def open_client(address: Address) -> AsyncIterator[GatewayClient]:
    headers = {"Authorization": f"Bearer {address.token.reveal()}", "User-Agent": f"holdfast/{__version__}"}
    async with aiohttp.ClientSession(
        headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
    ) as session:
        yield GatewayClient(session, address.base_url)
