"""The way to a gateway: the one that runs, or one of our own for as long as it is needed."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.cli.address import Address, find_address
from holdfast.cli.client import GatewayAway, GatewayClient, open_client
from holdfast.core.errors import AlreadyRunning
from holdfast.core.ledger import Ledger
from holdfast.core.settings import Places, Secret, Settings


class Reached(msgspec.Struct, frozen=True):
    client: GatewayClient
    embedded: bool
    """It lives in this process, and ends with it."""


@asynccontextmanager
async def open_reach(
    settings: Settings, places: Places, *, url: str = "", token: str = "", log_file: Path | None = None
) -> AsyncIterator[Reached]:
    """The gateway at `url`, else the one of these settings, else an embedded one.

    An embedded one writes what is worth a warning to `[log] file`, to `log_file`, or to standard error.
    """
    address = find_address(settings, places, url=url, token=token)
    async with open_client(address) as client:
        if await client.ready():
            yield Reached(client, embedded=False)
            return
    if url:
        raise GatewayAway(f"No gateway answers at {address.base_url}.")
    async with _open_embedded(settings, places, log_file) as own, open_client(own) as client:
        yield Reached(client, embedded=True)


@asynccontextmanager
async def _open_embedded(settings: Settings, places: Places, log_file: Path | None) -> AsyncIterator[Address]:
    from holdfast.app import open_app
    from holdfast.logs import open_logs

    file = settings.log.file or str(log_file or "")
    logged = msgspec.structs.replace(settings.log, level="warning", file=file)
    ledger, colours = Ledger(), "NO_COLOR" not in os.environ
    try:
        with open_logs(logged, sys.stderr, folder=places.data, ledger=ledger, colours=colours):
            async with open_app(settings, places, port=0, ledger=ledger) as running:
                yield Address(running.base_url, Secret(running.token))
    except AlreadyRunning as error:
        raise AlreadyRunning(f"{error} Or say with --url where it answers.") from None
