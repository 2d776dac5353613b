"""`holdfast reload`: have the running gateway read its settings again."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.plain import plain

if TYPE_CHECKING:
    from holdfast.cli.client import Reloaded
    from holdfast.core.settings import Places, Settings


def reload(
    url: Annotated[
        str, typer.Option(metavar="URL", help="The gateway, or the link to its web chat; else the one of this machine.")
    ] = "",
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="The gateway's token; else the one of this machine.")
    ] = "",
) -> None:
    """Have the running gateway read its settings again.

    Some take effect at once, others with the next start; it says which. If something is wrong, nothing changes.
    """
    import anyio

    from holdfast.core.settings import load_settings

    reloaded = anyio.run(_reload, *load_settings(os.environ), url, token)
    typer.echo(plain(report(reloaded.changed, reloaded.needs_restart)))


async def _reload(settings: "Settings", places: "Places", url: str, token: str) -> "Reloaded":
    from holdfast.cli.address import find_address
    from holdfast.cli.client import open_client

    async with open_client(find_address(settings, places, url=url, token=token)) as client:
        return await client.reload()


def report(changed: Sequence[str], needs_restart: Sequence[str]) -> str:
    """What came of it, by the settings' names."""
    lines = []
    if changed:
        lines.append(f"In effect now: {', '.join(changed)}")
    if needs_restart:
        lines.append(f"In effect after a restart: {', '.join(needs_restart)}")
    return "\n".join(lines) or "Nothing has changed."
