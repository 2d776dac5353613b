"""The command line: each command is a module of its name, imported when it is called."""

import io
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.core.errors import HoldfastError, SettingsError

COMMANDS = ("serve", "chat", "status", "reload", "link", "init")
INTERRUPTED = 130
_MISUSED = 2
_GRACE = 1.0
"""How many seconds a thread that is about to end is waited for."""


class _Commands(TyperGroup):
    """Imports a command when it is asked for: `holdfast serve` does not pay for what the others need."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"holdfast.cli.{cmd_name}")
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(cmd_name, epilog=getattr(module, "EXAMPLES", None))(getattr(module, cmd_name))
        command = typer.main.get_command(one)
        assert isinstance(command, TyperCommand)
        return command


app = typer.Typer(name="holdfast", cls=_Commands, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def holdfast(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Host AI agents for many chats in one process that stays up for months."""
    if version:
        from holdfast import __version__

        typer.echo(f"holdfast {__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command that was given, and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character shows a question mark
    _leave(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command. What a user can mend is said in one plain line; a traceback means a bug."""
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" ({context.command_path} --help says what there is)" if context else ""
        return _refuse(error.format_message() + hint, _MISUSED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except HoldfastError as error:
        return _refuse(str(error), _MISUSED if isinstance(error, SettingsError) else 1)
    except BaseExceptionGroup as group:  # from tasks that ran side by side
        first, *others = _leaves(group)
        if others or not isinstance(first, HoldfastError):
            raise
        return _refuse(str(first), _MISUSED if isinstance(first, SettingsError) else 1)
    return status if isinstance(status, int) else 0


def _leave(status: int) -> NoReturn:
    """Exit. All that has to be closed is closed by now: a tool that hangs in a thread must not hold the process."""
    deadline = time.monotonic() + _GRACE
    threads = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        with suppress(OSError, ValueError):
            typer.echo("holdfast: left, though a tool still works in a thread", err=True)
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _refuse(message: str, status: int) -> int:
    typer.echo(f"holdfast: {' '.join(message.split())}", err=True)
    return status


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
