"""Opening and leaving the server."""

import asyncio
import dataclasses
import os
import signal
import socket
import time

import aiohttp
import msgspec
import pytest

from holdfast.api.server import GRACE, open_listener, open_server
from holdfast.api.surface import Address
from holdfast.core.errors import SettingsError
from holdfast.core.events import Text
from holdfast.core.settings import ServerSettings
from holdfast.testing.scripted import Gate, until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request):
    """Sockets are the loop's business: what is proved here is proved on both loops."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


def with_server(surface, **settings):
    """The same surface with other settings for the server."""
    replaced = msgspec.structs.replace(surface.settings, server=ServerSettings(**settings))
    return dataclasses.replace(surface, settings=replaced)


async def test_the_address_is_the_one_that_is_bound_and_the_ledger_knows_it(serve):
    async with serve() as api:
        assert api.address.port > 0
        assert api.address.url == f"http://127.0.0.1:{api.address.port}"
        assert [(entry.kind, entry.name) for entry in api.surface.ledger] == [
            ("listener", f"127.0.0.1:{api.address.port}")
        ]
        ledger = api.surface.ledger
    assert len(ledger) == 0


def test_an_address_can_be_clicked():
    assert Address("0.0.0.0", 1).url == "http://127.0.0.1:1"
    assert Address("::1", 1).url == "http://[::1]:1"
    assert Address("::", 1).url == "http://[::1]:1"
    assert Address("host.example", 1).url == "http://host.example:1"


async def test_a_port_in_use_is_one_plain_sentence(serve):
    async with serve() as api:
        surface = with_server(api.surface, port=api.address.port)
        sentence = rf"Port {api.address.port} of 127.0.0.1 is in use.*\[server\] port"
        with pytest.raises(SettingsError, match=sentence), open_listener(surface.settings.server):
            pass


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_a_host_that_is_not_ours_is_one_plain_sentence(host):
    settings = ServerSettings(host=host, port=0)
    with pytest.raises(SettingsError, match=rf'no address "{host}"'), open_listener(settings):
        pass


async def test_listens_on_ip_version_6(serve):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    async with serve() as api:
        try:
            surface = with_server(api.surface, host="::1", port=0)
            with open_listener(surface.settings.server) as listener:
                async with (
                    open_server(surface, listener) as address,
                    api.client.get(f"{address.url}/healthz") as response,
                ):
                    assert response.status == 200
        except SettingsError:
            pytest.skip("this machine has no ::1")


async def test_signals_are_left_to_the_process(serve):
    caught = []
    before = signal.signal(signal.SIGTERM, lambda *_: caught.append("ours"))
    try:
        async with serve() as api:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await api.get("/healthz"))[0] == 200
        assert caught == ["ours"]
        assert signal.getsignal(signal.SIGTERM) is not before
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_leaving_ends_open_streams_and_waiting_requests_with_a_word_and_in_time(serve):
    gate = Gate()
    async with aiohttp.ClientSession() as session:
        async with serve(gate) as api:
            headers = {"Authorization": "Bearer the-token"}
            streaming = await session.post(
                f"{api.address.url}/api/chats/web/a/messages",
                json={"text": "x", "id": "1"},
                headers={**headers, "Accept": "text/event-stream"},
            )
            await gate.has(1)
            body = {"messages": [{"role": "user", "content": "x"}]}
            url = f"{api.address.url}/v1/chat/completions"
            waiting = asyncio.create_task(session.post(url, json=body, headers={**headers, "X-Holdfast-Session": "s"}))
            await gate.has(2)
            idle = await session.get(f"{api.address.url}/healthz")
            await idle.read()
            started = time.monotonic()
        left = time.monotonic() - started
        assert b": The gateway is stopping" in await streaming.read()
        answer = await waiting
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        streaming.release()
        answer.release()
    assert left < GRACE + 1


async def test_a_stream_in_openais_format_ends_with_an_error_when_the_server_leaves(serve):
    gate = Gate()

    async def script(messages, emit):
        emit(Text("first words"))
        return await gate(messages, emit)

    async with aiohttp.ClientSession() as session:
        async with serve(script) as api:
            responses = []
            for path, body in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
                ("/v1/responses", {"input": "x", "stream": True}),
            ):
                responses.append(
                    await session.post(api.address.url + path, json=body, headers={"Authorization": "Bearer the-token"})
                )
            await gate.has(2)
        chat, response = [(await one.read()).decode() for one in responses]
    assert "first words" in chat
    assert '{"error":{"message":"The gateway is stopping' in chat
    assert "event: error\n" in response
    assert "The gateway is stopping" in response


async def test_a_client_that_does_not_read_can_not_keep_the_server_from_leaving(serve):
    async def talkative(messages, emit):
        return "word " * 4_000_000

    with socket.socket() as client:
        client.setblocking(False)
        async with serve(talkative) as api:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (api.address.host, api.address.port))
            body = b'{"messages":[{"role":"user","content":"x"}]}'
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer the-token\r\nContent-Length: %d\r\n\r\n"
            )
            await loop.sock_sendall(client, head % len(body) + body)
            assert await loop.sock_recv(client, 12) == b"HTTP/1.1 200"
            started = time.monotonic()
        assert time.monotonic() - started < 5


async def test_an_idle_client_is_closed_at_once(serve):
    async with aiohttp.ClientSession() as session:
        async with serve() as api:
            for _ in range(3):
                async with session.get(f"{api.address.url}/healthz") as response:
                    await response.read()
            started = time.monotonic()
        assert time.monotonic() - started < 1


async def test_past_the_limit_a_request_is_refused_at_once_and_an_abandoned_one_frees_its_place(serve, capfd):
    gate = Gate()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer the-token\r\nContent-Length: %d\r\n\r\n%s"
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    async with serve(gate, limits={"turns": 1}) as api:
        async with api.raw() as (_, first):
            first.write(head % (len(body), body))
            await gate.has(1)
            async with api.raw() as (reader, second):
                second.write(head % (len(body), body))
                refused = await reader.readuntil(b"\r\n\r\n")
                assert refused.startswith(b"HTTP/1.1 429 ")
                assert b"retry-after: 5" in refused.lower()
        await until(lambda: gate.inside == 0)  # the first hung up, and was stopped
        await until(lambda: api.bench.gateway.unanswered == 0)
        async with api.raw() as (_, third):
            third.write(head % (len(body), body))
            await gate.has(1)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert "Exception" not in capfd.readouterr().err
