"""What a conversation owns, for real: a shell that can be talked to, and processes in the background."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import Process

from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import ToolContext
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import calls
from holdfast.testing.virtual import VirtualLoop
from holdfast.tools.function import tool

DONE = b"--done--\n"
FAMILY = "sleep 1000 & exec sleep 1000"
"""A process with a child of its own."""


def in_real_time() -> AbstractContextManager[None]:
    """What other processes do takes real time."""
    loop = asyncio.get_running_loop()
    return loop.hold() if isinstance(loop, VirtualLoop) else nullcontext()


@asynccontextmanager
async def open_child(*command: str, pipe: int = subprocess.DEVNULL) -> AsyncIterator[Process]:
    """A process in a group of its own; the whole group is gone when the block is left."""
    with in_real_time():
        process = await anyio.open_process(command, stdin=pipe, stdout=pipe, stderr=None, start_new_session=True)
    try:
        yield process
    finally:
        with in_real_time(), anyio.CancelScope(shield=True):
            os.killpg(process.pid, signal.SIGKILL)
            await process.aclose()


class Shell:
    """Runs commands one after the other, in one process that keeps its folder and its variables."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run(self, command: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        with in_real_time():
            await self._process.stdin.send(f"{command}\necho {DONE.decode()}".encode())
            said = b""
            while not said.endswith(DONE):
                said += await self._process.stdout.receive()
        return said.removesuffix(DONE).decode().strip()


@asynccontextmanager
async def open_shell() -> AsyncIterator[Shell]:
    async with open_child("/bin/sh", pipe=subprocess.PIPE) as process:
        yield Shell(process)


@tool(toolset="test")
async def shell(context: ToolContext, command: str) -> str:
    """Run a command in the conversation's own shell."""
    return str(await (await context.own("shell", open_shell)).run(command))


@tool(toolset="test")
async def background(context: ToolContext, name: str) -> str:
    """Start a process in the background, once for each name; its number."""
    process: Process = await context.own(name, partial(open_child, "/bin/sh", "-c", FAMILY))
    return str(process.pid)


TOOLS = (shell, background)


async def obedient(messages: Sequence[Message], emit: Any) -> AssistantMessage | str:
    """A model that uses the tool it is told to use: `shell` or `background`, and then a word or more."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return last.text or "(nothing)"
    name, _, rest = last.text.partition(" ")
    arguments = {"shell": {"command": rest}, "background": {"name": rest}}.get(name)
    return calls((name, json.dumps(arguments))) if arguments else "hello"


async def start(bench: Bench, name: str = "server", chat: ChatKey = CHAT) -> list[int]:
    """A process in the background and its child, by their numbers."""
    parent = int((await bench.say(f"background {name}", chat)).text.split()[-1])
    deadline = time.monotonic() + 10
    while not (family := children(parent)):
        assert time.monotonic() < deadline
        await anyio.lowlevel.checkpoint()
    return [parent, *family]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(*pids: int) -> bool:
    """Whether all of them run; one that has ended does not, even if nobody has waited for it yet."""
    return all(_state(pid) not in ("", "Z") for pid in pids)


def gone(*pids: int) -> bool:
    """Whether none of them runs."""
    return all(_state(pid) in ("", "Z") for pid in pids)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
