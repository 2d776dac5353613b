"""What a client may hold without asking anything."""

import asyncio

import pytest

from holdfast.api import connection
from holdfast.gateway.descriptors import open_descriptors
from holdfast.testing.scripted import Gate, until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request):
    """Sockets are the loop's business: what is proved here is proved on both loops."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


GET = b"GET /api/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def head(reader: asyncio.StreamReader) -> str:
    return (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Whatever comes until the server closes."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


async def test_beyond_the_limit_a_client_is_told_so_and_the_others_are_served_on(serve):
    async with serve(server={"connections": 2}) as api:
        async with api.raw() as (reader1, writer1), api.raw() as (reader2, writer2):
            for reader, writer in ((reader1, writer1), (reader2, writer2)):
                writer.write(GET)
                assert "200 OK" in await head(reader)
            async with api.raw() as (reader3, writer3):
                writer3.write(GET)
                refused = await head(reader3)
                assert "503" in refused
                assert "retry-after: 5" in refused
                assert "connection: close" in refused
                assert b"Too many connections" in await ended(reader3)
            writer1.write(GET)
            assert "200 OK" in await head(reader1)
            async with api.raw() as (reader4, writer4):  # a busy gateway is not a dead one
                writer4.write(PROBE)
                assert "200 OK" in await head(reader4)
        async with api.raw() as (reader5, writer5):
            writer5.write(GET)
            assert "200 OK" in await head(reader5)


async def test_a_connection_that_asks_nothing_is_closed(serve, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.05)
    async with serve() as api, api.raw() as (reader, _):
        assert await ended(reader) == b""


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /api/status HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/chats/web/a/messages HTTP/1.1\r\nAuthorization: Bearer the-token\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_a_request_that_does_not_arrive_is_given_up(serve, monkeypatch, beginning):
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.05)
    async with serve() as api, api.raw() as (reader, writer):
        writer.write(beginning)
        assert b" 408 " in await ended(reader)
        await until(lambda: not api.bench.gateway.awake)


async def test_a_long_answer_is_not_given_up(serve, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.05)
    gate = Gate()
    async with serve(gate) as api, api.raw() as (reader, writer):
        body = b'{"messages":[{"role":"user","content":"x"}]}'
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer the-token\r\nContent-Length: %d\r\n\r\n%s"
        )
        writer.write(request % (len(body), body))
        await gate.has(1)
        async with api.raw() as (silent, _):
            await ended(silent)  # as much time has passed as a request may take to arrive
        gate.open()
        assert "200 OK" in await head(reader)


async def test_headers_without_end_are_refused(serve):
    async with serve() as api, api.raw() as (reader, writer):
        writer.write(b"GET /api/status HTTP/1.1\r\n")
        answered = asyncio.create_task(ended(reader))
        with pytest.raises(ConnectionError):
            while not answered.done():
                writer.write(b"X-Long: " + b"x" * 10_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
            raise ConnectionError
        assert b" 431 " in await answered or answered.result() == b""


@pytest.mark.parametrize(
    "nonsense", [b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
)
async def test_what_is_not_http_gets_a_plain_sentence(serve, nonsense):
    async with serve() as api, api.raw() as (reader, writer):
        writer.write(nonsense)
        answer = await ended(reader)
    assert b" 400 " in answer
    assert b"not a valid HTTP request" in answer


async def test_a_client_that_does_not_read_is_let_go(serve, monkeypatch):
    monkeypatch.setattr(connection, "STALL_TIMEOUT", 0.1)

    async def talkative(messages, emit):
        return "word " * 4_000_000

    async with serve(talkative) as api, api.raw() as (reader, writer):
        body = b'{"messages":[{"role":"user","content":"x"}]}'
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer the-token\r\nContent-Length: %d\r\n\r\n%s"
        )
        writer.write(request % (len(body), body))
        assert "200 OK" in await head(reader)
        both_ends = len(open_descriptors() or ())
        # The answer is larger than all buffers in between, and nobody reads it.
        await until(lambda: len(open_descriptors() or ()) == both_ends - 1, within=20)
