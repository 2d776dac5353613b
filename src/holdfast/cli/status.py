"""`holdfast status`: what the running gateway holds, and who owns it."""

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.plain import plain

if TYPE_CHECKING:
    from holdfast.core.settings import Places, Settings

EXAMPLES = """\b
Examples:
  holdfast status
  holdfast status --json | jq ".sessions[].state\""""

NO_END = 10_000
_JOINT = "\xa0"
"""A space that no line is broken at."""


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the gateway's own JSON.")] = False,
    url: Annotated[
        str, typer.Option(metavar="URL", help="The gateway, or the link to its web chat; else the one of this machine.")
    ] = "",
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="The gateway's token; else the one of this machine.")
    ] = "",
) -> None:
    """Show what the running gateway holds, and who owns it."""
    import anyio

    from holdfast.core.settings import load_settings

    data = anyio.run(_fetch, *load_settings(os.environ), url, token)
    if as_json:
        text = data.decode()
    else:
        import shutil
        import time

        import msgspec

        width = shutil.get_terminal_size(fallback=(NO_END, 0)).columns  # a pipe has no edge
        text = report(msgspec.json.decode(data), time.time(), width)
    sys.stdout.write(text + "\n")


async def _fetch(settings: "Settings", places: "Places", url: str, token: str) -> bytes:
    from holdfast.cli.address import find_address
    from holdfast.cli.client import GatewayAway, open_client

    async with open_client(find_address(settings, places, url=url, token=token)) as client:
        try:
            return await client.status()
        except GatewayAway as error:
            raise GatewayAway(f"{error} Start one with: holdfast serve") from None


def report(status: dict[str, Any], now: float, width: int = 80) -> str:
    """The gateway's status for people: a few facts, then who holds what."""
    entries = (*status["resources"], *status["transports"])
    sessions = {session["id"] for session in status["sessions"]} | {entry["owner"] for entry in entries} - {"process"}
    facts = [
        ("version", status["version"]),
        ("up since", f"{_moment(status['started'])}, {_span(now - status['started'])}"),
        ("model", status["model"]),
        ("memory", _size(status["rss"])),
        ("descriptors", _counted(status["descriptors"], sessions)),
        ("threads", _counted(status["threads"], sessions)),
        ("children", _children(status["children"], sessions) or "none"),
        ("sessions", f"{len(status['sessions'])} awake, {status['residents']} of them with a warm agent"),
    ]
    held = [
        (entry["kind"], entry["name"], f"of {_owner(entry['owner'], sessions)}", _since(entry["since"], now))
        for entry in entries
    ]
    paragraphs = [_facts(facts, width), *([_table(held, width)] if held else [])]
    paragraphs += [_session(session, now, width) for session in status["sessions"]]
    return plain("\n\n".join(paragraphs))


def _session(session: dict[str, Any], now: float, width: int) -> str:
    waiting = f", {session['waiting']} waiting" if session["waiting"] else ""
    agent = f"agent {session['agent']}, {_size(session['bytes'])}" if session["agent"] else "no agent"
    owns = f"owns {', '.join(session['owns'])}" if session["owns"] else "owns nothing"
    state = f"{session['state']}{waiting}; {agent}; last used {_span(now - session['last_used'])} ago; {owns}"
    return f"session {session['id']} in {session['chat']}\n{_wrapped(state, width, '  ')}"


def _facts(facts: Sequence[tuple[str, str]], width: int) -> str:
    widest = max(len(name) for name, _ in facts)
    indent = " " * (widest + 2)
    return "\n".join(name.ljust(widest + 2) + _wrapped(fact, width, indent).lstrip() for name, fact in facts)


def _table(rows: Sequence[tuple[str, ...]], width: int) -> str:
    """In columns where there is room for them, else each row on two lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * len(widths) - 2 > width:
        return "\n".join(f"{kind} {name}\n  {' '.join(more).rstrip()}" for kind, name, *more in rows)
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(text: str, width: int, indent: str) -> str:
    """Broken between words alone: an address or a path in two pieces can't be copied."""
    lines = textwrap.wrap(text, max(width - len(indent), 20), break_long_words=False, break_on_hyphens=False)
    return "\n".join(indent + line.replace(_JOINT, " ") for line in lines)


def _counted(held: list[dict[str, str]] | None, sessions: set[str]) -> str:
    """How many there are and whose, those of several sessions together."""
    if held is None:
        return "not told by this system"
    counts = Counter(thing["owner"] for thing in held)
    if len(ids := sessions & counts.keys()) > 1:
        counts[f"{len(ids)} sessions"] = sum(counts.pop(id) for id in ids)
    owners = (f"{count} of {_owner(owner, sessions)}" for owner, count in counts.most_common())
    return f"{len(held)}: {', '.join(owner.replace(' ', _JOINT) for owner in owners)}"


def _children(children: list[dict[str, str]], sessions: set[str]) -> str:
    return ", ".join(f"{child['name']} of {_owner(child['owner'], sessions)}" for child in children)


def _owner(owner: str, sessions: set[str]) -> str:
    if owner == "process":
        return "the process"
    return f"session {owner}" if owner in sessions else owner


def _since(since: float, now: float) -> str:
    return f"for {_span(now - since)}" if since else ""


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def _span(seconds: float) -> str:
    """A span of time, as exactly as one cares."""
    seconds = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _moment(when: float) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(when).astimezone().strftime("%Y-%m-%d %H:%M:%S")
