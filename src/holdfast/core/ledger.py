"""Who holds what: everything that opens an outside resource enters it here, with its owner."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec


class Entry(msgspec.Struct, frozen=True):
    kind: str
    """What it is: `database`, `socket pool`, `process`, `listener`, `browser` …"""
    name: str
    owner: str
    """`process`, or the id of the session that opened it."""
    since: float


class Ledger:
    """The open resources of this process. An entry exists exactly as long as the block that made it."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Ledger: {', '.join(f'{e.kind} {e.name} of {e.owner}' for e in self) or 'empty'}>"

    @contextmanager
    def enter(self, kind: str, name: str, *, owner: str = "process", since: float = 0.0) -> Iterator[Entry]:
        self._next += 1
        number = self._next
        entry = self._entries[number] = Entry(kind, name, owner, since)
        try:
            yield entry
        finally:
            del self._entries[number]
