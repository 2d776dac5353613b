"""Without descriptors: accepting pauses, those who are there are served, nothing is lost, and it goes on by itself."""

import json
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from holdfast.api.connection import BEYOND
from holdfast.testing.models import ScriptedModelServer, open_model_server
from holdfast.testing.processes import TOKEN, GatewayProcess
from holdfast.testing.replies import says
from holdfast.testing.scripted import until

pytestmark = pytest.mark.anyio

DESCRIPTORS = 64
CROWD = 100
"""Clients that connect and ask nothing: more than there are descriptors."""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
PAUSES = "accepting pauses"


@asynccontextmanager
async def open_process(home: Path, model: ScriptedModelServer, loop: str) -> AsyncIterator[GatewayProcess]:
    """A gateway that never has more than so many descriptors, on either loop."""
    settings = {
        "HOLDFAST_MODEL__PROVIDER": "custom",
        "HOLDFAST_MODEL__NAME": "scripted",
        "HOLDFAST_MODEL__BASE_URL": model.base_url,
        "HOLDFAST_MODEL__ATTEMPTS": "2",
    }
    if loop == "asyncio":
        (home / "uvloop.py").write_text("raise ImportError")
        settings["PYTHONPATH"] = os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")])
    gateway = GatewayProcess(home, settings)
    try:
        gateway.launch()
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))  # long before it looks
        while not await anyio.to_thread.run_sync(lambda: gateway.ready):
            assert gateway.alive, gateway.output
        yield gateway
        assert await anyio.to_thread.run_sync(gateway.terminate) == 0
        assert "Traceback" not in gateway.output
    finally:
        gateway.kill()


@contextmanager
def crowd(gateway: GatewayProcess) -> Iterator[Callable[[], None]]:
    """Clients that ask nothing; what it gives makes them leave."""
    with ExitStack() as stack:
        for _ in range(CROWD):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
        yield stack.close


@asynccontextmanager
async def open_client(gateway: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    """Someone with one connection, which is there already."""
    one = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(gateway.url, headers=HEADERS, connector=one) as client:
        await talk(client, "here")
        yield client


def descriptors(gateway: GatewayProcess) -> int:
    return len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))


async def busy(gateway: GatewayProcess) -> float:
    """The share of a core that it takes, over a second."""

    def ticks() -> int:
        fields = Path(f"/proc/{gateway.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    await anyio.sleep(1)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK")


async def say(client: aiohttp.ClientSession, chat: str, text: str) -> int:
    """Have a message accepted; its answer is looked for later."""
    body = {"text": text, "id": text.replace(" ", "-")}
    async with client.post(f"/api/chats/web/{chat}/messages", json=body) as response:
        await response.read()  # or its connection would be given up
        return response.status


async def talk(client: aiohttp.ClientSession, chat: str) -> list[str]:
    async with client.get(f"/api/chats/web/{chat}") as response:
        messages: list[dict[str, Any]] = (await response.json())["messages"]
    return [f"{message['role']}: {message['text']}" for message in messages]


async def answered(client: aiohttp.ClientSession, chat: str, count: int) -> list[str]:
    """The conversation, when it has that many answers."""
    with anyio.fail_after(10):
        while True:
            lines = await talk(client, chat)
            if sum(line.startswith("assistant") for line in lines) >= count:
                return lines
            await anyio.sleep(0.02)


@contextmanager
def knocking(gateway: GatewayProcess) -> Iterator[socket.socket]:
    """A client that has sent a message on a connection which nobody has accepted yet."""
    body = json.dumps({"text": "let me in", "id": "let-me-in"})
    head = f"POST /api/chats/web/there/messages HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {TOKEN}\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        yield client


async def status(client: socket.socket) -> int:
    return int((await anyio.to_thread.run_sync(client.recv, 1000)).split()[1])


@pytest.mark.proves("case 56")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_clients_never_take_the_descriptors_that_the_gateway_itself_needs(tmp_path: Path, loop: str) -> None:
    async with (
        open_model_server() as model,
        open_process(tmp_path, model, loop) as gateway,
        open_client(gateway) as client,
    ):
        own = descriptors(gateway) - 1  # but for the client's
        with crowd(gateway) as leave, knocking(gateway) as late:
            await until(lambda: PAUSES in gateway.output)
            await until(lambda: abs(descriptors(gateway) - own - DESCRIPTORS // 2) <= 2)
            assert await say(client, "here", "hello") == 202
            assert await answered(client, "here", 1) == ["user: hello", "assistant: You said: hello"]
            assert model.connected == 1, "for that, too, there was a descriptor"
            assert await busy(gateway) < 0.3
            assert await talk(client, "there") == []
            leave()
            assert await status(late) in (202, 503)  # it may be told to come back, as some of the crowd are still here
        assert await say(client, "there", "let me in") == 202  # the same message
        assert await answered(client, "there", 1) == ["user: let me in", "assistant: You said: let me in"]
        assert gateway.output.count(PAUSES) == 1
        assert f'"descriptors": {DESCRIPTORS}, "connections": {DESCRIPTORS // 2 - BEYOND}' in gateway.output


@pytest.mark.proves("case 56")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_at_real_exhaustion_accepting_pauses_nothing_is_lost_and_it_recovers(tmp_path: Path, loop: str) -> None:
    async with (
        open_model_server(says("slowly", stall_after=0)) as model,
        open_process(tmp_path, model, loop) as gateway,
        open_client(gateway) as client,
    ):
        assert await say(client, "here", "before") == 202
        await model.until(lambda model: model.stalled == 1)
        most = descriptors(gateway) + 4
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (most, DESCRIPTORS))  # as if the rest were in use
        with crowd(gateway) as leave, knocking(gateway) as late:
            await until(lambda: PAUSES in gateway.output)
            await until(lambda: descriptors(gateway) == most)
            assert await say(client, "elsewhere", "needs a connection") == 202
            _, failure = await answered(client, "elsewhere", 1)
            assert "too many files and connections open" in failure
            model.resume()
            assert await answered(client, "here", 1) == ["user: before", "assistant: slowly"]
            assert await busy(gateway) < 0.3
            assert await talk(client, "there") == []
            leave()
            assert await status(late) == 202
        assert await answered(client, "there", 1) == ["user: let me in", "assistant: You said: let me in"]
        assert await say(client, "elsewhere", "again") == 202
        _, *later = await answered(client, "elsewhere", 2)
        assert later == [failure, "user: again", "assistant: You said: again"]
        assert gateway.output.count(PAUSES) == 1
        assert await anyio.to_thread.run_sync(lambda: gateway.ready)
