"""`holdfast status`: what the running gateway holds, and who owns it."""

import os
import sys
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
        import time

        import msgspec

        text = report(msgspec.json.decode(data), time.time())
    sys.stdout.write(text + "\n")


async def _fetch(settings: "Settings", places: "Places", url: str, token: str) -> bytes:
    from holdfast.cli.address import find_address
    from holdfast.cli.client import GatewayAway, open_client

    async with open_client(find_address(settings, places, url=url, token=token)) as client:
        try:
            return await client.status()
        except GatewayAway as error:
            raise GatewayAway(f"{error} Start one with: holdfast serve") from None


def report(status: dict[str, Any], now: float) -> str:
    """The gateway's status for people: a few facts, then who holds what."""
    facts = [
        ("version", status["version"]),
        ("up since", f"{_moment(status['started'])}, {_span(now - status['started'])}"),
        ("model", status["model"]),
        ("memory", _size(status["rss"])),
        ("descriptors", str(status["descriptors"])),
        ("threads", f"{len(status['threads'])}: {_held(status['threads'])}"),
        ("children", _held(status["children"]) or "none"),
        ("sessions", f"{len(status['sessions'])} awake, {status['residents']} of them with a warm agent"),
    ]
    held = [
        (entry["kind"], entry["name"], f"of {_owner(entry['owner'])}", _since(entry["since"], now))
        for entry in (*status["resources"], *status["transports"])
    ]
    paragraphs = [_columns(facts), *([_columns(held)] if held else [])]
    paragraphs += [_session(session, now) for session in status["sessions"]]
    return plain("\n\n".join(paragraphs))


def _session(session: dict[str, Any], now: float) -> str:
    waiting = f", {session['waiting']} waiting" if session["waiting"] else ""
    agent = f"agent {session['agent']}, {_size(session['bytes'])}" if session["agent"] else "no agent"
    owns = f"owns {', '.join(session['owns'])}" if session["owns"] else "owns nothing"
    return (
        f"session {session['id']} in {session['chat']}\n"
        f"  {session['state']}{waiting}; {agent}; last used {_span(now - session['last_used'])} ago; {owns}"
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _owner(owner: str) -> str:
    return "the process" if owner == "process" else f"session {owner}"


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


def _held(things: list[dict[str, str]]) -> str:
    return ", ".join(f"{thing['name']} of {thing['owner']}" for thing in things)
