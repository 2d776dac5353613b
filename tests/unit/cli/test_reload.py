"""What `holdfast reload` does and says."""

from pathlib import Path

import pytest

from holdfast.cli import run
from holdfast.cli.reload import report
from holdfast.testing.processes import free_port, running_gateway


def test_what_is_in_effect_and_what_waits_is_said_in_plain_words() -> None:
    assert report([], []) == "Nothing has changed."
    assert report(["turn.stall", "residents.limit"], []) == "In effect now: turn.stall, residents.limit"
    assert report([], ["server.port"]) == "In effect after a restart: server.port"
    assert report(["turn.stall"], ["server.port"]).splitlines() == [
        "In effect now: turn.stall",
        "In effect after a restart: server.port",
    ]


def test_a_real_gateway_reads_its_settings_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    file = tmp_path / "holdfast.toml"
    with running_gateway(tmp_path) as gateway:
        at = ["--url", gateway.link]
        monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
        file.write_text("[residents]\nlimit = 5\n[log]\nlevel = 'debug'\n")
        assert run(["reload", *at]) == 0
        assert capsys.readouterr().out == "In effect now: residents.limit\nIn effect after a restart: log.level\n"
        file.write_text("[residents]\nlimit = 5\n")
        assert run(["reload", *at]) == 0
        assert capsys.readouterr().out == "Nothing has changed.\n"
        file.write_text("[residents]\nlimit = 'five'\n")
        said = f'holdfast: {file}:2: [residents] limit: found "five", but it must be a whole number from 1 upwards\n'
        assert run(["reload", *at]) == 2
        assert capsys.readouterr() == ("", said)
        monkeypatch.setenv("HOLDFAST_HOME", str(elsewhere))  # where the file is the gateway's alone
        assert run(["reload", *at]) == 1
        assert capsys.readouterr() == ("", said)


def test_no_gateway_is_one_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SERVER__PORT", str(port))
    assert run(["reload"]) == 1
    assert capsys.readouterr() == ("", f"holdfast: No gateway answers at http://127.0.0.1:{port}.\n")
