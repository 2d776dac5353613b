"""One request and its answer, on raw ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from holdfast.api.errors import HungUp, bad
from holdfast.api.metrics import Metrics
from holdfast.api.patience import Patience
from holdfast.api.replies import EVENTS, Header, Reply, Stream
from holdfast.api.surface import Surface
from holdfast.core.errors import HoldfastError

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NO_STORE: Header = (b"cache-control", b"no-store")
_UNBUFFERED: Header = (b"x-accel-buffering", b"no")  # a proxy in between must not collect events


@dataclass(frozen=True, slots=True)
class Shared:
    """What all exchanges of one server have in common."""

    surface: Surface
    metrics: Metrics
    for_answers: Patience
    for_news: Patience
    """After so long a silence, a stream shows that it is alive."""


class Exchange:
    """What an endpoint sees of one request. It ends early when the client hangs up or the gateway leaves."""

    __slots__ = (
        *("_ended", "_interrupted", "_listener", "_query", "_send", "_waiting"),
        *("headers", "receive", "shared", "status", "surface", "values"),
    )

    def __init__(self, shared: Shared, scope: Scope, receive: Receive, send: Send, values: tuple[str, ...]) -> None:
        self.shared = shared
        self.surface = shared.surface
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.values = values
        """What stands in the path where its template has names."""
        self.status = 0
        """Of the answer, once it has begun."""
        self.receive = receive
        self._send = send
        self._query: bytes = scope["query_string"]
        self._ended: HoldfastError | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._interrupted = False
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._listener:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    # ── the request ─────────────────────────────────────────────────────────────────────────────

    @property
    def query(self) -> dict[str, str]:
        try:
            text = self._query.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError:
            raise bad("The address's query is not made of names and values in UTF-8.") from None
        return dict(pairs)

    def accepts(self, content_type: bytes) -> bool:
        return content_type in self.headers.get(b"accept", b"")

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────

    async def wait(self, begin: Callable[[], Awaitable[T]], patience: Patience) -> T:
        """Wait for something that may be cancelled; raises `TimeoutError`, or whatever ended the exchange."""
        if self._ended:
            raise self._ended
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        self._waiting, self._interrupted = task, False
        patience.begin(self)
        try:
            return await begin()
        except asyncio.CancelledError:
            # As asyncio's own timeouts tell an interruption from a cancel that comes from elsewhere.
            if self._interrupted and task.uncancel() <= cancels:
                raise (self._ended or TimeoutError()) from None
            raise
        finally:
            patience.end(self)
            self._waiting = None

    def interrupt(self) -> None:
        """Let it stop waiting for what it waits for right now."""
        if self._waiting and not self._interrupted:
            self._interrupted = True
            self._waiting.cancel()

    def end(self, why: HoldfastError) -> None:
        """Let it wait for nothing any more: where it waits, or would wait next, it gets this error."""
        self._ended = self._ended or why
        self.interrupt()

    def notice_hang_up(self) -> None:
        """From now on a client that goes away ends the exchange. Only after the whole body was read."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.end(HungUp())

    # ── the answer ──────────────────────────────────────────────────────────────────────────────

    async def write(self, reply: Reply | Stream, date: Header) -> None:
        if isinstance(reply, Stream):
            await self._write_stream(reply, date)
            return
        self.status = reply.status
        headers = [date, *reply.headers]
        if reply.content_type:
            headers.append(reply.content_type)
        if reply.status not in (204, 304):
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": reply.body})

    async def _write_stream(self, stream: Stream, date: Header) -> None:
        self.status = 200
        headers = [date, EVENTS, _NO_STORE, _UNBUFFERED]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(stream.pieces) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})
