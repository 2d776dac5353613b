"""Settings that are read again: all of what is right is taken over or named, and nothing of what is wrong."""

import threading
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast.api.surface import Reloaded
from holdfast.core.errors import SettingsError
from holdfast.core.setting import Secret, Setting
from holdfast.core.settings import LIVE_SECTIONS, SETTINGS, Settings
from holdfast.reloading import Reloading
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import echo

pytestmark = pytest.mark.anyio

LIVE = [setting for setting in SETTINGS if setting.section in LIVE_SECTIONS]
OTHERS = {
    "expiry.policy": "idle 12 h daily 4:00 force",
    "expiry.rules": ("telegram daily 4:00 Europe/Berlin",),
    "expiry.zone": "UTC",
}


def name(setting: Setting) -> str:
    return ".".join(setting.key)


def other(setting: Setting) -> Any:
    """A value that is not the default."""
    if name(setting) in OTHERS:
        return OTHERS[name(setting)]
    match setting.kind:
        case "number" | "seconds" | "bytes":
            return setting.default + 4096
        case "secret":
            return Secret("s3cret")
        case "list":
            return ("other",)
    return "other"


def changed(settings: Any, key: tuple[str, ...], value: Any) -> Any:
    """The same settings but for one."""
    first, *rest = key
    inner = changed(getattr(settings, first), tuple(rest), value) if rest else value
    return msgspec.structs.replace(settings, **{first: inner})


class Reader:
    """Stands for the file: what it holds by now, or what is wrong with it."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.problem = ""

    def __call__(self) -> Settings:
        if self.problem:
            raise SettingsError(self.problem)
        return self.settings


@pytest.fixture
def reader() -> Reader:
    return Reader()


def reloading(reader: Callable[[], Settings], taken: list[Settings]) -> Reloading:
    return Reloading(Settings(), reader, taken.append)


@pytest.mark.parametrize("setting", SETTINGS, ids=name)
async def test_every_setting_that_differs_is_named_as_in_effect_or_as_waiting(setting: Setting, reader: Reader) -> None:
    taken: list[Settings] = []
    reader.settings = changed(Settings(), setting.key, other(setting))
    reloaded = await reloading(reader, taken).reload()
    if setting in LIVE:
        assert reloaded == Reloaded(changed=[name(setting)], needs_restart=[])
        assert taken == [reader.settings]
    else:
        assert reloaded == Reloaded(changed=[], needs_restart=[name(setting)])
        assert taken == [Settings()]


async def test_what_waits_for_a_restart_is_named_each_time_and_what_took_effect_once(reader: Reader) -> None:
    taken: list[Settings] = []
    again = reloading(reader, taken)
    reader.settings = changed(changed(Settings(), ("turn", "stall"), 60), ("server", "port"), 1)
    assert await again.reload() == Reloaded(["turn.stall"], ["server.port"])
    assert await again.reload() == Reloaded([], ["server.port"])
    reader.settings = Settings()
    assert await again.reload() == Reloaded(["turn.stall"], [])
    assert await again.reload() == Reloaded([], [])


async def test_wrong_settings_change_nothing_and_are_told_in_the_log_and_to_the_caller(reader: Reader) -> None:
    taken: list[Settings] = []
    again = reloading(reader, taken)
    reader.problem = "holdfast.toml:1: something is wrong"
    with capture_logs() as logged, pytest.raises(SettingsError, match=r"^holdfast\.toml:1: something is wrong$"):
        await again.reload()
    assert [(line["log_level"], line["cause"]) for line in logged] == [("error", reader.problem)]
    assert taken == []
    reader.problem, reader.settings = "", changed(Settings(), ("turn", "stall"), 60)
    assert await again.reload() == Reloaded(["turn.stall"], [])


async def test_settings_that_the_gateway_refuses_change_nothing(reader: Reader, tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        again = Reloading(Settings(), reader, bench.gateway.change)
        reader.settings = changed(changed(Settings(), ("expiry", "zone"), "Middle/Earth"), ("turn", "stall"), 60)
        with pytest.raises(SettingsError, match="Middle/Earth"):
            await again.reload()
        assert bench.gateway.settings == Settings()
        reader.settings = changed(Settings(), ("turn", "stall"), 60)
        assert await again.reload() == Reloaded(["turn.stall"], [])


@pytest.mark.parametrize("setting", LIVE, ids=name)
async def test_the_gateway_takes_over_every_setting_that_is_said_to_be_in_effect(
    setting: Setting, reader: Reader, tmp_path: Path
) -> None:
    async with open_bench(tmp_path, echo) as bench:
        reader.settings = changed(Settings(), setting.key, other(setting))
        await Reloading(Settings(), reader, bench.gateway.change).reload()
        assert reduce(getattr, setting.key, bench.gateway.settings) == other(setting)
        assert (await bench.say("hello")).text == "you said hello"


async def test_a_secret_is_never_shown(reader: Reader) -> None:
    for setting in SETTINGS:
        if setting.kind == "secret":
            reader.settings = changed(reader.settings, setting.key, Secret("s3cret"))
    with capture_logs() as logged:
        reloaded = await reloading(reader, []).reload()
    assert reloaded.needs_restart == [name(setting) for setting in SETTINGS if setting.kind == "secret"]
    assert "s3cret" not in repr(logged) + repr(reloaded)


async def test_of_two_at_once_the_later_one_has_the_last_word() -> None:
    taken: list[Settings] = []
    stalls, first_may_end = iter([60, 70]), threading.Event()

    def read() -> Settings:
        stall = next(stalls)
        if stall == 60:
            assert first_may_end.wait(30)
        return changed(Settings(), ("turn", "stall"), stall)

    again = reloading(read, taken)
    async with anyio.create_task_group() as group:
        group.start_soon(again.reload)
        group.start_soon(again.reload)
        await anyio.wait_all_tasks_blocked()
        first_may_end.set()
    assert [settings.turn.stall for settings in taken] == [60, 70]
