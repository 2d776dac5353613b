"""One question, one answer: `holdfast chat -m`, made for pipes."""

import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import anyio
import msgspec
from anyio import create_task_group

from holdfast.cli.chat_view import AnswerView
from holdfast.cli.client import GatewayClient
from holdfast.cli.exchange import Happening, follow
from holdfast.cli.plain import one_line
from holdfast.cli.rendering import last_rows, open_console, print_lines
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Answered, Text

PATIENCE = 60.0
"""How long a gateway may be away before the question is given up, in seconds: a restart takes less."""
FAREWELL = 2.0


async def ask_once(
    client: GatewayClient, chat: str, text: str, *, new_id: Callable[[], str], once: bool, as_json: bool
) -> int:
    """Ask, show the answer, and say how it went as an exit status. With `once`, the chat ends with it."""
    number = 0
    answer: Answered | None = None
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with create_task_group() as group:

            async def stop_at_a_signal() -> None:
                nonlocal number
                number = await anext(signals)
                await _farewell(client, chat, "/new" if once else "/stop", new_id())
                group.cancel_scope.cancel()

            group.start_soon(stop_at_a_signal)
            async with aclosing(follow(client, chat, text, new_id(), patience=PATIENCE)) as events:
                answer = await (_collect(events) if as_json or not sys.stdout.isatty() else _watch(events))
            if once:
                await _farewell(client, chat, "/new", new_id())
            group.cancel_scope.cancel()
    if number or not answer:
        return 128 + number
    return _conclude(answer, chat, as_json=as_json)


async def _farewell(client: GatewayClient, chat: str, command: str, message_id: str) -> None:
    # A gateway that does not hear it lets go of the chat by itself, only later.
    with anyio.move_on_after(FAREWELL), suppress(HoldfastError):
        await client.settle(chat, command, message_id)


async def _collect(events: AsyncGenerator[Happening, None]) -> Answered:
    """Wait for the answer; tools and troubles show on standard error."""
    console = open_console(stderr=True)
    view = AnswerView(lambda: console.width)
    async for event in events:
        if isinstance(event, Answered):
            return event
        lines = [] if isinstance(event, Text) else view.feed(event)
        if console.is_terminal:
            print_lines(console, lines)
    raise AssertionError("an exchange ends with its answer")


async def _watch(events: AsyncGenerator[Happening, None]) -> Answered:
    """Show the answer as it comes, for a person who looks on."""
    from rich.live import Live
    from rich.text import Text as Styled

    console = open_console()
    view = AnswerView(lambda: console.width)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        async for event in events:
            if isinstance(event, Answered) and event.outcome == "failed":
                return event
            lines = view.feed(event)
            live.update(Styled.from_ansi(last_rows(console, view.unfinished)))
            print_lines(console, lines)
            live.refresh()
            if isinstance(event, Answered):
                return event
    raise AssertionError("an exchange ends with its answer")


def _conclude(answer: Answered, chat: str, *, as_json: bool) -> int:
    if as_json:
        told = {"chat": chat, **msgspec.to_builtins(answer)}
        told.pop("type", None)
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    elif answer.outcome == "failed":
        sys.stderr.write(f"holdfast: {one_line(answer.text, 2000)}\n")
    elif not sys.stdout.isatty():
        sys.stdout.write(answer.text.rstrip("\n") + "\n")
    return 0 if answer.outcome == "ok" else 1
