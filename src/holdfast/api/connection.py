"""One client's connection: uvicorn's, with limits on what a client may hold without asking anything."""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.api import errors
from holdfast.api.errors import Refusal
from holdfast.api.exchange import Receive, Scope, Send

HEAD_BYTES = 64 * 1024
"""The most that a request's line and headers may be."""
REQUEST_TIMEOUT = 60.0
"""How long a client may take to send its first request, and from the beginning of a request to its end."""
STALL_TIMEOUT = 60.0
"""How long a client may leave unread what was sent to it."""
CROWDED_WAIT = 5.0
"""When to come back, for a client beyond the limit of connections; it may not take longer than this to ask, either."""
BEYOND = 8
"""How many clients beyond the limit may be told so at once. The next ones wait to be accepted."""

_PROBES = ("/healthz", "/readyz")


class Connections(ServerState):
    """The connections that are open, and the word when there are fewer."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.arriving = 0
        """Accepted, and about to be among them."""
        self._fewer = asyncio.Event()

    def lost(self) -> None:
        self._fewer.set()

    def __len__(self) -> int:
        return len(self.connections) + self.arriving

    @property
    def full(self) -> bool:
        return len(self) >= self.most + BEYOND

    def all(self) -> list["Connection"]:
        return cast("list[Connection]", list(self.connections))

    def descriptors(self) -> list[int]:
        sockets = (connection.transport.get_extra_info("socket") for connection in self.all())
        return [socket.fileno() for socket in sockets if socket]

    async def room(self) -> None:
        """Until there is room for one more."""
        while self.full:
            await self.fewer()

    async def gone(self) -> None:
        """Until none is left."""
        while self.connections:
            await self.fewer()

    async def fewer(self) -> None:
        """Until one has left."""
        self._fewer.clear()
        await self._fewer.wait()


class Connection(HttpToolsProtocol):
    """Beyond the limit of connections, a client is told so and let go; the others are served as ever."""

    def __init__(self, config: Config, server_state: Connections) -> None:
        super().__init__(config, server_state, app_state={})
        self._all = server_state
        self._in_head = False
        self._incomplete = False
        """A request has begun to arrive."""
        self._head_bytes = 0
        self._request_timeout = REQUEST_TIMEOUT
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._all.most:
            self.app = cast(Any, _Crowded(self.app))
            self._request_timeout = CROWDED_WAIT
        self._request_timer = self.loop.call_later(self._request_timeout, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._request_timer, self._stall_timer):
            if timer:
                timer.cancel()
        self._request_timer = self._stall_timer = None
        self._all.lost()

    # ── a request arrives ───────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._incomplete:
            self._wait_for_more(len(data))
        elif self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._incomplete = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._incomplete = False
        super().on_message_complete()

    def _wait_for_more(self, received: int) -> None:
        if self._in_head:
            self._head_bytes += received
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self._refuse(Refusal(431, f"The request's headers are larger than {HEAD_BYTES} bytes."))
                return
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(self._request_timeout, self._give_up)

    def _give_up(self) -> None:
        """The request did not arrive in time; a client that has sent nothing at all is owed no answer."""
        cycle = self.cycle
        if self._incomplete and (self._in_head or (cycle and not cycle.response_started)):
            within = f"{self._request_timeout:g} s"
            self._refuse(Refusal(408, f"The request did not arrive within {within}.", code="timeout"))
        else:
            self.transport.abort()

    # ── an answer leaves ────────────────────────────────────────────────────────────────────────

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer:
            self._stall_timer.cancel()
            self._stall_timer = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's word for it
        """For what is not HTTP at all; no endpoint ever sees it."""
        self._refuse(Refusal(400, "This is not a valid HTTP request.", code="invalid_http"))

    def _refuse(self, refusal: Refusal) -> None:
        reply = errors.reply(refusal)
        head = (
            f"HTTP/1.1 {reply.status} \r\ncontent-type: application/json\r\n"
            f"content-length: {len(reply.body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + reply.body)
        self.transport.close()


class _Crowded:
    """What a connection beyond the limit gets to talk to. Probes go through: a busy gateway is not a dead one."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        refusal = Refusal(
            503,
            "Too many connections are open; try again in a moment.",
            code="too_many_connections",
            after=CROWDED_WAIT,
        )
        reply = errors.reply(refusal)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *reply.headers]
        headers.append((b"content-length", b"%d" % len(reply.body)))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
