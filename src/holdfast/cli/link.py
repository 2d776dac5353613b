"""`holdfast link`: the way into the web chat."""

import os

import typer


def link() -> None:
    """Print the link to the web chat, with its token.

    Whoever has the link can talk to the agent, so keep it to yourself.
    """
    from holdfast.cli.address import find_address
    from holdfast.core.errors import NotFound
    from holdfast.core.settings import load_settings

    address = find_address(*load_settings(os.environ))
    if not address.token:
        raise NotFound("There is no token yet: the first start of holdfast serve makes it.")
    typer.echo(address.link)
