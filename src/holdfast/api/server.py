"""The web server: a socket of ours, uvicorn's HTTP on it, and an end that waits for nobody."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import anyio
import structlog
import uvicorn

from holdfast.api.connection import Connection, Connections
from holdfast.api.routes import Application
from holdfast.api.surface import Address, Surface
from holdfast.core.errors import SettingsError
from holdfast.core.settings import ServerSettings

log = structlog.get_logger(__name__)

BACKLOG = 2048
KEEP_ALIVE = 75
"""How long an idle connection is kept, in seconds: longer than clients keep theirs, so that they end it."""
GRACE = 2.0
"""How long clients may take to read their last words when the server leaves."""
LAST_GRACE = 0.5
"""For each of the steps after that: connections are aborted, then tasks are cancelled."""


@asynccontextmanager
async def open_server(surface: Surface, listener: socket.socket) -> AsyncIterator[Address]:  # PROCESS
    """Serve until the block is left; then every open request is let go of, which takes at most `GRACE` and a bit.

    It takes no signals.
    """
    application = Application(surface)
    connections = Connections(surface.settings.server.connections)
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
    with surface.ledger.enter(
        "listener",
        f"{address.host}:{address.port}",
        since=surface.clock.now(),
        holds=lambda: [listener.fileno(), *connections.descriptors()],
    ):
        accepting = await asyncio.get_running_loop().create_server(
            partial(Connection, config, connections), sock=listener, backlog=BACKLOG
        )
        try:
            yield address
        finally:
            with anyio.CancelScope(shield=True):
                accepting.close()
                await _let_go(application, connections)
                with anyio.move_on_after(LAST_GRACE):
                    await accepting.wait_closed()


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
