"""Connection pools to model servers: one per endpoint, shared by all who lease it, free of credentials.

A lease is the right to make requests; it costs nothing until the first one. The pool behind it opens
when it is needed and lives in a task of its own. It closes when nobody has held a lease for a while,
or when another endpoint needs its place and no request is under way in it (a lease that outlives its
pool just opens it again). Closing goes by time: no traffic is needed to trigger it.

All of it belongs to the event loop on which it was opened; `home.py` lets others ask from there.
"""

import asyncio
import io
import math
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from weakref import WeakSet

import aiohttp
import structlog
from anyio import TASK_STATUS_IGNORED, CancelScope, Lock, Semaphore, create_task_group, current_time, sleep_forever
from anyio.abc import TaskGroup, TaskStatus
from yarl import URL

from holdfast.core.ledger import Ledger
from holdfast.core.scopes import plain_errors

log = structlog.get_logger(__name__)

_CLOSING = 5.0
"""How long a pool's sockets may take to close."""

_PIECEMEAL = 1 << 20
"""From this size on a body is written in pieces, so that it does not hold up the loop."""


class Transport:
    """One endpoint: its pool while that is open, and how much it is used."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.leases = 0
        self.in_flight = 0
        self.opening = Lock()
        self._pool: aiohttp.ClientSession | None = None
        self._stay: CancelScope | None = None

    def __repr__(self) -> str:
        state = "open" if self.pool else "closed"
        return f"<Transport {self.endpoint}: {state}, {self.leases} leased, {self.in_flight} in flight>"

    @property
    def pool(self) -> aiohttp.ClientSession | None:
        """The pool, unless it is closed or about to be."""
        return None if self._stay is None or self._stay.cancel_called else self._pool

    def opened(self, pool: aiohttp.ClientSession, stay: CancelScope) -> None:
        """The pool is there, until `stay` is cancelled or its deadline passes."""
        self._pool, self._stay = pool, stay

    def stay_until(self, deadline: float) -> None:
        if self._stay:
            self._stay.deadline = deadline

    def make_room(self) -> None:
        if self._stay:
            self._stay.cancel()


class _Sockets:
    """The sockets of one pool, as long as they are open."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def make(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    def descriptors(self) -> list[int]:
        return [number for made in self._made if (number := made.fileno()) >= 0]


class Lease:
    """The right to make requests to one endpoint, until the block that took it is left."""

    def __init__(self, transports: "Transports", transport: Transport) -> None:
        self._transports = transports
        self._transport = transport
        self.active = True

    def __repr__(self) -> str:
        return f"<Lease {'of' if self.active else 'released from'} {self._transport!r}>"

    @asynccontextmanager
    async def request(
        self, method: str, url: URL, *, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout, body: bytes = b""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and lend its response; one not read to its end takes its connection with it."""
        self._transports.check_loop()
        if not self.active:
            raise RuntimeError("this lease was released")
        transport = self._transport
        transport.in_flight += 1  # before opening: from here on nobody closes the pool under us
        try:
            pool = transport.pool or await self._transports.open(transport)
            # Redirects are not followed: they would carry the conversation to where nobody sent it.
            response = await pool.request(
                method,
                url,
                data=(body if len(body) < _PIECEMEAL else io.BytesIO(body)) if body else None,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )
            try:
                yield response
            finally:
                response.release()
        finally:
            transport.in_flight -= 1
            self._transports.settle(transport)


class Transports:
    """The endpoints in use, least recently used first."""

    def __init__(self, group: TaskGroup, ledger: Ledger, limit: int, idle: float, tls: ssl.SSLContext | None) -> None:
        self._group = group
        self._ledger = ledger
        self._limit = limit
        self._idle = idle
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, Transport] = {}
        self._places = Semaphore(limit)

    def __len__(self) -> int:
        """How many pools are open."""
        return self._limit - self._places.value

    def __repr__(self) -> str:
        return f"<Transports {len(self)}/{self._limit}: {', '.join(map(repr, self._known.values())) or 'none'}>"

    @asynccontextmanager
    async def lease(self, base_url: str) -> AsyncIterator[Lease]:
        self.check_loop()
        endpoint = str(URL(base_url).origin())
        transport = self._known.setdefault(endpoint, Transport(endpoint))
        transport.leases += 1
        transport.stay_until(math.inf)
        lease = Lease(self, transport)
        try:
            yield lease
        finally:
            lease.active = False
            transport.leases -= 1
            self.settle(transport)

    def check_loop(self) -> None:
        """Nothing here is ever bound to a foreign loop, on which it would outlive its owner or break."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "these connections belong to another event loop; ask from here through holdfast.models.home"
            )

    async def open(self, transport: Transport) -> aiohttp.ClientSession:
        """The transport's pool; waits for a place when all are taken by requests under way."""
        async with transport.opening:
            if not transport.pool:
                if not self._places.value:
                    self._make_room()
                await self._group.start(self._keep, transport)
            pool = transport.pool
            assert pool, "a pool with a request in flight stays open"
            return pool

    def settle(self, transport: Transport) -> None:
        """Decide how long a transport stays, now that a request or a lease of it has ended."""
        if transport.in_flight:
            return
        self._known[transport.endpoint] = self._known.pop(transport.endpoint, transport)
        if not transport.leases:
            transport.stay_until(current_time() + self._idle)
        if self._places.statistics().tasks_waiting:
            self._make_room()
        self._forget_unused(transport)

    def _forget_unused(self, transport: Transport) -> None:
        in_use = transport.leases or transport.in_flight or transport.pool
        if not in_use and self._known.get(transport.endpoint) is transport:
            del self._known[transport.endpoint]

    def _make_room(self) -> None:
        """Let go of the least recently used pool with nothing under way: unleased ones first."""
        quiet = [transport for transport in self._known.values() if transport.pool and not transport.in_flight]
        if quiet:
            min(quiet, key=lambda transport: transport.leases > 0).make_room()

    async def _keep(self, transport: Transport, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """A pool's whole life."""
        async with self._places:
            sockets = _Sockets()
            connector = aiohttp.TCPConnector(
                limit=0, ssl=self._tls or True, keepalive_timeout=self._idle, socket_factory=sockets.make
            )
            pool = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # a proxy variable or a .netrc meant for others must not reroute conversations
                timeout=aiohttp.ClientTimeout(total=None),
            )
            with self._ledger.enter("socket pool", transport.endpoint, holds=sockets.descriptors):
                try:
                    with CancelScope() as stay:
                        transport.opened(pool, stay)
                        task_status.started()
                        await sleep_forever()
                finally:
                    await _close(pool, transport.endpoint)
        self._forget_unused(transport)


async def _close(pool: aiohttp.ClientSession, endpoint: str) -> None:
    """Close a pool in time; its failure is nobody else's business."""
    with CancelScope(shield=True, deadline=current_time() + _CLOSING) as bound:
        try:
            await pool.close()
        except Exception:
            log.exception("a socket pool failed to close", endpoint=endpoint)
    if bound.cancelled_caught:
        log.error("closing a socket pool took too long and was cut short", endpoint=endpoint, seconds=_CLOSING)


@asynccontextmanager
async def open_transports(
    ledger: Ledger, *, limit: int = 16, idle: float = 60.0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Transports]:
    """At most `limit` pools; one that nobody leases closes after `idle` seconds.

    All TLS endpoints share one context: the one that aiohttp makes for the process, or `tls`.
    """
    with plain_errors():
        async with create_task_group() as group:
            try:
                yield Transports(group, ledger, limit, idle, tls)
            finally:
                group.cancel_scope.cancel()
