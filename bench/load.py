"""The load generator: a closed loop over raw keep-alive connections, in a process of its own.

It shares the machine with the server that is measured and with the model stub, so it does as little
as it can: requests are written and answers are scanned as bytes, and nothing is parsed twice.

Usage: python -m bench.load < plan.json > result.json
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from typing import Literal, cast

import msgspec
import uvloop

TOKEN = "bench"
ANSWER = b" ".join([b"word"] * 20)  # what the stub says, and so what every turn must bring back
CONNECTING_AT_ONCE = 64  # aiohttp's backlog is 128; a dropped SYN would cost a second
DEADLINE = 300.0

Dialect = Literal["floor", "holdfast", "stub"]


class Plan(msgspec.Struct, frozen=True):
    """So many connections at once; on each, so many sessions in a row; in each, so many turns."""

    port: int
    dialect: Dialect
    connections: int
    sessions: int
    turns: int
    prefix: str
    """Makes the sessions' names new to the server."""
    stream: bool = False
    prompt_bytes: int = 0
    """For the stub, which is sent what a server would send it."""

    @property
    def total(self) -> int:
        return self.connections * self.sessions * self.turns


class Result(msgspec.Struct, frozen=True):
    """What came of it; times in seconds."""

    turns: int
    wall: float
    p50: float
    p95: float
    client_cpu: float
    failed: int
    failure: str
    """The first answer that was not right."""


class Meter:
    """What all connections note down together."""

    def __init__(self) -> None:
        self.latencies: list[int] = []
        self.failed = 0
        self.failure = ""

    def fail(self, answer: bytes) -> None:
        self.failed += 1
        self.failure = self.failure or answer[:600].decode("latin1")


class Connection(asyncio.Protocol):
    """Sends one request after another, each when the answer to the last is complete."""

    def __init__(self, requests: Iterator[bytes], stream: bool, meter: Meter) -> None:
        self._requests = requests
        self._stream = stream
        self._meter = meter
        self._transport: asyncio.Transport
        self._received = b""
        self._sent_at = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._meter.fail(f"the connection ended: {error}; received {self._received!r}".encode())
            self.done.set_result(None)

    def send_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent_at = time.perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received = answer = self._received + data if self._received else bytes(data)
        if not is_complete(answer):
            return
        self._meter.latencies.append(time.perf_counter_ns() - self._sent_at)
        if not is_right(answer, self._stream):
            self._meter.fail(answer)
        self._received = b""
        self.send_next()


def is_complete(answer: bytes) -> bool:
    head_end = answer.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    head = answer[: head_end + 2].lower()
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return answer.endswith(b"\r\n0\r\n\r\n")  # chunked: SSE ends its lines with \n, so this is no data
    length = int(head[at + 17 : head.index(b"\r\n", at + 2)])
    return len(answer) >= head_end + 4 + length


def is_right(answer: bytes, stream: bool) -> bool:
    if not answer.startswith(b"HTTP/1.1 200"):
        return False
    return answer.count(b"word") == 20 and b"[DONE]" in answer if stream else ANSWER in answer


def request(plan: Plan, session: str) -> bytes:
    path, headers = "/v1/chat/completions", ""
    if plan.dialect == "floor":
        path, body = "/turn", msgspec.json.encode({"session": session, "text": "hello"})
    else:
        messages = [{"role": "user", "content": "hello"}]
        if plan.dialect == "holdfast":
            headers = f"Authorization: Bearer {TOKEN}\r\nX-Holdfast-Session: {session}\r\n"
        else:
            messages.insert(0, {"role": "system", "content": "x" * plan.prompt_bytes})
        body = msgspec.json.encode(
            {"model": plan.dialect, "messages": messages, **({"stream": True} if plan.stream else {})}
        )
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def requests(plan: Plan, connection: int) -> Iterator[bytes]:
    for number in range(plan.sessions):
        said = request(plan, f"{plan.prefix}-{connection}-{number}")
        for _ in range(plan.turns):
            yield said


async def run(plan: Plan) -> Result:
    """Connect, then start all connections at once and wait for the last."""
    loop = asyncio.get_running_loop()
    meter = Meter()
    connections: list[Connection] = []
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def connect(number: int) -> None:
        async with gate:
            _, connection = await loop.create_connection(
                lambda: Connection(requests(plan, number), plan.stream, meter), "127.0.0.1", plan.port
            )
        connections.append(connection)

    await asyncio.gather(*(connect(number) for number in range(plan.connections)))
    cpu, start = time.process_time(), time.perf_counter()
    for connection in connections:
        connection.send_next()
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(connection.done for connection in connections))
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    latencies = sorted(meter.latencies) or [0]
    return Result(
        turns=len(meter.latencies),
        wall=wall,
        p50=latencies[len(latencies) // 2] / 1e9,
        p95=latencies[len(latencies) * 95 // 100] / 1e9,
        client_cpu=cpu,
        failed=meter.failed,
        failure=meter.failure,
    )


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(plan))))


if __name__ == "__main__":
    main()
