"""What an endpoint gives back: an answer in one piece, or one that comes bit by bit."""

from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any, NamedTuple, TypeAlias

import msgspec

Header: TypeAlias = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")
EVENTS: Header = (b"content-type", b"text/event-stream; charset=utf-8")

_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """An answer in one piece."""

    body: bytes
    status: int = 200
    headers: tuple[Header, ...] = ()
    content_type: Header | None = JSON


class Stream(NamedTuple):
    """An answer as server-sent events; each item is a piece that is ready to be written."""

    pieces: AsyncIterator[bytes]


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(_encode(value), status)


class Date:
    """The date header, made at most once a second and only when it is needed."""

    def __init__(self) -> None:
        self._second = 0
        self._header: Header = (b"date", b"")

    def header(self, now: float) -> Header:
        if int(now) != self._second:
            self._second = int(now)
            self._header = (b"date", formatdate(self._second, usegmt=True).encode())
        return self._header
