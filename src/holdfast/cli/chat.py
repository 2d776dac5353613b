"""`holdfast chat`: talk to the agent from a terminal or a pipe."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.cli.reach import Reached

EMBEDDED = "No gateway is running, so this chat runs one until you leave (holdfast serve keeps one up)."
EXAMPLES = """\b
Examples:
  holdfast chat
  holdfast chat -m "What is a holdfast?"
  git diff | holdfast chat -m "Review this." > review.md
  holdfast chat --chat work -m "And now?" --json"""
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
KEYS = "Alt-Enter: new line · /: commands · Ctrl-C: stop · Ctrl-D: leave"


def chat(
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            "-m",
            metavar="TEXT",
            help="Ask this, print the answer and exit; - reads it from standard input.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option("--chat", metavar="NAME", help="The chat to talk in; else main, or with -m one of its own."),
    ] = "",
    new: Annotated[bool, typer.Option("--new", help="Begin a new conversation; the old one is kept.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With -m: print the answer as JSON.")] = False,
    url: Annotated[
        str, typer.Option(metavar="URL", help="The gateway, or the link to its web chat; else the one of this machine.")
    ] = "",
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="The gateway's token; else the one of this machine.")
    ] = "",
) -> int:
    """Talk to the agent, in a terminal or a pipe.

    Talks to the running gateway; without one, starts its own for as long as the chat lasts.
    """
    if name and (not _NAME.fullmatch(name) or not name.strip(".")):
        raise typer.BadParameter("a name is 1 to 128 of the characters A-Z a-z 0-9 . _ ~ -", param_hint="--chat")
    piped = not sys.stdin.isatty()
    if message is None and not piped:
        if as_json:
            raise typer.BadParameter("it needs a message, see -m", param_hint="--json")
        if not sys.stdout.isatty():
            raise typer.BadParameter("there is no terminal to talk on, use -m", param_hint="chat")
    question = ""
    if message is not None or piped:
        question = _question(message, sys.stdin.read() if piped or message == "-" else "")

    import anyio

    from holdfast.cli.reach import open_reach
    from holdfast.core.settings import load_settings

    settings, places = load_settings(os.environ)
    if question:
        return anyio.run(_ask, open_reach(settings, places, url=url, token=token), name, new, question, as_json)
    reach = open_reach(settings, places, url=url, token=token, log_file=places.data / "chat.log")
    return anyio.run(_talk, reach, name or "main", new, places.data / "chat_history")


def _question(message: str | None, piped: str) -> str:
    """What to ask: the message, followed by what was piped in."""
    said = "" if message is None or message == "-" else message
    question = "\n\n".join(part for part in (said.strip(), piped.strip("\n")) if part.strip())
    if not question:
        raise typer.BadParameter("the message is empty", param_hint="-m")
    return question


async def _talk(reach: "AbstractAsyncContextManager[Reached]", name: str, new: bool, history_file: Path) -> int:
    from rich.text import Text

    from holdfast.cli.dialogue import Dialogue
    from holdfast.cli.rendering import open_console, print_lines

    console = open_console()
    new_id = _ids()
    async with reach as reached:
        client = reached.client
        about = await client.about()
        lines = [f"Holdfast {about.version} · {about.model.name} · chat {name} · {client.base_url}", KEYS]
        lines += [EMBEDDED] if reached.embedded else []
        print_lines(console, [Text(line, "note") for line in lines])
        if new:
            await client.settle(name, "/new", new_id())
        dialogue = Dialogue(client, name, console, await client.commands(), history_file, new_id)
        under_way = await client.under_way(name)
        dialogue.resume(await client.conversation(name), under_way)
        await dialogue.run()
        if not reached.embedded:
            dialogue.say_what_is_left()
        elif dialogue.busy:
            await dialogue.stop()  # else the gateway would wait for the answer before it leaves
    return 0


async def _ask(
    reach: "AbstractAsyncContextManager[Reached]", name: str, new: bool, question: str, as_json: bool
) -> int:
    from holdfast.cli.question import ask_once

    new_id = _ids()
    async with reach as reached:
        if new and name:
            await reached.client.settle(name, "/new", new_id())
        chat = name or f"once-{new_id()}"
        return await ask_once(reached.client, chat, question, new_id=new_id, once=not name, as_json=as_json)


def _ids() -> Callable[[], str]:
    import random

    from holdfast.core.clock import Ids, SystemClock

    return Ids(SystemClock(), random.SystemRandom()).new
