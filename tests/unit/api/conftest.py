"""The real server over the real gateway and store, on a scripted model, with a real client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.api.server import open_listener, open_server
from holdfast.api.surface import Address, Surface
from holdfast.core.ledger import Ledger
from holdfast.core.settings import LimitSettings, ServerSettings, Settings
from holdfast.reloading import Reloading
from holdfast.testing.gateways import Bench, open_bench
from holdfast.testing.scripted import Script, echo

TOKEN = "the-token"


@dataclass
class Api:
    """A server that is up, and short ways to ask it."""

    address: Address
    bench: Bench
    surface: Surface
    client: aiohttp.ClientSession

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        return await self.ask("POST", path, json=body, **options)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """The status and what came with it, decoded where it is JSON."""
        async with self.client.request(method, path, **options) as response:
            body = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(body) if is_json else body.decode()

    async def chat(self, text: str, session: str = "", **body: Any) -> tuple[int, Any]:
        headers = {"X-Holdfast-Session": session} if session else {}
        messages = [{"role": "user", "content": text}]
        return await self.post("/v1/chat/completions", {"messages": messages, **body}, headers=headers)

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection, for what no client library would send."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def _gateway(
    folder: Path, script: Script, settings: Settings, reread: Callable[[], Settings]
) -> AsyncIterator[tuple[Bench, Surface]]:
    async with open_bench(folder, script, settings=settings) as bench:
        yield (
            bench,
            Surface(
                gateway=bench.gateway,
                settings=settings,
                token=TOKEN,
                ledger=Ledger(),
                clock=bench.clock,
                ids=bench.ids,
                model_why="a test says so",
                version="1.2.3",
                started=bench.clock.now(),
                reload=Reloading(settings, reread, bench.gateway.change).reload,
            ),
        )


Serve = Callable[..., AbstractAsyncContextManager[Api]]


@asynccontextmanager
async def open_own_server(surface: Surface) -> AsyncIterator[Address]:
    """A server that listens where its own settings say."""
    with open_listener(surface.settings.server) as listener:
        async with open_server(surface, listener) as address:
            yield address


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Opens a server: `async with serve(script, server={…}, limits={…}) as api`."""

    @asynccontextmanager
    async def opening(
        script: Script = echo,
        *,
        server: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        reread: Callable[[Settings], Settings] = lambda settings: settings,
    ) -> AsyncIterator[Api]:
        settings = Settings(
            server=ServerSettings(**{"port": 0, **(server or {})}), limits=LimitSettings(**(limits or {}))
        )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            _gateway(tmp_path, script, settings, lambda: reread(settings)) as (bench, surface),
            open_own_server(surface) as address,
            aiohttp.ClientSession(address.url, headers=headers) as client,
        ):
            yield Api(address, bench, surface, client)

    return opening
