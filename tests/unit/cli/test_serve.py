"""The screen that `holdfast serve` shows."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.api.surface import Reloaded
from holdfast.app import Running
from holdfast.cli.serve import line, program, screen
from holdfast.core.settings import Places

TOKEN = "t" * 43
LINK = f"http://127.0.0.1:8420/#token={TOKEN}"


@pytest.fixture
def running(tmp_path: Path) -> Running:
    places = Places(None, tmp_path / "holdfast.toml", Path("/some where/data"))
    why = "there is no key and no server here"
    return Running("http://127.0.0.1:8420", TOKEN, "demo", "demo", why, places, reload=nothing)


async def nothing() -> Reloaded:
    return Reloaded([], [])


@pytest.mark.parametrize("width", [200, 80, 40, 10])
def test_one_screen_says_where_what_why_and_how_to_stop(running: Running, width: int) -> None:
    text = screen(running, "holdfast", width=width, colour=False)
    assert f" {LINK}\n" in text
    assert " holdfast chat\n" in text
    assert " /some where/data\n" in text
    assert "demo: there is no key and no server here" in " ".join(text.split())
    assert "holdfast init sets up a real one." in " ".join(text.split())
    assert "Ctrl-C stops" in text
    assert len(text.splitlines()) < 24
    assert "\x1b" not in text


def test_prose_fits_a_narrow_terminal(running: Running) -> None:
    rows = screen(running, "holdfast", width=40, colour=False).splitlines()
    assert [row for row in rows if len(row) > 40] == [f"  {LINK}"]


def test_colours_are_few_and_never_in_the_link(running: Running) -> None:
    text = screen(running, "holdfast", width=80, colour=True)
    assert "\x1b[1mHoldfast" in text
    assert LINK in text


def test_a_real_model_and_a_settings_file_need_no_hints(running: Running) -> None:
    running.places.config_file.touch()
    real = msgspec.structs.replace(running, provider="openai", model="big", why="")
    text = screen(real, "holdfast", width=80, colour=False)
    assert "init" not in text
    assert "  Model     big\n" in text
    assert f"  Settings  {running.places.config_file}\n" in text


def test_without_a_terminal_it_is_one_line_and_no_log_gets_the_token(running: Running) -> None:
    assert line(running) == (
        f"Holdfast {running.version} is ready: {running.base_url} · model demo (there is no key and no server here)"
        " · data in /some where/data"
    )


def test_the_commands_it_names_can_be_run_from_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "holdfast"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program() == str(script)
    monkeypatch.chdir(tmp_path)
    assert program() == "bin/holdfast"
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin")
    assert program() == "holdfast"
    monkeypatch.setattr(sys, "argv", ["/x/holdfast/__main__.py"])
    assert program() == "python -m holdfast"


@pytest.mark.proves("invariant 13")
def test_a_data_folder_that_is_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOLDFAST_MODEL__PROVIDER": "demo"}
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout
            url = first.stdout.readline().split()[4].partition("/#")[0]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        finally:
            first.terminate()
            first.communicate(timeout=30)
    assert first.returncode == 0
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == f"holdfast: Another Holdfast (process {first.pid}, {url}) uses {tmp_path}; stop it first.\n"
