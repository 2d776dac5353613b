"""The gateway with its web server, and clients that wait there as people's programs do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.api.server import open_listener, open_server
from holdfast.api.surface import Reloaded, Surface
from holdfast.core.ledger import Ledger
from holdfast.core.settings import ServerSettings, Settings
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import Script

TOKEN = "the-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Served(msgspec.Struct, frozen=True):
    bench: Bench
    url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A program with connections of its own."""
        async with aiohttp.ClientSession(self.url, headers=HEADERS) as client:
            yield client


@asynccontextmanager
async def open_served(folder: Path, script: Script, settings: Settings = Settings()) -> AsyncIterator[Served]:  # noqa: B008
    """Leaving the block is the end of the process: the server leaves first."""
    server = ServerSettings(port=0, connections=settings.server.connections)
    settings = msgspec.structs.replace(settings, server=server)
    async with open_bench(folder, script, settings=settings) as bench:
        surface = Surface(
            gateway=bench.gateway,
            settings=settings,
            token=TOKEN,
            ledger=Ledger(),
            clock=bench.clock,
            ids=bench.ids,
            model_why="",
            version="1.2.3",
            started=bench.clock.now(),
            reload=_nothing_to_reload,
        )
        with open_listener(settings.server) as listener:
            async with open_server(surface, listener) as address:
                yield Served(bench, address.url)


async def _nothing_to_reload() -> Reloaded:
    return Reloaded([], [])


def asking(text: str, session: str = "", *, stream: bool = False) -> dict[str, Any]:
    """What a program that speaks OpenAI's language sends."""
    headers = {"X-Holdfast-Session": session} if session else {}
    return {"json": {"messages": [{"role": "user", "content": text}], "stream": stream}, "headers": headers}
