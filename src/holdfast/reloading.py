"""Settings that change while the gateway runs: read again, and taken over as far as that can be."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import anyio
import anyio.to_thread
import structlog
from msgspec.structs import replace

from holdfast.api.surface import Reloaded
from holdfast.core.errors import SettingsError
from holdfast.core.setting import Setting
from holdfast.core.settings import LIVE_SECTIONS, SETTINGS, Settings

log = structlog.get_logger(__name__)


class Reloading:
    """Knows the settings that are in force, and where to read others."""

    def __init__(self, settings: Settings, read: Callable[[], Settings], change: Callable[[Settings], None]) -> None:
        """`change` takes all of the new settings over or, with a `SettingsError`, none."""
        self._in_force = settings
        self._read = read
        self._change = change
        self._one_at_a_time = anyio.Lock()

    async def reload(self) -> Reloaded:
        """Read the settings again. Raises `SettingsError` when something is wrong with them: then nothing changes."""
        async with self._one_at_a_time:
            try:
                read = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
                taken = replace(self._in_force, **{name: getattr(read, name) for name in LIVE_SECTIONS})
                self._change(taken)
            except SettingsError as error:
                log.error("the settings stay as they were, for the new ones are wrong", cause=str(error))
                raise
            reloaded = Reloaded(changed=differing(self._in_force, taken), needs_restart=differing(taken, read))
            self._in_force = taken
        log.info("the settings were read again", changed=reloaded.changed, needs_restart=reloaded.needs_restart)
        return reloaded


def differing(one: Settings, other: Settings) -> list[str]:
    """The names of the settings in which they differ, never with a value: it may be a secret."""
    return [".".join(setting.key) for setting in SETTINGS if _value(one, setting) != _value(other, setting)]


def _value(settings: Settings, setting: Setting) -> Any:
    return reduce(getattr, setting.key, settings)
