"""Reading a request's body: within its limits, as JSON, into the struct that the endpoint wants."""

import re
from collections.abc import Iterable
from typing import TypeVar

import anyio
import msgspec

from holdfast.api.errors import HungUp, Refusal, bad
from holdfast.api.exchange import Exchange

T = TypeVar("T")

_LINGER = 2.0
_LINGER_BYTES = 32 * 2**20
_CLOSE = (b"connection", b"close")
_PLACE = re.compile(r"(?P<what>.*) - at (?:`key` in )?`\$\.?(?P<where>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")


async def read_body(exchange: Exchange) -> bytes:
    """The whole body, of which never more than the limit is in memory."""
    limit = exchange.surface.settings.server.body_limit
    length = exchange.headers.get(b"content-length", b"0")
    if len(length) > 18 or int(length) > limit:  # a length of more digits would be no number of bytes on earth
        await _discard(exchange)
        raise _too_large(limit)
    body = await _read(exchange, limit)  # the connection sees to it that this takes no longer than it may
    if body is None:
        await _discard(exchange)
        raise _too_large(limit)
    return body


async def _read(exchange: Exchange, limit: int) -> bytes | None:
    """The body, or None as soon as it is too large."""
    parts: list[bytes] = []
    left = limit
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        part: bytes = message["body"]
        left -= len(part)
        if left < 0:
            return None
        parts.append(part)
        if not message["more_body"]:
            return b"".join(parts) if len(parts) > 1 else part


async def _discard(exchange: Exchange) -> None:
    """Let the client finish sending, within reason: it would not read our answer before."""
    if exchange.headers.get(b"expect", b"").lower() == b"100-continue":
        return  # it waits for leave to send, and does not get it

    left = _LINGER_BYTES
    with anyio.move_on_after(_LINGER):
        while left > 0:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise HungUp
            left -= len(message["body"])
            if not message["more_body"]:
                return


def _too_large(limit: int) -> Refusal:
    sentence = f"The request is larger than {limit} bytes; the operator can raise [server] body_limit."
    return Refusal(413, sentence, code="request_too_large", headers=(_CLOSE,))


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as what the endpoint wants. Raises a `Refusal` that names the field which is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except msgspec.DecodeError as error:
        detail = str(error).removeprefix("JSON is malformed: ").removesuffix(".")
        raise bad(f"The body is not JSON: {detail}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise bad("The body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise bad("The body is nested too deeply.", code="invalid_json") from None


def check_text(texts: Iterable[str], param: str) -> None:
    """No character that could not be stored and found again as it is."""
    for text in texts:
        if "\0" in text:
            raise bad(f"{param} contains the character NUL; leave it out.", param)


def _wrong_field(error: str) -> Refusal:
    """msgspec's "Expected `str`, got `int` - at `$.messages[0].content`", with the field as a program names it."""
    found = _PLACE.fullmatch(error)
    what, where = (found["what"], found["where"]) if found else (error, "")
    if missing := _MISSING.search(what):
        where = f"{where}.{missing['name']}" if where else missing["name"]
        return bad(f"{where} is missing.", where)
    what = what.replace("`", "")
    sentence = f"{where}: {what[0].lower()}{what[1:]}." if where else f"The body: {what[0].lower()}{what[1:]}."
    return bad(sentence, where or None)
