"""The pages of docs/reference, made from the code.

`python -m holdfast.cli.reference` says which pages no longer tell what the code does; `--write` writes them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from holdfast.core.settings import LIVE_SECTIONS, SECTIONS, SETTINGS

FOLDER = Path("docs/reference")
_NOTE = "<!-- Made from the code by `python -m holdfast.cli.reference --write`; change it there. -->"

_SETTINGS = """\
# Settings

Settings stand in `holdfast.toml`; `holdfast init` writes one with every setting in it, explained. The file
lies in `$HOLDFAST_HOME` together with all data; without that variable, in the platform's own folder for
settings (on Linux `~/.config/holdfast`). Every setting can also be given as an environment variable. The
environment beats the file, and the file beats the default.

- **Times** are numbers of seconds or text such as `"90 s"`, `"30 min"`, `"1 h"` and `"2 d"`.
- **Sizes** are numbers of bytes or text such as `"512 MiB"` and `"2 GB"`.
- **Lists** in a variable are separated by commas, or JSON.
- **Secrets** are text, `{ env = "NAME" }` for what another variable holds, or `{ file = "path" }` for what
  a file holds, such as a container's secret or a service's credential. A relative path starts at the folder
  of the settings file. A secret is never logged or shown.

A setting that is wrong or unknown stops the start with one line: where it stands, what was found and what
is allowed.

**While the gateway runs**, `holdfast reload`, `POST /admin/reload` and the signal SIGHUP have it read the file again.
What has changed in {live} takes effect at once.
All else waits for the next start, and you are told which settings those are. If something is wrong, you get the
same one line, and nothing changes. For systemd: `ExecReload=kill -HUP $MAINPID`.
"""


def settings_reference() -> str:
    """The page on all settings."""
    *sections, last = (f"`[{name}]`" for name in LIVE_SECTIONS)
    head = _SETTINGS.replace("{live}", f"{', '.join(sections)} and {last}")
    lines = [_NOTE, *head.splitlines()]
    for section, struct in SECTIONS.items():
        settings = [setting for setting in SETTINGS if setting.section == section]
        if not settings:
            continue
        lines += ["", f"## [{section}]", "", struct.__doc__ or "", ""]
        lines += ["| setting | default | what it is | what it may be | variable |", "| --- | --- | --- | --- | --- |"]
        for setting in settings:
            default = setting.shown(setting.default)
            cells = (f"`{setting.name}`", f"`{default}`", setting.description, setting.allowed, f"`{setting.variable}`")
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


_COMMANDS = """\
# Commands

A message that begins with a slash and a word is a command. Commands mean the same on every channel, and never wait
behind an answer that is on its way. To say such a word to the agent, begin with another one.
"""

_ON_COMMANDS = """\
- **A conversation that ended** is kept: by `/new`, by `[expiry]` in the [settings](settings.md), or by an operator.
  `/resume` takes up the one that ended last, with all that was said in it.
- **`/model` and `/reasoning`** hold for this conversation, survive restarts, and end with it. In the middle of an
  answer they wait for the next message. The conversation, its files and what runs in it stay as they are.
- **`/undo`** takes messages back in the store and in memory alike; they stay in the database, marked. What a tool has
  done meanwhile stays done.
- What each of them does to each thing is a table: [What lives how long](../lifecycle.md).
"""


def commands_reference() -> str:
    """The page on all commands."""
    from holdfast.gateway.commands import COMMANDS

    lines = [_NOTE, *_COMMANDS.splitlines(), "", "| command | what it does |", "| --- | --- |"]
    for command in COMMANDS:
        names = ", ".join(f"`/{name}`" for name in (command.name, *command.also))
        lines.append(f"| {names} | {command.help} |")
    return "\n".join([*lines, "", *_ON_COMMANDS.splitlines()]) + "\n"


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"commands.md": commands_reference, "settings.md": settings_reference}
)
"""The pages by their file's name. A page that needs a heavy import makes it when it is rendered."""


def outdated(folder: Path) -> list[Path]:
    """The pages that differ from what the code would make of them."""
    files = {folder / name: page for name, page in PAGES.items()}
    return [file for file, page in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != page()]


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    if arguments == ["--write"]:
        write(FOLDER)
    pages = outdated(FOLDER)
    for page in pages:
        sys.stderr.write(f"{page} differs from the code: run python -m holdfast.cli.reference --write\n")
    return 1 if pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
