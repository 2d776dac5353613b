"""The open descriptors of this process: what each is, and whose.

What they are, the system tells (/proc); whose they are, those who opened them (the ledger). A descriptor of which
nobody says that it is theirs is the process's: standard output, say, or what a library opened by itself.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from holdfast.core.ledger import Entry, Ledger

_OWNERS = {
    "database": "the store",
    "event loop": "the event loop",
    "listener": "the web server",
    "lock": "the data folder",
}
"""What those are called that a process has one of; others go by their kind and name."""

_PLAIN = {"anon_inode:[eventpoll]": "epoll"}


class Descriptor(NamedTuple):
    number: int
    target: str
    """What its link in /proc says: a path, `socket:[4711]`, `anon_inode:[eventpoll]` …"""
    holder: Entry | None

    @property
    def owner(self) -> str:
        """The id of the session that holds it, or a few words on the part of the gateway that does."""
        if self.holder is None:
            return "process"
        if self.holder.owner != "process":
            return self.holder.owner
        return _OWNERS.get(self.holder.kind) or f"{self.holder.kind} {self.holder.name}"


def list_descriptors(ledger: Ledger) -> list[Descriptor] | None:
    """All that are open, each with who holds it; None where there is no /proc to tell."""
    found = open_descriptors()
    if found is None:
        return None
    holders = ledger.holders()
    return [
        Descriptor(number, target, holders.get(target.removesuffix(" (deleted)")) or holders.get(number))
        for number, target in found.items()
    ]


def open_descriptors() -> dict[int, str] | None:
    """Each descriptor's number and what its link says; None where there is no /proc to tell."""
    found = {}
    try:
        numbers = sorted(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - Path is five times slower
    except FileNotFoundError:
        return None
    for number in numbers:
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - likewise
        except OSError:  # the one by which the folder was read, or closed in another thread since
            continue
    return found


def count_by_owner(descriptors: list[Descriptor]) -> Counter[str]:
    """As a label of a metric needs it: few different owners, however many sessions and endpoints there are."""
    return Counter(_group(descriptor.holder) for descriptor in descriptors)


def _group(holder: Entry | None) -> str:
    if holder is None:
        return "process"
    return _OWNERS.get(holder.kind, holder.kind) if holder.owner == "process" else "sessions"


# ── names ───────────────────────────────────────────────────────────────────────────────────────


def names(descriptors: list[Descriptor]) -> Iterator[str]:
    """Each by its number and, for people, what it is; a socket by its addresses."""
    for number, target, _ in descriptors:
        kind, _, rest = target.partition(":")
        if target.startswith("/"):
            name = target
        elif kind == "anon_inode":
            name = _PLAIN.get(target, rest.strip("[]"))
        elif kind == "socket":
            name = f"socket {_addresses(number)}".rstrip()
        else:
            name = kind
        yield f"{number} {name}"


def _addresses(number: int) -> str:
    """Where a socket listens or is connected.

    Asked through the descriptor itself: the system's tables would have the sockets of the whole machine, and those
    that are over and done with, which under load are ten times as many and take ten times as long.
    """
    try:
        look = socket.socket(fileno=number)
    except OSError:  # closed in another thread since
        return ""
    try:
        here = _address(look.family, look.getsockname())
        if look.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return f"{here} listening"
        try:
            there = _address(look.family, look.getpeername())
        except OSError:  # not connected
            return here
        return f"{here} → {there}" if there else here
    except OSError:
        return ""
    finally:
        look.detach()  # it is someone else's: without this it would be closed here


def _address(family: int, name: Any) -> str:
    if family == socket.AF_UNIX:
        return name if isinstance(name, str) else name.decode(errors="replace").replace("\0", "@")
    if family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = name[:2]
    if ":" in host:
        host = str(IPv6Address(host).ipv4_mapped or f"[{host}]")
    return f"{host}:{port}"
