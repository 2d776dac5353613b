"""The client of the gateway's API, against a real server that behaves and one that does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from holdfast.cli import client as client_module
from holdfast.cli.address import Address
from holdfast.cli.client import (
    About,
    Accepted,
    CommandHelp,
    Conversation,
    GatewayAway,
    GatewayClient,
    ModelInUse,
    PastMessage,
    PastSession,
    Question,
    RequestRefused,
    open_client,
)
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.events import Answered, Started, Text
from holdfast.core.settings import Secret
from holdfast.testing.processes import free_port

pytestmark = pytest.mark.anyio

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def open_gateway(handler: Handler) -> AsyncIterator[GatewayClient]:
    """A server that answers everything with `handler`, and a client of it."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with open_client(Address(f"http://127.0.0.1:{port}", Secret("sesame"))) as client:
            yield client
    finally:
        await runner.cleanup()


def answering(body: str, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(
            text=body, status=status, headers={name.replace("_", "-"): headers[name] for name in headers}
        )

    return handle


def streaming(*chunks: bytes) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return handle


async def test_a_message_is_posted_with_the_token_and_its_events_come_back() -> None:
    requests = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append((request.method, request.path, request.headers, await request.json()))
        return await streaming(
            b'data: {"type":"accepted","id":"m1"}\n\ndata: {"type":"star',
            b'ted","session":"s"}\n\n: alive\n\ndata: {"type":"text","text":"\xc3',
            b'\xa4"}\n\ndata: {"type":"something new","x":1}\n\n',
            b'data: {"type":"answer","id":"a","text":"\xc3\xa4","outcome":"ok","new":1}\n\ndata: {"type":"text"',
        )(request)

    async with open_gateway(handle) as client:
        events = [event async for event in client.ask("main", "hi ü", "m1")]
    assert events == [Accepted("m1"), Started("s"), Text("ä"), Answered("a", "ä", "ok")]
    [(method, path, headers, body)] = requests
    assert (method, path, body) == ("POST", "/api/chats/terminal/main/messages", {"text": "hi ü", "id": "m1"})
    assert headers["Authorization"] == "Bearer sesame"
    assert headers["Accept"] == "text/event-stream"


async def test_what_the_gateway_tells_is_understood() -> None:
    replies = {
        "/readyz": "{}",
        "/api/status": '{"version":"9","model":{"name":"m","provider":"p","why":"w"},"demo":false}',
        "/api/commands": '[{"name":"new","help":"Anew."}]',
        "/api/chats/terminal/main": '{"session":{"id":"s","title":"t"},"messages":[{"role":"user","text":"hi"}]}',
        "/api/chats/terminal/none": '{"session":null,"messages":[],"more":false}',
        "/admin/status": '{"any":"thing"}',
    }

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(text=replies[request.path])

    async with open_gateway(handle) as client:
        assert await client.ready()
        assert await client.about() == About("9", ModelInUse("m"))
        assert await client.commands() == [CommandHelp("new", "Anew.")]
        assert await client.conversation("main") == Conversation(PastSession("t"), [PastMessage("user", "hi")])
        assert await client.conversation("none") == Conversation(None, [])
        assert await client.status() == b'{"any":"thing"}'


async def test_the_answer_that_is_under_way_can_be_found() -> None:
    async with open_gateway(streaming(b'data: {"type":"question","text":"hi","id":"7"}\n\n')) as client:
        assert await client.under_way("main") == Question("hi", "7")
    async with open_gateway(answering("", 204)) as client:
        assert await client.under_way("main") is None


async def test_no_gateway_is_said_with_its_address() -> None:
    address = Address(f"http://127.0.0.1:{free_port()}", Secret("sesame"))
    async with open_client(address) as client:
        assert not await client.ready()
        with pytest.raises(GatewayAway, match=f"^No gateway answers at {address.base_url}.$"):
            await client.status()
        with pytest.raises(GatewayAway):
            await client.settle("main", "/new", "1")


@pytest.mark.parametrize(
    "stream",
    [
        streaming(b'data: {"type":"accepted","id":"m1"}\n\n', b': the gateway is stopping\n\ndata: {"type":"an'),
        streaming(),
    ],
)
async def test_a_stream_that_ends_without_an_answer_has_broken_off(stream: Handler) -> None:
    async with open_gateway(stream) as client:
        with pytest.raises(GatewayAway):
            [event async for event in client.ask("main", "hi", "m1")]


async def test_a_connection_that_is_cut_has_broken_off() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = await streaming(b'data: {"type":"accepted","id":"m1"}\n\n')(request)
        assert request.transport
        request.transport.abort()
        return response

    async with open_gateway(handle) as client:
        with pytest.raises(GatewayAway):
            [event async for event in client.ask("main", "hi", "m1")]


async def test_a_gateway_that_says_nothing_for_too_long_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SILENCE", 0.05)
    hung = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await streaming(b": alive\n\n")(request) if request.method == "POST" else None
        await hung.wait()
        return response or web.Response()

    async with open_gateway(handle) as client:
        assert not await client.ready()
        with pytest.raises(GatewayAway):
            await client.settle("main", "hi", "1")
        hung.set()


@pytest.mark.parametrize(
    ("handler", "error", "message"),
    [
        (
            answering('{"error":{"message":"Wrong token.","code":"x"}}', 401),
            RequestRefused,
            "does not accept this token",
        ),
        (answering('{"error":{"message":"No such chat.","code":"not_found"}}', 404), RequestRefused, "^No such chat.$"),
        (answering('{"error":{"message":"Used.","code":"x"}}', 422), RequestRefused, "^Used.$"),
        (answering("<html>", 404), RequestRefused, "is not a Holdfast gateway"),
        (answering("<html>", 200), RequestRefused, "is not a Holdfast gateway"),
        (answering("[]", 200), RequestRefused, "is not a Holdfast gateway"),
        (answering('{"error":{"message":"Too much."}}', 429, Retry_After="7"), TryLater, "^Too much.$"),
        (answering("", 503, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), TryLater, "No gateway answers"),
    ],
)
async def test_a_refusal_says_what_to_do(handler: Handler, error: type[HoldfastError], message: str) -> None:
    async with open_gateway(handler) as client:
        with pytest.raises(error, match=message) as raised:
            await client.conversation("main")
        assert "sesame" not in str(raised.value)
    if isinstance(raised.value, TryLater):
        assert raised.value.after in (7, 1)


async def test_something_that_does_not_speak_http_is_no_gateway() -> None:
    async def hiss(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(hiss, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_client(Address(f"http://127.0.0.1:{port}", Secret("sesame"))) as client:
            with pytest.raises(RequestRefused, match="is not a Holdfast gateway"):
                await client.ready()


async def test_a_gateway_that_is_starting_or_leaving_is_there() -> None:
    async with open_gateway(answering("", 503)) as client:
        assert await client.ready()
