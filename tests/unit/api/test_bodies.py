"""What a request's body may be."""

import asyncio
from io import BytesIO

import pytest

pytestmark = pytest.mark.anyio

HEAD = "POST /api/chats/web/a/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n"


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status and the body of one answer."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
    return int(head.split()[1]), (await reader.readexactly(length)).decode()


async def send(api, body: bytes) -> tuple[int, str]:
    async with api.raw() as (reader, writer):
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await answer(reader)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"nonsense", "not JSON"),
        (b'{"text":"x","id":"1"} x', "trailing"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"null", "object"),
        (b'{"text":"\xff","id":"1"}', "UTF-8"),
        (b'{"text":"\xed\xa0\x80","id":"1"}', "UTF-8"),
        (b'{"text":"\\ud800 and more","id":"1"}', "surrogate"),
        (b'{"text":"\\udc00 and more","id":"1"}', "surrogate"),
        (b'{"text":"a\\u0000b","id":"1"}', "NUL"),
        (b'{"text":"a\x00b","id":"1"}', "not JSON"),
        (b'{"text":' + b"[" * 100_000, "text"),
        (b'{"text":1e999,"id":"1"}', "text"),
        (b'{"text":NaN,"id":"1"}', "not JSON"),
    ],
)
async def test_what_is_no_message_gets_a_plain_sentence(serve, body, words):
    async with serve() as api:
        status, text = await send(api, body)
    assert status == 400
    assert words in text
    assert '"error"' in text


@pytest.mark.parametrize(
    "extra", [b'"x":' + b"[" * 100_000 + b"]" * 100_000, b'"x":1e999', b'"x":' + b"9" * 5000, b'"x":"\\ud800 "']
)
async def test_what_nobody_reads_breaks_nothing(serve, extra):
    body = b'{"messages":[{"role":"user","content":"x"}],%s}' % extra
    async with serve() as api:
        for headers in ({}, {"Idempotency-Key": "k"}):
            status, _ = await api.ask("POST", "/v1/chat/completions", data=body, headers=headers)
            assert status in (200, 400)


async def test_text_that_only_looks_like_an_escape_is_text(serve):
    async with serve() as api:
        status, _ = await send(api, rb'{"text":"write \\u0000 and \\ud800 for them","id":"1"}')
        assert status == 202


async def test_a_body_beyond_the_limit_is_refused_with_and_without_its_length(serve):
    async with serve(server={"body_limit": 1000}) as api:
        fits = b'{"text":"' + b"x" * 900 + b'","id":"1"}'
        assert (await send(api, fits))[0] == 202
        too_large = b'{"text":"' + b"x" * 1000 + b'","id":"2"}'
        status, text = await send(api, too_large)
        assert status == 413
        assert "1000 bytes" in text
        async with api.raw() as (reader, writer):
            writer.write(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(30):
                writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
            writer.write(b"0\r\n\r\n")
            assert (await answer(reader))[0] == 413
        async with api.raw() as (reader, writer):
            writer.write(f"{HEAD}Content-Length: {'9' * 30}\r\n\r\n".encode())
            assert (await answer(reader))[0] in (400, 413)


async def test_a_client_that_sends_far_too_much_still_gets_its_answer(serve):
    async with serve(server={"body_limit": 1000}) as api:
        status, answer = await api.ask("POST", "/api/chats/web/a/messages", data=BytesIO(b"x" * 20_000_000))
    assert status == 413
    assert answer["error"]["code"] == "request_too_large"


async def test_a_client_that_sends_without_end_is_cut_off(serve):
    async with serve(server={"body_limit": 1000}) as api, api.raw() as (_, writer):
        writer.write(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"

        async def send_on() -> None:
            while True:
                writer.write(piece)
                await writer.drain()

        async with asyncio.timeout(30):
            with pytest.raises(ConnectionError):
                await send_on()


async def test_a_client_that_asks_before_it_sends_is_told_no_at_once(serve):
    async with serve(server={"body_limit": 1000}) as api, api.raw() as (reader, writer):
        writer.write(f"{HEAD}Content-Length: 5000\r\nExpect: 100-continue\r\n\r\n".encode())
        assert (await answer(reader))[0] == 413


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(serve):
    body = b'{"text":"hello","id":"1"}'
    async with serve() as api, api.raw() as (reader, writer):
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(body)
        assert (await answer(reader))[0] == 202
