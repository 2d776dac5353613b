"""One request and its answer, on raw ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from holdfast.api.errors import HungUp, bad
from holdfast.api.metrics import Metrics
from holdfast.api.replies import EVENTS, Header, Reply, Stream
from holdfast.api.surface import Surface
from holdfast.core.errors import HoldfastError

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NO_STORE: Header = (b"cache-control", b"no-store")
_UNBUFFERED: Header = (b"x-accel-buffering", b"no")  # a proxy in between must not collect events


class Exchange:
    """What an endpoint sees of one request. It ends early when the client hangs up or the gateway leaves."""

    __slots__ = (
        *("_ended", "_listener", "_query", "_send", "_timeout"),
        *("headers", "metrics", "receive", "status", "surface", "values"),
    )

    def __init__(
        self, surface: Surface, metrics: Metrics, scope: Scope, receive: Receive, send: Send, values: tuple[str, ...]
    ) -> None:
        self.surface = surface
        self.metrics = metrics
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.values = values
        """What stands in the path where its template has names."""
        self.status = 0
        """Of the answer, once it has begun."""
        self.receive = receive
        self._send = send
        self._query: bytes = scope["query_string"]
        self._ended: HoldfastError | None = None
        self._timeout: asyncio.Timeout | None = None
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

    async def wait(self, coming: Awaitable[T], seconds: float | None) -> T:
        """Wait for something that may be cancelled; raises `TimeoutError`, or whatever ended the exchange."""
        try:
            async with asyncio.timeout(0 if self._ended else seconds) as self._timeout:
                return await coming
        except TimeoutError:
            if self._ended:
                raise self._ended from None
            raise
        finally:
            self._timeout = None

    def end(self, why: HoldfastError) -> None:
        """Let it wait for nothing any more: where it waits, or would wait next, it gets this error."""
        self._ended = self._ended or why
        if self._timeout and not self._timeout.expired():
            self._timeout.reschedule(0)

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
