"""What a real gateway says that it holds, against what the kernel says from outside."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from holdfast.testing.models import open_model_server
from holdfast.testing.processes import PATIENCE, TOKEN, GatewayProcess
from holdfast.testing.replies import says
from holdfast.testing.scripted import until

pytestmark = pytest.mark.anyio

CHATS = 30


@asynccontextmanager
async def running(home: Path, **settings: str) -> AsyncIterator[tuple[GatewayProcess, aiohttp.ClientSession]]:
    """A gateway in a process of its own, and a client that keeps its connections."""
    gateway = GatewayProcess(home, {f"HOLDFAST_{name}": value for name, value in settings.items()})
    try:
        gateway.start()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(gateway.url, headers=headers) as client:
            yield gateway, client
    finally:
        gateway.kill()


async def ask(client: aiohttp.ClientSession, path: str) -> Any:
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json(content_type=None) if "json" in response.content_type else await response.text()


async def test_under_load_every_descriptor_has_its_owner(tmp_path: Path) -> None:
    async def chat(number: int) -> None:
        body = {"messages": [{"role": "user", "content": "hello"}]}
        async with client.post("/v1/chat/completions", json=body, headers={"X-Holdfast-Session": str(number)}) as reply:
            assert reply.status == 200

    async with (
        open_model_server(otherwise=says("hi", stall_after=0)) as models,
        running(
            tmp_path,
            MODEL__PROVIDER="openai",
            MODEL__NAME="scripted",
            MODEL__API_KEY="a key",
            MODEL__BASE_URL=models.base_url,
        ) as (gateway, client),
        anyio.create_task_group() as group,
    ):
        for number in range(CHATS):
            group.start_soon(chat, number)
        await models.until(lambda models: models.stalled == CHATS, within=PATIENCE)
        descriptors = (await ask(client, "/admin/status"))["descriptors"]
        folder = Path(f"/proc/{gateway.pid}/fd")
        outside = {link.name: os.readlink(link) for link in folder.iterdir()}  # noqa: PTH115
        metrics = await ask(client, "/metrics")
        models.resume()

    assert sorted(held["name"].split()[0] for held in descriptors) == sorted(outside)
    assert all(held["owner"] for held in descriptors)

    def of(owner: str) -> list[str]:
        return sorted(held["name"].partition(" ")[2] for held in descriptors if held["owner"] == owner)

    database = str(tmp_path.resolve() / "holdfast.db")
    assert of("the store") == sorted(target for target in outside.values() if target.startswith(database))
    assert {f"{database}-wal", f"{database}-shm", database} <= set(of("the store"))
    assert of("the data folder") == [str(tmp_path.resolve() / "gateway.lock")]

    endpoint = models.base_url.removesuffix("/v1")
    pool = of(f"socket pool {endpoint}")
    assert len(pool) == CHATS
    assert all(name.endswith(f"→ {endpoint.removeprefix('http://')}") for name in pool)

    here = f"socket 127.0.0.1:{gateway.port}"
    server = of("the web server")
    assert server[0] == f"{here} listening"
    assert len(server) == 1 + CHATS + 1, "a listener, a connection for each chat, and the one that asks"
    assert all(name.startswith(f"{here} → 127.0.0.1:") for name in server[1:])

    assert "epoll" in of("the event loop")
    assert not [name for name in of("process") if name.startswith("socket")]

    counts = Counter(held["owner"].replace(endpoint, "").strip() for held in descriptors)
    for owner, count in counts.items():
        assert f'holdfast_descriptors{{owner="{owner}"}} {count:.1f}\n' in metrics
    assert metrics.count("\nholdfast_descriptors{") == len(counts)


async def test_what_is_closed_is_not_told_any_more(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, client):
        for _ in range(3):  # connections that come and go use the same numbers again
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(_knock, gateway.port)
            await until(lambda: len(_numbers(gateway)) < 40, within=PATIENCE)
        descriptors = (await ask(client, "/admin/status"))["descriptors"]
        outside = _numbers(gateway)
    assert sorted(held["name"].split()[0] for held in descriptors) == outside
    assert [held["owner"] for held in descriptors].count("the web server") == 2


def _numbers(gateway: GatewayProcess) -> list[str]:
    return sorted(link.name for link in Path(f"/proc/{gateway.pid}/fd").iterdir())


async def _knock(port: int) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await stream.receive()
