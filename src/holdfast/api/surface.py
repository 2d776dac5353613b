"""What the HTTP side is given to work with, and where it can be reached."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core.clock import Clock, Ids
from holdfast.core.ledger import Ledger
from holdfast.core.settings import Settings
from holdfast.gateway import Gateway

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Reloaded(msgspec.Struct, frozen=True):
    """What came of reading the settings again, by the settings' names, such as `residents.limit`."""

    changed: list[str]
    """What took effect."""
    needs_restart: list[str]
    """What differs from what is in force, and waits for the next start."""


Reload: TypeAlias = Callable[[], Awaitable[Reloaded]]
"""Reads the settings again. Raises `SettingsError` when they are wrong, and then nothing changes."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that an endpoint may touch. Lives as long as the process."""

    gateway: Gateway
    settings: Settings
    token: str
    ledger: Ledger
    clock: Clock
    ids: Ids
    model_why: str
    """How the model came to be chosen, for people."""
    version: str
    started: float
    reload: Reload


class Address(NamedTuple):
    """The host and port that the server is really bound to."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """An address that works from this machine."""
        host = _EVERY_ADDRESS.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
