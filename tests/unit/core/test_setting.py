"""Secrets that stay secret, quantities with units, and values that survive being written and read."""

import copy
import dataclasses
import json
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.setting import Refused, Secret, Setting
from holdfast.core.settings import SETTINGS, ModelSettings

BY_NAME = {f"{setting.section}.{setting.name}": setting for setting in SETTINGS}
TIME, SIZE, NUMBER = BY_NAME["residents.idle_ttl"], BY_NAME["residents.memory_budget"], BY_NAME["server.port"]
LIST, CHOICE, TEXT = BY_NAME["channels.telegram.allow"], BY_NAME["log.level"], BY_NAME["model.name"]


def test_a_secret_never_shows_itself() -> None:
    secret = Secret("hunter2")
    holder = ModelSettings(api_key=secret)
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>20}",
        "%s %r" % (secret, secret),  # noqa: UP031
        repr(holder),
        repr(msgspec.structs.asdict(holder)),
        repr(dataclasses.asdict(secret)),
        repr(msgspec.to_builtins(holder)),
        msgspec.json.encode(holder).decode(),
        msgspec.msgpack.encode(holder).decode("latin-1"),
        json.dumps({"secret": secret}, default=str),
        repr(copy.copy(secret)),
        BY_NAME["model.api_key"].shown(secret),
    ]
    assert [text for text in shown if "hunter" in text] == []
    assert secret.reveal() == "hunter2"
    assert str(secret) == "…"
    assert str(Secret()) == ""


def test_secrets_compare_by_what_they_hide() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a")
    assert not Secret()


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (0, 0),
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("90 sec", 90),
        ("30 min", 1800),
        ("30m", 1800),
        ("1h", 3600),
        ("1.5 Hours", 5400),
        (" 2 days ", 172800),
    ],
)
def test_a_time_is_given_in_seconds_or_with_a_unit(raw: object, seconds: float) -> None:
    assert TIME.check(raw) == seconds


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4096 B", 4096),
        ("512 MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2 GB", 2 * 10**9),
        ("1 kB", 1000),
        ("1 TiB", 2**40),
    ],
)
def test_a_size_is_given_in_bytes_or_with_a_unit(raw: object, size: int) -> None:
    value = SIZE.check(raw)
    assert value == size
    assert isinstance(value, int)


WRONG: list[tuple[Setting, object]] = [
    *(
        (TIME, raw)
        for raw in ("", "soon", "1 fortnight", "-1 s", "1 h 30", "h", -1, True, [1], float("inf"), float("nan"), "1e3")
    ),
    *((SIZE, raw) for raw in ("", "4 M", "lots", -1, 1.5, False, {"mib": 4}, "9" * 40 + " GiB")),
    *((NUMBER, raw) for raw in (-1, 65536, 10**30, 1.0, "80", True, [])),
    *((LIST, raw) for raw in ("bob", ["bob"], [True], [1.5], [[]], [-5], ["@"], ["1\n"], 7)),
    *((BY_NAME["tools.toolsets"], raw) for raw in ([True], [""], [None], "[files")),
    *((CHOICE, raw) for raw in ("", "INFO", "loud", 1, ["info"])),
    *((TEXT, raw) for raw in ("two\nlines", "\x1b[31m", 1, ["x"])),
]


@pytest.mark.parametrize(("setting", "raw"), WRONG)
def test_what_is_not_allowed_is_refused_in_one_line(setting: Setting, raw: object) -> None:
    with pytest.raises(Refused) as refused:
        setting.check(raw)
    message = str(refused.value)
    assert message.startswith("found ")
    assert f"but it must be {setting.allowed}" in message
    assert message.isprintable()
    assert len(message) < 200


@pytest.mark.parametrize("raw", [1, True, ["hunter2"], {"token": "hunter2"}, "hunter2\n", "hünter2"])
def test_a_refused_secret_is_not_shown(raw: object) -> None:
    with pytest.raises(Refused) as refused:
        BY_NAME["server.token"].check(raw)
    assert "nter2" not in str(refused.value)


def test_a_long_value_is_shown_cut_short() -> None:
    with pytest.raises(Refused, match=r'found "x{27}…" in the list, but') as refused:
        LIST.check(["x" * 500])
    assert refused.value.item == 0


def test_a_refused_choice_names_the_nearest_one() -> None:
    with pytest.raises(Refused, match=r'one of "debug", "info", "warning", "error"; did you mean "warning"\?'):
        CHOICE.check("warn")


@pytest.mark.parametrize(
    ("text", "people"),
    [
        ("", ()),
        ("12", ("12",)),
        (" 12 , @bob,", ("12", "@bob")),
        ('[12, "@bob"]', ("12", "@bob")),
        ("[]", ()),
    ],
)
def test_a_list_is_typed_with_commas_or_as_json(text: str, people: tuple[str, ...]) -> None:
    assert LIST.parse(text) == people


def test_a_number_is_typed_as_digits() -> None:
    assert NUMBER.parse(" 80 ") == 80
    with pytest.raises(Refused, match=r'found "80\.5"'):
        NUMBER.parse("80.5")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.variable)
def test_every_setting_says_what_it_is_and_takes_its_own_default(setting: Setting) -> None:
    assert setting.description.endswith(".")
    assert setting.allowed
    assert setting.check(tomllib.loads(f"value = {setting.shown(setting.default)}")["value"]) == setting.default


@given(st.floats(0, 1e10) | st.integers(0, 10**10), st.integers(0, 2**62))
@example(1e-300, 2**62 - 2**10)
@example(10**10, 2**62 - 1)
def test_a_quantity_is_the_same_after_it_was_shown(seconds: float, size: int) -> None:
    def reread(setting: Setting, value: float) -> Any:
        return setting.check(tomllib.loads(f"value = {setting.shown(value)}")["value"])

    assert reread(TIME, seconds) == seconds
    assert reread(SIZE, size) == size


def test_quantities_are_shown_as_people_write_them() -> None:
    assert [TIME.shown(seconds) for seconds in (0, 0.5, 90, 1800, 3600, 172800)] == [
        "0",
        "0.5",
        "90",
        '"30 min"',
        '"1 h"',
        '"2 d"',
    ]
    assert [SIZE.shown(size) for size in (0, 1000, 4096, 2**30)] == ["0", "1000", '"4 KiB"', '"1 GiB"']
