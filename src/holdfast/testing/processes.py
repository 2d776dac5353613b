"""The real gateway as a process of its own: to be talked to, killed and started again."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "a-token-for-tests"
PATIENCE = 30.0


class GatewayProcess:
    """A gateway with a home and a port of its own, on the demo model unless `settings` say otherwise."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {"HOLDFAST_MODEL__PROVIDER": "demo", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def link(self) -> str:
        return f"{self.url}/#token={TOKEN}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def output(self) -> str:
        return (self.home / "output.txt").read_text()

    def start(self, **extra: str) -> None:
        """Start it and wait until it is ready; `extra` are variables for this start alone."""
        self.launch(**extra)
        deadline = time.monotonic() + PATIENCE
        while not self.ready:
            if not self.alive or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the gateway did not get ready:\n{self.output}")
            time.sleep(0.02)

    def launch(self, **extra: str) -> None:
        """Start it without waiting: it may be told to die before it is ready."""
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        environment |= {
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_SERVER__PORT": str(self.port),
            "HOLDFAST_SERVER__TOKEN": TOKEN,
            **self.settings,
            **extra,
        }
        with (self.home / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def wait(self) -> int:
        """Until it has ended; its exit status, negative for a signal."""
        assert self._process
        status = self._process.wait(timeout=PATIENCE)
        self._process = None
        return status

    def terminate(self) -> int:
        """As a service manager stops it."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self.wait()

    def say(self, chat: str, text: str) -> None:
        """Send a message to a chat of the web page, and wait for its answer."""
        body = {"text": text, "id": secrets.token_hex(8)}
        self._request(f"/api/chats/web/{chat}/messages", body, {"Accept": "text/event-stream"})

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        """GET, or POST a JSON body; the JSON that comes back. Raises `OSError` when it does not answer well."""
        return json.loads(self._request(path, body, headers) or b"null")

    def _request(self, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{path}: {error.code} {error.read(2000).decode(errors='replace')}") from None


@contextmanager
def running_gateway(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[GatewayProcess]:
    """A gateway that is up; gone when the block is left, whatever happened in it."""
    gateway = GatewayProcess(home, settings)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
