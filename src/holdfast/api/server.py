"""The web server: a socket of ours, uvicorn's HTTP on it, and an end that waits for nobody."""

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import anyio
import structlog
import uvicorn

from holdfast.api.connection import BEYOND, Connection, Connections
from holdfast.api.routes import Application
from holdfast.api.surface import Address, Surface
from holdfast.core.errors import SettingsError
from holdfast.core.scopes import plain_errors
from holdfast.core.settings import ServerSettings

log = structlog.get_logger(__name__)

BACKLOG = 2048
KEEP_ALIVE = 75
"""How long an idle connection is kept, in seconds: longer than clients keep theirs, so that they end it."""
GRACE = 2.0
"""How long clients may take to read their last words when the server leaves."""
EXHAUSTED_WAIT = 0.5
"""When accepting is tried again after it failed, for want of descriptors as a rule, unless a client leaves first."""
TELL_EVERY = 60.0
"""How often the log is told that accepting pauses: at the limit it does so with every client that comes."""
LAST_GRACE = 0.5
"""For each of the steps after that: connections are aborted, then tasks are cancelled."""


@asynccontextmanager
async def open_server(surface: Surface, listener: socket.socket) -> AsyncIterator[Address]:  # PROCESS
    """Serve until the block is left; then every open request is let go of, which takes at most `GRACE` and a bit.

    It takes no signals.
    """
    application = Application(surface)
    connections = Connections(_most_connections(surface.settings.server.connections))
    config = uvicorn.Config(
        cast(Any, application),
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        workers=1,  # said, or it would look for the number in the environment
        log_config=None,
        log_level="error",  # what a stranger sends is not worth a warning
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    config.load()
    address = Address(surface.settings.server.host, listener.getsockname()[1])
    with (
        surface.ledger.enter(
            "listener",
            f"{address.host}:{address.port}",
            since=surface.clock.now(),
            holds=lambda: [listener.fileno(), *connections.descriptors()],
        ),
        plain_errors(),
    ):
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_accept, listener, connections, partial(Connection, config, connections))
                try:
                    yield address
                finally:
                    group.cancel_scope.cancel()
        finally:
            listener.close()
            with anyio.CancelScope(shield=True):
                await _let_go(application, connections)


def _most_connections(wanted: int) -> int:
    """Clients get half of the descriptors at most: the store, the log, models and tools need theirs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if limit == resource.RLIM_INFINITY else min(wanted, max(limit // 2 - BEYOND, 1))
    if most < wanted:
        log.info("there are descriptors for fewer connections", descriptors=limit, connections=most, wanted=wanted)
    return most


async def _accept(listener: socket.socket, connections: Connections, make: Callable[[], Connection]) -> None:
    """Take clients in while there is room; the others wait with the system, which loses nothing they send."""
    loop = asyncio.get_running_loop()
    told = -TELL_EVERY

    def tell(why: str) -> None:
        nonlocal told
        if loop.time() - told >= TELL_EVERY:
            told = loop.time()
            log.warning("accepting pauses", cause=why, connections=len(connections))

    async with anyio.create_task_group() as group:
        while True:
            if connections.full:
                tell("too many connections")
                await connections.room()
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
            except ConnectionError:
                continue  # that client left while it waited
            except OSError as error:
                tell(str(error))
                with anyio.move_on_after(EXHAUSTED_WAIT):
                    await connections.fewer()
            else:
                connections.arriving += 1
                group.start_soon(_take_in, client, connections, make)


async def _take_in(client: socket.socket, connections: Connections, make: Callable[[], Connection]) -> None:
    try:
        client.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(make, client)
    except OSError as error:  # with this client; the others are accepted as ever
        client.close()
        log.warning("a client could not be taken in", cause=str(error))
    finally:
        connections.arriving -= 1
        connections.lost()


async def _let_go(application: Application, connections: Connections) -> None:
    application.leave()
    for connection in connections.all():
        connection.shutdown()
    with anyio.move_on_after(GRACE):
        await connections.gone()
    for connection in connections.all():
        log.warning("a client does not let go", client=repr(connection.client))
        connection.transport.abort()
    if connections.tasks:
        await asyncio.wait(connections.tasks, timeout=LAST_GRACE)
    for task in list(connections.tasks):
        task.cancel()
    if connections.tasks:
        await asyncio.wait(connections.tasks, timeout=LAST_GRACE)
    with anyio.move_on_after(LAST_GRACE):
        await connections.gone()


@contextmanager
def open_listener(settings: ServerSettings) -> Iterator[socket.socket]:
    """A socket that listens. Looking up the name may block, which at the start is nobody's loss.

    Raises `SettingsError` when it can't listen where the settings say.
    """
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise _no_such_host(host) from None
    family, _, _, _, address = found[0]
    # The protocol must be said: asyncio turns off the delay of small packets only where it sees TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise _cannot_listen(error, host, port) from None
        yield listener


def _cannot_listen(error: OSError, host: str, port: int) -> SettingsError:
    other = "choose another with [server] port or HOLDFAST_SERVER__PORT"
    match error.errno:
        case errno.EADDRINUSE:
            return SettingsError(f"Port {port} of {host} is in use: end the program that uses it, or {other}.")
        case errno.EACCES:
            return SettingsError(f"Port {port} is reserved for the system's own programs; {other}.")
        case errno.EADDRNOTAVAIL:
            return _no_such_host(host)
    return SettingsError(f"Can't listen on {host}, port {port}: {error.strerror}; change [server] host or port.")


def _no_such_host(host: str) -> SettingsError:
    return SettingsError(f'This machine has no address "{host}"; change [server] host, for example to 127.0.0.1.')
