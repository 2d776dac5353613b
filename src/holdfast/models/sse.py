"""Server-sent events, read from bytes as they come."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LIMIT = 16 * 1024 * 1024


class EventTooLong(Exception):
    """One event grew past every reason; whoever sends it is not a model server."""


class EventParser:
    """Turns a byte stream, however it was cut up, into the `data` of its events.

    Only `data` is kept: the wire formats we read say everything in it. Lines may end in LF, CRLF or CR.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes completed."""
        if self._after_cr or b"\r" in data:
            data = self._with_plain_newlines(data)
        pending = self._pending
        if pending:
            if b"\n\n" not in data and not (data[:1] == b"\n" and pending[-1][-1:] == b"\n"):
                self._keep(data)
                return []
            pending.append(data)
            data = b"".join(pending)
            pending.clear()
            self._size = 0
        blocks = data.split(b"\n\n")
        self._keep(blocks.pop())
        if not self._started and blocks:
            self._started = True
            blocks[0] = blocks[0].removeprefix(_BYTE_ORDER_MARK)
        events = []
        for block in blocks:
            # Nearly every block is one line of data; the rest takes the long way.
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            elif (event := _data_of(block)) is not None:
                events.append(event)
        return events

    def finish(self) -> list[bytes]:
        """The event that the stream ended in without the empty line that should follow it."""
        rest = b"".join(self._pending)
        event = _data_of(rest if self._started else rest.removeprefix(_BYTE_ORDER_MARK))
        self._pending.clear()
        self._size = 0
        return [] if event is None else [event]

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._size += len(data)
        if self._size > self._limit:
            raise EventTooLong
        self._pending.append(data)

    def _with_plain_newlines(self, data: bytes) -> bytes:
        """A CR ends its line at once; an LF that follows it, maybe in the next read, belongs to it."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> bytes | None:
    """The data lines of a block, joined; None where there are none (comments, keep-alives, other fields)."""
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None
