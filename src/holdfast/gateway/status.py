"""What is in memory and who holds it: for `holdfast status`, /admin/status and /status in a chat."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.ledger import Entry, Ledger
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.descriptors import list_descriptors, names
from holdfast.gateway.watch import rss

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway


class SessionStatus(msgspec.Struct, frozen=True):
    id: str
    chat: str
    state: str
    """`awake`, `resident` or `running`; a dormant conversation is not in memory and not listed."""
    agent: str | None
    """The model that the warm agent uses; null without one."""
    signature: str | None
    bytes: int
    last_used: float
    owns: list[str]
    waiting: int


class Held(msgspec.Struct, frozen=True):
    """A descriptor, a thread or a child process, and who it belongs to."""

    name: str
    owner: str
    """A session's id, a part of the gateway such as `the store`, or `process` for what is nobody's in particular."""


class Status(msgspec.Struct, frozen=True):
    version: str
    started: float
    model: str
    residents: int
    sessions: list[SessionStatus]
    resources: list[Entry]
    transports: list[Entry]
    rss: int
    descriptors: list[Held] | None
    """Null where the system does not tell."""
    threads: list[Held]
    children: list[Held]


def take_status(gateway: "Gateway", ledger: Ledger, *, version: str, started: float) -> Status:
    entries = list(ledger)
    return Status(
        version=version,
        started=started,
        model=gateway.model.name,
        residents=len(gateway.residents),
        sessions=[_session(chat) for chat in gateway.awake.values() if chat.session],
        resources=[entry for entry in entries if entry.kind != "socket pool"],
        transports=[entry for entry in entries if entry.kind == "socket pool"],
        rss=rss(),
        descriptors=_descriptors(ledger),
        threads=sorted((_thread(thread.name) for thread in threading.enumerate()), key=lambda held: held.name),
        children=[_child(pid, entries) for pid in children()],
    )


def _session(chat: AwakeChat) -> SessionStatus:
    session = chat.session
    assert session is not None
    agent = session.agent
    return SessionStatus(
        id=session.id,
        chat=str(chat.key),
        state=chat.state,
        agent=agent.model.name if agent else None,
        signature=agent.signature if agent else None,
        bytes=agent.context.size if agent else 0,
        last_used=session.last_used,
        owns=session.owns,
        waiting=len(chat.mailbox),
    )


def _descriptors(ledger: Ledger) -> list[Held] | None:
    found = list_descriptors(ledger)
    if found is None:
        return None
    return [Held(name, held.owner) for name, held in zip(names(found), found, strict=True)]


_THREADS = {"store-": "the store", "AnyIO worker": "the tools", "log-writer": "the log"}


def _thread(name: str) -> Held:
    return Held(name, next((owner for start, owner in _THREADS.items() if name.startswith(start)), "process"))


def _child(pid: int, entries: list[Entry]) -> Held:
    """A child that someone opened is in the ledger under its number."""
    name = str(pid)
    return Held(name, next((e.owner for e in entries if e.kind == "process" and e.name == name), "process"))


def children() -> list[int]:
    """The process ids of this process's direct children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        found.update(map(int, task.read_text().split()))
    return sorted(found)
