"""The servers that are compared, each started alone, and what the kernel says of them."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench.agents import Costs
from bench.load import TOKEN, Dialect, Plan, Result

ROOT = Path(__file__).resolve().parent.parent
FLOOR, FAST, HOLDFAST = "floor", "floor_fast", "holdfast"
NAMES = (FLOOR, FAST, HOLDFAST)
PATIENCE = 20.0


class BenchError(Exception):
    """The run can't go on; the message says why."""


class Process:
    """A running child, seen through /proc."""

    def __init__(self, child: subprocess.Popen[bytes], name: str, port: int, ready: float) -> None:
        self._proc = Path(f"/proc/{child.pid}")
        self.name = name
        self.port = port
        self.ready = ready
        """Seconds from exec to the first healthy answer."""

    @property
    def dialect(self) -> Dialect:
        return "holdfast" if self.name == HOLDFAST else "floor"

    def cpu(self) -> float:
        """Seconds of user and system time so far, of all threads."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> float:
        """Resident memory in MB (of 1024² bytes)."""
        pages = int((self._proc / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        return len(os.listdir(self._proc / "fd"))

    def settle(self) -> None:
        """Wait until it has noticed that its clients left: descriptors the same five times running."""
        seen: list[int] = []
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and (len(seen) < 5 or len(set(seen[-5:])) > 1):
            time.sleep(0.1)
            seen.append(self.descriptors())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def child_environment() -> dict[str, str]:
    """Ours without what would change a child's behaviour; bytecode is kept, as in any real start."""
    foreign = ("PYTHON", "HOLDFAST_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def get(port: int, path: str, timeout: float = 1.0, token: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"Connection": "close"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def _running(
    name: str, command: list[str], port: int, health: str, folder: Path, environment: dict[str, str]
) -> Iterator[Process]:
    """Start a child and wait for its first 200; ask it to end, and see that it does, on the way out."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / f"{name}.log"
    with log_path.open("ab") as log:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        ready = _await_health(child, name, port, health, start, log_path)
        yield Process(child, name, port, ready)
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            print(f"{name} did not end within {PATIENCE:.0f} s of SIGTERM and was killed", file=sys.stderr)
            child.kill()
            child.wait()


def _await_health(child: subprocess.Popen[bytes], name: str, port: int, health: str, start: float, log: Path) -> float:
    while time.perf_counter() - start < PATIENCE:
        try:
            if get(port, health)[0] == 200:
                return time.perf_counter() - start
        except (OSError, http.client.HTTPException):
            pass  # not listening yet
        if child.poll() is not None:
            break
        time.sleep(0.004)
    tail = log.read_text(errors="replace")[-2000:]
    what = f"was not ready within {PATIENCE:.0f} s" if child.poll() is None else "ended before it was ready"
    raise BenchError(f"{name} {what}. The end of its log:\n{tail}")


class Stub:
    """The model that all servers talk to."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.port = process.port

    def stats(self) -> dict[str, int]:
        return msgspec.json.decode(get(self.port, "/stats")[1], type=dict[str, int])


@contextmanager
def open_stub(folder: Path, latency: float = 0.0) -> Iterator[Stub]:
    port = free_port()
    command = [sys.executable, str(ROOT / "bench/llm_stub.py"), f"--port={port}", f"--latency-ms={latency * 1000}"]
    with _running("stub", command, port, "/v1/models", folder, child_environment()) as process:
        yield Stub(process)


@contextmanager
def open_server(
    name: str,
    stub: Stub,
    folder: Path,
    *,
    pad: int = 0,
    durability: str = "normal",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Process]:
    """One of the three, on a data folder that it may find empty or as it left it."""
    port = free_port()
    environment = child_environment()
    if name == HOLDFAST:
        command, health = [sys.executable, "-m", "holdfast", "serve"], "/readyz"
        environment |= {
            "HOLDFAST_HOME": str(folder / "home"),
            "HOLDFAST_SERVER__PORT": str(port),
            "HOLDFAST_SERVER__TOKEN": TOKEN,
            "HOLDFAST_MODEL__BASE_URL": f"http://127.0.0.1:{stub.port}/v1",
            "HOLDFAST_MODEL__NAME": "stub",
            "HOLDFAST_MODEL__API_KEY": "x",
            "HOLDFAST_TOOLS__MODULES": "bench.standin_tools",
        }
        environment |= settings
        if durability != "normal":
            environment["HOLDFAST_STORE__DURABILITY"] = durability
    else:
        script = ROOT / f"bench/{name}.py"
        command, health = [sys.executable, str(script), str(port), str(stub.port), str(folder / "floor.db")], "/health"
        environment["PAD"] = str(pad)
    with _running(name, command, port, health, folder, environment) as process:
        yield process


def apply(plan: Plan) -> Result:
    """Run the load generator to its end. A turn that fails is not a figure, so it ends the run."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=msgspec.json.encode(plan),
        stdout=subprocess.PIPE,
        env=child_environment(),
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the load generator failed on {plan}")
    result = msgspec.json.decode(done.stdout, type=Result)
    if result.failed or result.turns != plan.total:
        raise BenchError(
            f"{result.failed} turns failed and {result.turns} of {plan.total} were answered "
            f"({plan.dialect}, {plan.connections} at once). The first wrong answer:\n{result.failure}"
        )
    return result


class _Session(msgspec.Struct):
    state: str
    bytes: int


class _Status(msgspec.Struct):
    sessions: list[_Session]


def agents_in(server: Process) -> tuple[int, int]:
    """How many warm agents Holdfast has, and how many bytes of history they hold."""
    status = msgspec.json.decode(get(server.port, "/admin/status", timeout=30, token=TOKEN)[1], type=_Status)
    warm = [session.bytes for session in status.sessions if session.state != "awake"]
    return len(warm), sum(warm)


def measure_agents() -> Costs:
    """What is measured inside a process, in one of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.agents"], stdout=subprocess.PIPE, env=child_environment(), check=False
    )
    if done.returncode:
        raise BenchError("measuring agents inside the process failed")
    return msgspec.json.decode(done.stdout, type=Costs)
