"""The composition root: logs that tell no secrets and cost no gateway, and signals that are heeded."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from holdfast.app import LogStream, configure_logs
from holdfast.core.settings import LogSettings
from holdfast.testing.processes import GatewayProcess


@pytest.fixture(autouse=True)
def logs_as_before():
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_logged_exception_shows_no_variables(form: str) -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format=form), stream)
    secret = "sk-very-secret"
    try:
        raise ValueError("what went wrong")
    except ValueError:
        structlog.get_logger().exception("broke")
    text = stream.getvalue()
    assert "what went wrong" in text
    assert "test_app.py" in text
    assert secret not in text


def test_a_log_that_can_not_be_written_costs_its_lines_alone() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    stream = os.fdopen(full, "w", buffering=1, closefd=False)
    try:
        tolerant = LogStream(stream)
        for _ in range(3):
            tolerant.write("a line\n")
            tolerant.flush()
        with pytest.raises(OSError, match="No space"):
            stream.flush()
    finally:
        os.close(full)
        with contextlib.suppress(OSError):
            stream.close()


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
