"""What `holdfast status` tells a person."""

import io
import json
from pathlib import Path

import pytest

from holdfast.cli import run
from holdfast.cli.status import report
from holdfast.testing.processes import free_port, running_gateway

NOW = 1_800_000_000.0

STATUS = {
    "version": "1.2.3",
    "started": NOW - 3 * 86400,
    "model": "some-model",
    "residents": 1,
    "sessions": [
        {
            "id": "s1",
            "chat": "terminal:main",
            "state": "running",
            "agent": "some-model",
            "signature": "x",
            "bytes": 18_234,
            "last_used": NOW - 2,
            "owns": ["process 4711", "browser"],
            "waiting": 1,
        },
        {
            "id": "s2",
            "chat": "web:\x1b[2Jx",
            "state": "awake",
            "agent": None,
            "signature": None,
            "bytes": 0,
            "last_used": NOW - 3700,
            "owns": [],
            "waiting": 0,
        },
    ],
    "resources": [
        {"kind": "database", "name": "/data/holdfast.db", "owner": "process", "since": NOW - 200},
        {"kind": "process", "name": "sleep", "owner": "s1", "since": 0},
    ],
    "transports": [{"kind": "transport", "name": "https://example.org", "owner": "process", "since": NOW - 90}],
    "rss": 81_234_567,
    "descriptors": [
        {"name": "1 /dev/null", "owner": "process"},
        {"name": "3 epoll", "owner": "the event loop"},
        {"name": "4 pipe", "owner": "s1"},
        *({"name": f"{n} socket", "owner": "socket pool https://example.org"} for n in range(5, 8)),
    ],
    "threads": [{"name": "MainThread", "owner": "process"}, {"name": "store-writer", "owner": "the store"}],
    "children": [{"name": "4711", "owner": "s1"}],
}


def test_everything_is_told_with_its_owner() -> None:
    lines = report(STATUS, NOW, 200).splitlines()
    assert [" ".join(line.split()) for line in lines if not line.startswith("up since")] == [
        "version 1.2.3",
        "model some-model",
        "memory 81 MB",
        "descriptors 6: 3 of socket pool https://example.org, 1 of the process, 1 of the event loop, 1 of session s1",
        "threads 2: 1 of the process, 1 of the store",
        "children 4711 of session s1",
        "sessions 2 awake, 1 of them with a warm agent",
        "",
        "database /data/holdfast.db of the process for 3 min",
        "process sleep of session s1",
        "transport https://example.org of the process for 90 s",
        "",
        "session s1 in terminal:main",
        "running, 1 waiting; agent some-model, 18 kB; last used 2 s ago; owns process 4711, browser",
        "",
        "session s2 in web:[2Jx",
        "awake; no agent; last used 61 min ago; owns nothing",
    ]
    assert [line for line in lines if line.startswith("up since") and line.endswith(", 3 d")]


@pytest.mark.parametrize("width", [80, 60, 40])
def test_it_fits_the_terminal_it_is_shown_in(width: int) -> None:
    lines = report(STATUS, NOW, width).splitlines()
    assert max(map(len, lines)) <= max(width, len("             3 of socket pool https://example.org,"))
    for whole in ("3 of socket pool https://example.org", "session s1 in terminal:main", "database"):
        assert any(whole in line for line in lines), "what belongs together is not broken in two"


def test_the_descriptors_of_many_sessions_are_told_together() -> None:
    status = {
        **STATUS,
        "sessions": [{**STATUS["sessions"][0], "id": f"s{number}"} for number in range(40)],
        "descriptors": [{"name": f"{number} pipe", "owner": f"s{number // 2}"} for number in range(80)],
    }
    assert "descriptors  80: 80 of 40 sessions\n" in report(status, NOW)


def test_a_system_that_does_not_tell_is_told() -> None:
    assert "descriptors  not told by this system\n" in report({**STATUS, "descriptors": None}, NOW)


def test_a_gateway_with_nothing_in_memory_is_told_too() -> None:
    text = report({**STATUS, "sessions": [], "resources": [], "transports": [], "children": []}, NOW)
    assert "children     none" in text
    assert text.endswith("sessions     0 awake, 1 of them with a warm agent")


def test_no_gateway_is_one_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_SERVER__PORT", str(port))
    assert run(["status"]) == 1
    said = f"holdfast: No gateway answers at http://127.0.0.1:{port}. Start one with: holdfast serve\n"
    assert capsys.readouterr() == ("", said)


def test_the_status_of_a_real_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_gateway(tmp_path) as gateway:
        at = ["--url", gateway.link]
        monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
        monkeypatch.setattr("sys.stdin", io.StringIO())
        assert run(["chat", "--chat", "main", "-m", "say hi", *at]) == 0
        assert capsys.readouterr().out == "hi\n"
        assert run(["status", *at]) == 0
        shown = capsys.readouterr().out
        assert "in terminal:main\n  resident; agent demo, " in shown
        assert f"\nlistener    127.0.0.1:{gateway.port} " in shown
        assert " of the event loop, " in shown
        assert run(["status", "--json", *at]) == 0
        told = json.loads(capsys.readouterr().out)
    assert told["sessions"][0]["chat"] == "terminal:main"
    assert told["rss"] > 10_000_000
