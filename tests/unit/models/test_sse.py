"""The parser of event streams: whatever the bytes are cut into, the events are the same."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.sse import EventParser, EventTooLong

PIECES = st.lists(
    st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"data",
            b"event: x",
            b": keep-alive",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"{}",
            b" ",
            b"\xff",
            b"\xef\xbb\xbf",
        ]
    ),
    max_size=40,
).map(b"".join)


def parse(*pieces: bytes) -> list[bytes]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(PIECES, st.lists(st.integers(0, 1000), max_size=12))
def test_every_way_to_cut_the_stream_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    assert parse(*cut(stream, places)) == parse(stream)


@given(PIECES)
def test_byte_by_byte_gives_what_the_specification_says(stream: bytes) -> None:
    assert parse(*(stream[at : at + 1] for at in range(len(stream)))) == by_the_book(stream)


def by_the_book(stream: bytes) -> list[bytes]:
    """The specification's own algorithm, slow and plain, but for the last event, which we take unfinished."""
    lines = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[bytes] = []
    data: list[bytes] = []
    for line in [*lines, b""]:
        if not line:
            if data:
                events.append(b"\n".join(data))
            data = []
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": hello\n\n:\n\ndata: a\n\n", [b"a"]),
        (b"event: error\ndata: a\nid: 3\nretry: 5\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\n\ndata: cut", [b"a", b"cut"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b"database: a\n\n", []),
        (b"", []),
    ],
)
def test_events_are_read_as_servers_write_them(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == events


def test_an_event_comes_out_as_soon_as_it_is_complete() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\nda") == [b"a"]
    assert parser.feed(b"ta: b\r\n\r") == [b"b"]
    assert parser.feed(b"\n") == []


def test_an_event_without_end_is_refused_and_not_collected() -> None:
    parser = EventParser(limit=1000)
    for _ in range(10):
        assert parser.feed(b"x" * 100) == []
    with pytest.raises(EventTooLong):
        parser.feed(b"x")
