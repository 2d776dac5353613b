"""Who holds what: everything that opens an outside resource enters it here, with its owner."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

Holds = Callable[[], Iterable[int | str]]
"""Tells what a resource holds open right now: descriptors by their numbers, files by their real paths."""


class Entry(msgspec.Struct, frozen=True):
    kind: str
    """What it is: `database`, `socket pool`, `process`, `listener`, `browser` …
    One of few words, as the metrics have it for a label."""
    name: str
    owner: str
    """`process`, or the id of the session that opened it."""
    since: float


class _Resource(NamedTuple):
    entry: Entry
    holds: Holds


class Ledger:
    """The open resources of this process. An entry exists exactly as long as the block that made it."""

    def __init__(self) -> None:
        self._open: dict[int, _Resource] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter([resource.entry for resource in self._open.values()])

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<Ledger: {', '.join(f'{e.kind} {e.name} of {e.owner}' for e in self) or 'empty'}>"

    def holders(self) -> dict[int | str, Entry]:
        """Whose each descriptor is, by its number or its file's path, as far as those who opened them say."""
        return {held: resource.entry for resource in list(self._open.values()) for held in resource.holds()}

    @contextmanager
    def enter(
        self, kind: str, name: str, *, owner: str = "process", since: float = 0.0, holds: Holds = tuple
    ) -> Iterator[Entry]:
        """`holds` says which descriptors are this resource's; those of which nobody says it are the process's."""
        self._next += 1
        number = self._next
        entry = Entry(kind, name, owner, since)
        self._open[number] = _Resource(entry, holds)
        try:
            yield entry
        finally:
            del self._open[number]
