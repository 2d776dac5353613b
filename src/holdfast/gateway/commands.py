"""Slash commands: the same meaning and help on every channel. A command never waits for a model."""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.gateway.chats import AwakeChat

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
    had_one, dropped = await gateway.conversations.begin_anew(chat, before=call.number)
    told = f" {dropped} waiting {'message was' if dropped == 1 else 'messages were'} dropped." if dropped else ""
    return ("A new conversation begins; the old one is kept." if had_one else "A new conversation begins.") + told


async def _stop(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    if chat.turn is None:
        return "Nothing is running."
    chat.turn.stop("stop")
    return "Stopped."


async def _status(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    return await gateway.conversations.describe(chat)


async def _help(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    return "\n".join(f"/{command.name}: {command.help}" for command in COMMANDS)


async def _model(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    session = await chat.conversation()
    now = gateway.conversations.model_of(chat)
    name = call.rest
    if not name:
        return f"The model is {now.name} ({now.provider}). /model NAME changes it for this conversation."
    if len(name.split()) > 1 or len(name) > LONGEST_NAME:
        return "A model's name is one word: /model NAME."
    if gateway.model.alone and name != gateway.model.name:
        return f"There is no other model than {gateway.model.name} here; the operator can configure a provider."
    if name == now.name:
        return f"The model is {name} already."
    wanted = "" if name == gateway.model.name else name
    notes = session.controls.notes
    if session.next_seq:
        notes = (*notes, f"From here on the model is {name}; earlier answers were given by {now.name}.")
    await gateway.conversations.control(chat, session, replace(session.controls, model=wanted, notes=notes))
    return f"From the next message on the model is {name}. The conversation goes on."


async def _reasoning(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    session = await chat.conversation()
    effort = call.rest.lower()
    now = session.controls.reasoning or DEFAULT_EFFORT
    if not effort:
        return f"The reasoning effort is {now}. /reasoning EFFORT changes it: {', '.join(EFFORTS)}."
    if effort not in EFFORTS:
        return f"There is no reasoning effort {call.rest!r}; it may be {', '.join(EFFORTS)}."
    if not gateway.conversations.model_of(chat).reasons:
        return f"{gateway.conversations.model_of(chat).name} can't be told here how hard to think."
    wanted = "" if effort == DEFAULT_EFFORT else effort
    await gateway.conversations.control(chat, session, replace(session.controls, reasoning=wanted))
    return f"From the next message on the reasoning effort is {effort}."


async def _undo(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    if call.rest and not (call.rest.isdecimal() and 0 < int(call.rest) <= MOST_UNDONE):
        return f"/undo takes a number from 1 to {MOST_UNDONE}: how many of your messages to take back."
    if chat.turn or chat.mailbox:
        return "An answer is on its way; /stop it first, or wait for it."
    count, used_tools = await chat.between_turns(
        lambda session: gateway.conversations.undo(session, int(call.rest or 1))
    )
    if not count:
        return "There is nothing to undo."
    what = "Your last message and its answer are" if count == 1 else f"Your last {count} messages and their answers are"
    return f"{what} undone." + (" What tools did meanwhile can't be undone." if used_tools else "")


async def _resume(gateway: "Gateway", chat: AwakeChat, call: Call) -> str:
    row = await gateway.conversations.resume(chat)
    if row is None:
        return "There is no earlier conversation here."
    return f"The earlier conversation goes on: {row.title or row.id}."


LONGEST_NAME = 200
MOST_UNDONE = 100
DEFAULT_EFFORT = "default"
EFFORTS = (DEFAULT_EFFORT, "none", "minimal", "low", "medium", "high", "xhigh")

COMMANDS = (
    Command("new", "End this conversation and begin a new one.", _new, also=("reset",)),
    Command("stop", "Stop the running answer.", _stop),
    Command("undo", "Take back your last message and its answer; /undo 3 takes back three.", _undo),
    Command("resume", "Go on with the conversation that ended last.", _resume),
    Command("model", "Show the model, or change it for this conversation.", _model),
    Command("reasoning", "Show how hard the model thinks, or change it.", _reasoning),
    Command("status", "Show the model, the conversation and what runs.", _status),
    Command("help", "List the commands.", _help, also=("start",)),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.also)}
