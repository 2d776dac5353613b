"""Whoever waits for a turn hears of its end, however it ends: over HTTP, on the page, in the terminal."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from holdfast.cli.address import Address
from holdfast.cli.client import GatewayAway, open_client
from holdfast.core.keys import ChatKey
from holdfast.core.settings import Secret
from holdfast.testing.gateways import Bench
from holdfast.testing.scripted import Gate, until

from .web import TOKEN, Served, asking, open_served

pytestmark = pytest.mark.anyio

AWAY = "the gateway is away"

# ── those who wait; what they hear ──────────────────────────────────────────────────────────────


async def request(served: Served) -> str:
    async with served.client() as client, client.post("/v1/chat/completions", **asking("hello", "a")) as response:
        return await response.text()


async def stream(served: Served) -> str:
    wanted = asking("hello", "a", stream=True)
    async with served.client() as client, client.post("/v1/chat/completions", **wanted) as response:
        return await response.text()


async def single_request(served: Served) -> str:
    async with served.client() as client, client.post("/v1/chat/completions", **asking("hello")) as response:
        return await response.text()


async def page(served: Served) -> str:
    body, headers = {"text": "hello", "id": "1"}, {"Accept": "text/event-stream"}
    async with (
        served.client() as client,
        client.post("/api/chats/web/a/messages", json=body, headers=headers) as response,
    ):
        return await response.text()


async def onlooker(served: Served) -> str:
    body = {"text": "hello", "id": "1"}
    async with served.client() as client:
        async with client.post("/api/chats/web/a/messages", json=body) as response:
            assert response.status == 202
        async with client.get("/api/chats/web/a/events", headers={"Accept": "text/event-stream"}) as response:
            return await response.text()


async def terminal(served: Served) -> str:
    async with open_client(Address(served.url, Secret(TOKEN))) as client:
        try:
            return (await client.settle("a", "hello", "1")).text
        except GatewayAway:
            return AWAY


WAITERS: dict[str, Callable[[Served], Awaitable[str]]] = {
    "a request in a session": request,
    "a stream": stream,
    "a single request": single_request,
    "the page": page,
    "an onlooker": onlooker,
    "the terminal": terminal,
}

# ── what ends the turn ──────────────────────────────────────────────────────────────────────────


async def stop(bench: Bench, chat: ChatKey) -> None:
    assert bench.gateway.stop(chat)


async def stop_by_command(bench: Bench, chat: ChatKey) -> None:
    await bench.say("/stop", chat)


async def begin_anew(bench: Bench, chat: ChatKey) -> None:
    await bench.say("/new", chat)


async def end_by_operator(bench: Bench, chat: ChatKey) -> None:
    session = bench.gateway.awake[chat].session
    assert session
    await bench.gateway.end(session.id)


async def nothing(bench: Bench, chat: ChatKey) -> None:
    """The process ends, in a hurry."""


EVENTS: dict[str, Callable[[Bench, ChatKey], Awaitable[None]]] = {
    "stop": stop,
    "/stop": stop_by_command,
    "/new": begin_anew,
    "operator": end_by_operator,
    "shutdown": nothing,
}


PAIRS = [
    (waiter, event)
    for waiter in WAITERS
    for event in EVENTS
    if waiter != "a single request" or event in ("stop", "shutdown")  # nothing can be said to it
]


@pytest.mark.proves("invariant 16")
@pytest.mark.parametrize(("waiter", "event"), PAIRS)
async def test_who_waits_for_a_turn_hears_of_its_end_within_a_second(tmp_path: Path, waiter: str, event: str) -> None:
    gate, heard = Gate(), list[tuple[str, float]]()

    async def wait(served: Served) -> None:
        heard.append((await WAITERS[waiter](served), time.monotonic()))

    async with anyio.create_task_group() as group, open_served(tmp_path, gate) as served:
        group.start_soon(wait, served)
        await gate.has(waiting=1)
        (chat,) = served.bench.gateway.awake
        mail = served.bench.gateway.attach(chat)
        assert mail
        await until(lambda: bool(mail._waiters))
        began = time.monotonic()
        await EVENTS[event](served.bench, chat)
        if event != "shutdown":
            await until(lambda: bool(heard))
    ((text, when),) = heard
    assert when - began < 1
    assert any(word in text for word in (("is stopping", AWAY) if event == "shutdown" else ("(Stopped",)))
