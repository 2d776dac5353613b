"""The reference pages say what the code does, and the check notices when they don't."""

from pathlib import Path

import pytest

from holdfast.cli.reference import PAGES, main, outdated, settings_reference, write
from holdfast.core.settings import SETTINGS

ROOT = Path(__file__).parents[3]


def test_the_pages_in_the_repository_are_up_to_date() -> None:
    assert outdated(ROOT / "docs/reference") == [], "run python -m holdfast.cli.reference --write"


def test_every_setting_is_on_the_page() -> None:
    page = settings_reference()
    assert [setting.variable for setting in SETTINGS if f"`{setting.variable}`" not in page] == []
    assert [setting.name for setting in SETTINGS if setting.description not in page] == []


def test_a_page_that_differs_or_is_missing_is_noticed(tmp_path: Path) -> None:
    assert outdated(tmp_path) == [tmp_path / name for name in PAGES]
    write(tmp_path)
    assert outdated(tmp_path) == []
    page = tmp_path / "settings.md"
    page.write_text(page.read_text() + "more\n")
    assert outdated(tmp_path) == [page]


def test_the_command_checks_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 1
    assert "docs/reference/settings.md differs from the code: run" in capsys.readouterr().err
    assert main(["--write"]) == 0
    assert main([]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "docs/reference/settings.md").read_text() == settings_reference()
