"""Slash commands: the same meaning and help on every channel. A command never waits for a model."""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.gateway.sessions import AwakeChat

if TYPE_CHECKING:
    from holdfast.gateway.accept import Gateway

_FORM = re.compile(r"/([a-z][a-z_]*)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


class Call(msgspec.Struct, frozen=True):
    """A command as someone gave it."""

    name: str
    rest: str
    number: int = 0
    """Its place in the order of acceptance."""


class Command(msgspec.Struct, frozen=True):
    name: str
    help: str
    """One line for /help, completion and the platform's menu."""
    run: "Callable[[Gateway, AwakeChat, Call], Awaitable[str]]"
    also: tuple[str, ...] = ()


def parse(text: str) -> Call | None:
    """The command in a message; None for ordinary text (a path such as /etc/hosts is ordinary)."""
    found = _FORM.fullmatch(text.strip())
    return Call(found[1].lower(), (found[2] or "").strip()) if found else None


async def execute(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    command = _BY_NAME.get(call.name)
    if command is None:
        return f"There is no command /{call.name}. /help lists them; to say it to the agent, begin with another word."
    return await command.run(gateway, chat, call)


async def _new(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    had_one, dropped = await gateway.begin_anew(chat, before=call.number)
    told = f" {dropped} waiting {'message was' if dropped == 1 else 'messages were'} dropped." if dropped else ""
    return ("A new conversation begins; the old one is kept." if had_one else "A new conversation begins.") + told


async def _stop(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    if chat.turn is None:
        return "Nothing is running."
    chat.turn.stop("stop")
    return "Stopped."


async def _status(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    return await gateway.describe(chat)


async def _help(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    return "\n".join(f"/{command.name}: {command.help}" for command in COMMANDS)


COMMANDS = (
    Command("new", "End this conversation and begin a new one.", _new, also=("reset",)),
    Command("stop", "Stop the running answer.", _stop),
    Command("status", "Show the model, the conversation and what runs.", _status),
    Command("help", "List the commands.", _help, also=("start",)),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.also)}
