"""The reference page says what the code does."""

import re
from pathlib import Path

import pytest

from holdfast.models import failures
from holdfast.models.providers import PRESETS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/models.md").read_text()


@pytest.mark.parametrize("name", PRESETS)
def test_every_provider_is_in_the_table_as_it_is(name: str) -> None:
    preset = PRESETS[name]
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.M)
    for value in (preset.key_variable, preset.base_url, preset.model):
        assert not value or f"`{value}`" in row


def test_the_table_is_in_the_order_of_the_choice() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == ["provider", *PRESETS]


def test_every_code_is_explained() -> None:
    codes = set(re.findall(r'code="(\w+)"', Path(failures.__file__).read_text()))
    assert codes
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()
