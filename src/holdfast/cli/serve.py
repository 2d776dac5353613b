"""`holdfast serve`: run the gateway, and say on one screen what there is to know of it."""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.app import Running

EXAMPLES = """\b
Examples:
  holdfast serve
  holdfast serve --port 9000
  OPENAI_API_KEY=... holdfast serve"""
NARROW = 60


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="The address to listen on, instead of [server] host.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="The port to listen on, instead of [server] port."),
    ] = None,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM.

    It serves the web chat, the HTTP API and the terminal chat, and finishes what it accepted before it leaves.
    """
    import gc

    gc.disable()  # what is imported stays, so looking for garbage in it is a waste: a tenth of the start
    from holdfast import app

    gc.freeze()
    gc.enable()
    # What was said here beats the variables, which beat the file: also when that is read again.
    options = {"HOLDFAST_SERVER__HOST": host, "HOLDFAST_SERVER__PORT": port}
    environ = {**os.environ, **{name: str(value) for name, value in options.items() if value is not None}}
    app.run(lambda ledger: app.serve(environ, ledger, on_ready=_show))


def _show(running: "Running") -> None:
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        colour = "NO_COLOR" not in os.environ
        text = f"\n{screen(running, program(), width=width, colour=colour)}\n\n"
    else:
        text = line(running) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def program() -> str:
    """How the one who started this would start another command of it."""
    this = Path(sys.argv[0])
    if this.name == "__main__.py":
        return "python -m holdfast"
    found = shutil.which("holdfast")
    if found and Path(found).samefile(this):
        return "holdfast"
    return os.path.relpath(this) if this.is_relative_to(Path.cwd()) else str(this)


def line(running: "Running") -> str:
    """For a log or a pipe, where a token has no place; `holdfast link` shows it."""
    model = f"{running.model} ({running.why})" if running.why else running.model
    return f"Holdfast {running.version} is ready: {running.base_url} · model {model} · data in {running.places.data}"


def screen(running: "Running", program: str, *, width: int, colour: bool) -> str:
    """For a person: where to go, what answers, and where things lie."""

    def styled(text: str, *, bold: bool = False, dim: bool = False) -> str:
        return typer.style(text, bold=bold or None, dim=dim or None) if colour else text

    places = running.places
    rows = [
        ("Web chat", running.link),
        ("Terminal", f"{program} chat"),
        ("Model", f"{running.model}: {running.why}" if running.why else running.model),
        ("Data", str(places.data)),
        (
            "Settings",
            str(places.config_file) if places.config_file.exists() else f"defaults; {program} init writes them",
        ),
    ]
    narrow = width < NARROW
    indent = "  " if narrow else " " * 12
    lines = [styled(f"Holdfast {running.version} is ready.", bold=True), ""]
    for label, value in rows:
        # A link or a path that is broken in two can't be clicked or copied: those are left to the terminal.
        wrapped = textwrap.wrap(value, max(width - len(indent), 20)) if label == "Model" else [value]
        start = [styled(label, dim=True), *wrapped[:1]] if narrow else [styled(f"{label:10}", dim=True) + wrapped[0]]
        lines += [*start, *(f"{indent[2:]}{more}" for more in wrapped[1:])]
    if running.provider == "demo":
        lines += ["", *textwrap.wrap(f"This model is a demo; {program} init sets up a real one.", max(width - 2, 20))]
    return "\n".join(f"  {text}".rstrip() for text in [*lines, "", styled("Ctrl-C stops it.", dim=True)])
