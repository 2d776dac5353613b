"""The composition root: signals that are heeded, settings that are read again, and limits that are survived."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.testing.processes import GatewayProcess, running_gateway

OUT_OF_DESCRIPTORS = """
import anyio, os, pathlib, resource, tempfile
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import echo
from holdfast.testing.virtual import run_virtual

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with open_bench(pathlib.Path(folder), echo) as bench:
            await bench.say("before")
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            await anyio.sleep(60)
            assert (await bench.say("after")).text == "you said after"
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

run_virtual(main)
print("survived")
"""


def test_running_out_of_descriptors_does_not_end_the_gateway() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_DESCRIPTORS], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("survived"), done.stderr
    assert "memory can't be watched" in done.stdout + done.stderr


def test_a_port_in_use_is_one_line_before_any_work_is_taken_up(tmp_path: Path) -> None:
    first, second = GatewayProcess(tmp_path / "first"), GatewayProcess(tmp_path / "second")
    for gateway in (first, second):
        gateway.home.mkdir()
    second.port = first.port
    try:
        first.start()
        second.launch()
        assert second.wait() == 2
        assert "is in use" in second.output
        assert "Traceback" not in second.output
        third = GatewayProcess(first.home)
        third.launch()
        assert third.wait() == 1
        assert f"process {first.pid}" in third.output
        assert first.terminate() == 0
    finally:
        first.kill()
        second.kill()


def test_the_data_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path)
    try:
        gateway.start()
        for name in ("holdfast.db", "holdfast.db-wal", "gateway.lock"):
            assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
        assert gateway.terminate() == 0
    finally:
        gateway.kill()


# ── settings that are read again ────────────────────────────────────────────────────────────────


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_has_the_gateway_read_its_settings_again(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    with running_gateway(tmp_path) as gateway:
        for chat in ("one", "two", "three"):
            gateway.say(chat, "say hi")
        assert gateway.ask("/admin/status")["residents"] == 3

        file.write_text("[residents]\nlimit = 2\n\n[server]\nconnections = 9\n")
        os.kill(gateway.pid, signal.SIGHUP)
        wait_for(lambda: '"changed": ["residents.limit"], "needs_restart": ["server.connections"]' in gateway.output)
        wait_for(lambda: gateway.ask("/admin/status")["residents"] == 2)
        assert gateway.ask("/admin/reload", {}) == {"changed": [], "needs_restart": ["server.connections"]}

        file.write_text("[residents]\nlimit = 0\n")
        wrong = f"{file}:2: [residents] limit: found 0, but it must be a whole number from 1 upwards"
        os.kill(gateway.pid, signal.SIGHUP)
        wait_for(lambda: wrong in gateway.output)
        with pytest.raises(OSError, match="422") as refused:
            gateway.ask("/admin/reload", {})
        assert wrong in str(refused.value)
        gateway.say("four", "say hi")
        wait_for(lambda: gateway.ask("/admin/status")["residents"] == 2)

        file.unlink()
        os.kill(gateway.pid, signal.SIGHUP)
        wait_for(lambda: '"changed": ["residents.limit"], "needs_restart": []' in gateway.output)
        assert gateway.terminate() == 0
        assert "Traceback" not in gateway.output


def test_what_the_command_line_says_beats_the_file_also_later(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[server]\nport = 1\n[model]\nprovider = 'demo'\n")
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--host", "127.0.0.1"]
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout
            assert "is ready: http://127.0.0.1:" in serving.stdout.readline()
            done = subprocess.run(
                [sys.executable, "-m", "holdfast", "reload"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        finally:
            serving.terminate()
            serving.communicate(timeout=30)
    assert (done.stdout, done.stderr) == ("Nothing has changed.\n", "")


# ── the end of a terminal ───────────────────────────────────────────────────────────────────────

ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios

os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "holdfast", "serve", "--port", "0"])
"""


@pytest.mark.parametrize("disposition", ["SIG_DFL", "SIG_IGN"])
def test_a_terminal_that_is_closed_ends_the_gateway_in_good_order_unless_nohup_says_otherwise(
    tmp_path: Path, disposition: str
) -> None:
    log = tmp_path / "the.log"
    environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOLDFAST_MODEL__PROVIDER": "demo"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, disposition],
        env={**environment, "HOLDFAST_LOG__FILE": str(log)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)

    def reloads() -> int:
        return log.read_text().count("the settings were read again")

    try:
        shown = b""
        while b"Ctrl-C stops it." not in shown:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGHUP)  # from somebody, while the terminal is there
        wait_for(lambda: reloads() == 1)
        os.close(ours)
        if disposition == "SIG_DFL":
            assert process.wait(timeout=30) == 0
            assert '"signal": "SIGHUP"' in log.read_text()
        else:
            wait_for(lambda: reloads() == 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
            assert '"signal": "SIGTERM"' in log.read_text()
    finally:
        with suppress(OSError):
            os.close(ours)
        process.kill()
        process.wait(timeout=30)
