"""The way to a gateway: the one that runs, or one of our own for as long as it is needed."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TextIO

import msgspec

from holdfast.cli.address import Address, find_address
from holdfast.cli.client import GatewayAway, GatewayClient, open_client
from holdfast.core.errors import AlreadyRunning, SettingsError
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

    An embedded one writes what is worth a warning to `log_file`, or to standard error.
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
    from holdfast.app import configure_logs, open_app

    try:
        with _log(log_file) as log:
            configure_logs(msgspec.structs.replace(settings.log, level="warning"), log)
            async with open_app(settings, places, port=0) as running:
                yield Address(running.base_url, Secret(running.token))
    except AlreadyRunning as error:
        raise AlreadyRunning(f"{error} Or say with --url where it answers.") from None


@contextmanager
def _log(file: Path | None) -> Iterator[TextIO]:
    """A file to append to that only its owner can read."""
    if file is None:
        yield sys.stderr
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"{file.parent}: the data folder can't be used: {error.strerror}") from None
    with os.fdopen(descriptor, "w", buffering=1, encoding="utf-8") as opened:
        yield opened
