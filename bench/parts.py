"""The measurements. Each starts its servers alone, one after another, against the same stub."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from bench.figures import MEMORY_COUNTS, SESSION_COUNTS, STREAM_COUNTS, Samples
from bench.load import Plan
from bench.servers import (
    HOLDFAST,
    BenchError,
    Process,
    Stub,
    agents_in,
    apply,
    measure_agents,
    open_server,
    open_stub,
)

# Connections, sessions in a row on each, turns in each: enough for a few seconds, and never more than
# 60 turns in a session, so that the histories that are sent to the model are alike on all sides.
SHAPES = {1: (1, 40, 50), 8: (8, 6, 50), 32: (32, 2, 50), 256: (256, 1, 16)}
QUICK_SHAPES = {1: (1, 10, 50), 8: (8, 2, 50), 32: (32, 1, 40), 256: (256, 1, 6)}

TOOL_COUNT = 25
ASSUMED_PROMPT = 11_000  # what the floors are padded to when Holdfast is not measured
MEMORY_CONNECTIONS = 20
MEMORY_LATENCY = 0.025  # so that the turns of all connections overlap, and pools fill at once, not by chance
BURST, BURST_LATENCY = 1_000, 3.0

PARTS = ("ready", "prompt", "turns", "stream", "memory", "agents", "burst", "rig")


class Options(msgspec.Struct, frozen=True):
    parts: tuple[str, ...]
    servers: tuple[str, ...]
    quick: bool
    durability: str


class Rig:
    """How busy the load generator and the stub were: neither may be what is measured."""

    def __init__(self) -> None:
        self.client_share = 0.0
        self.stub_share = 0.0
        self.ceiling = 0.0
        """Turns/s of the client against the stub, with nothing in between."""

    def __str__(self) -> str:
        busy = f"at most {self.client_share:.0%} of a core for the load generator, {self.stub_share:.0%} for the stub"
        alone = f"{self.ceiling:,.0f} turns/s with no server in between"
        known = [busy] * (self.client_share > 0) + [alone] * (self.ceiling > 0)
        return f"The rig: {', '.join(known) or 'not measured'}."


class Bench:
    """One run: what it measures with, and what it has measured so far."""

    def __init__(self, options: Options, stub: Stub, folder: Path) -> None:
        self.options = options
        self.samples = Samples()
        self.rig = Rig()
        self._stub = stub
        self._folder = folder
        self._folders = 0
        self._pads: dict[str, int] = {}

    def run(self) -> None:
        parts = set(self.options.parts)
        self._size_prompts()
        if parts & {"ready", "turns", "stream"}:
            self._measure_rounds()
        if "memory" in parts:
            self._measure_memory()
        if "agents" in parts and HOLDFAST in self.options.servers:  # the floors have none
            self._measure_agents()
        if "burst" in parts:
            self._measure_burst()
        if "rig" in parts:
            self._measure_rig()

    def _new_folder(self) -> Path:
        self._folders += 1
        return self._folder / str(self._folders)

    def _start(
        self, name: str, folder: Path, stub: Stub, settings: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Process]:
        return open_server(
            name, stub, folder, pad=self._pads.get(name, 0), durability=self.options.durability, settings=settings or {}
        )

    # ── prompt ──────────────────────────────────────────────────────────────────────────────────

    def _size_prompts(self) -> None:
        """Pad the floors' prompts to the size of Holdfast's. (Also everyone's first start, for the bytecode.)"""
        _say("sizing the prompts")
        target = ASSUMED_PROMPT
        if HOLDFAST in self.options.servers:
            target = self._prompt_bytes(HOLDFAST)
            if (tools := self._stub.stats()["tools_last"]) != TOOL_COUNT:
                raise BenchError(f"Holdfast told the model of {tools} tools; the bars are for {TOOL_COUNT}")
            self.samples.add("prompt.bytes", HOLDFAST, target)
        for name in self.options.servers:
            if name != HOLDFAST:
                self._pads[name] = target - self._prompt_bytes(name)
                self.samples.add("prompt.bytes", name, self._prompt_bytes(name))

    def _prompt_bytes(self, name: str) -> int:
        with self._start(name, self._new_folder(), self._stub) as server:
            before = self._stub.stats()["bytes_in"]
            apply(Plan(server.port, server.dialect, connections=1, sessions=1, turns=1, prefix="hello"))
            return self._stub.stats()["bytes_in"] - before

    # ── ready, turns, stream ────────────────────────────────────────────────────────────────────

    def _measure_rounds(self) -> None:
        """Servers take turns, and another one is first in each round, so that a drift of the machine cancels out."""
        servers = self.options.servers
        rounds = 1 if self.options.quick else 3
        for number in range(rounds):
            first = number % len(servers)
            for name in servers[first:] + servers[:first]:
                _say(f"round {number + 1} of {rounds}: {name}")
                folder = self._new_folder()
                with self._start(name, folder, self._stub) as server:
                    self.samples.add("ready.first", name, server.ready)
                with self._start(name, folder, self._stub) as server:
                    self.samples.add("ready.again", name, server.ready)
                    apply(Plan(server.port, server.dialect, connections=8, sessions=1, turns=25, prefix="warm"))
                    if "turns" in self.options.parts:
                        for count in SESSION_COUNTS:
                            self._measure_turns(server, count)
                    if "stream" in self.options.parts and name == HOLDFAST:  # the floors can't
                        for count in STREAM_COUNTS:
                            self._measure_turns(server, count, stream=True)

    def _measure_turns(self, server: Process, count: int, *, stream: bool = False) -> None:
        connections, sessions, turns = (QUICK_SHAPES if self.options.quick else SHAPES)[count]
        part = "stream" if stream else "turns"
        plan = Plan(server.port, server.dialect, connections, sessions, turns, prefix=f"{part}{count}", stream=stream)
        server_cpu, stub_cpu = server.cpu(), self._stub.process.cpu()
        result = apply(plan)
        server_cpu, stub_cpu = server.cpu() - server_cpu, self._stub.process.cpu() - stub_cpu
        for figure, value in (
            ("p50", result.p50 * 1000),
            ("p95", result.p95 * 1000),
            ("cpu", server_cpu / result.turns * 1000),
            ("rate", result.turns / result.wall),
        ):
            self.samples.add(f"{part}.{count}.{figure}", server.name, value)
        self.rig.client_share = max(self.rig.client_share, result.client_cpu / result.wall)
        self.rig.stub_share = max(self.rig.stub_share, stub_cpu / result.wall)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────

    def _measure_memory(self) -> None:
        """One turn in each of ever more sessions, none of them seen before."""
        counts = [count for count in MEMORY_COUNTS if count <= 1_000 or not self.options.quick]
        with open_stub(self._new_folder(), latency=MEMORY_LATENCY) as stub:
            for name in self.options.servers:
                _say(f"{counts[-1]:,} sessions: {name}")
                with self._start(name, self._new_folder(), stub) as server:
                    self._sample_memory(server, counts)

    def _sample_memory(self, server: Process, counts: list[int]) -> None:
        seen, base = 0, (0.0, 0)
        rss, descriptors = 0.0, 0
        for count in counts:
            if count > seen:
                each = (count - seen) // MEMORY_CONNECTIONS
                apply(Plan(server.port, server.dialect, MEMORY_CONNECTIONS, each, 1, prefix=f"memory{count}"))
                seen = count
            server.settle()
            rss, descriptors = server.rss(), server.descriptors()
            self.samples.add(f"memory.{count}.rss", server.name, rss)
            self.samples.add(f"memory.{count}.fds", server.name, descriptors)
            if count == 200:
                base = (rss, descriptors)
        self.samples.add("memory.growth.rss", server.name, rss - base[0])
        self.samples.add("memory.growth.fds", server.name, descriptors - base[1])

    # ── agents that come and go ─────────────────────────────────────────────────────────────────

    def _measure_agents(self) -> None:
        _say("agents that come and go")
        costs = measure_agents()
        for figure, value in msgspec.structs.asdict(costs).items():
            self.samples.add(f"agents.{figure}", HOLDFAST, value)
        self.samples.add("agents.seat_growth", HOLDFAST, costs.seat_many_us / costs.seat_few_us)
        with open_stub(self._new_folder(), latency=MEMORY_LATENCY) as stub:
            self._measure_warm(stub)
            self._measure_cycles(stub)

    def _measure_warm(self, stub: Stub) -> None:
        """What a warm agent holds beside its history: with room for all, some sessions, then many more."""
        few, many = 10, 60 if self.options.quick else 110
        settings = {"HOLDFAST_RESIDENTS__LIMIT": "100000", "HOLDFAST_RESIDENTS__IDLE_TTL": "3600"}
        with self._start(HOLDFAST, self._new_folder(), stub, settings) as server:
            sampled = []
            for each in (few, many - few):
                apply(Plan(server.port, server.dialect, MEMORY_CONNECTIONS, each, 2, prefix=f"warm{each}"))
                server.settle()
                sampled.append((server.rss() * 1024, *agents_in(server)))
            (rss, count, held), (rss_later, count_later, held_later) = sampled
            agents = count_later - count
            if agents != MEMORY_CONNECTIONS * (many - few):
                raise BenchError(f"{agents} agents stayed warm, of {MEMORY_CONNECTIONS * (many - few)}")
            own = (rss_later - rss - (held_later - held) / 1024) / agents
            self.samples.add("agents.rss", HOLDFAST, own)

    def _measure_cycles(self, stub: Stub) -> None:
        """Every message builds its agent from the store, which leaves after the answer."""
        sessions, turns = 10, 10 if self.options.quick else 50
        with self._start(HOLDFAST, self._new_folder(), stub, {"HOLDFAST_RESIDENTS__IDLE_TTL": "0"}) as server:
            apply(Plan(server.port, server.dialect, MEMORY_CONNECTIONS, sessions, 5, prefix="cycles"))
            server.settle()
            rss, descriptors = server.rss(), server.descriptors()
            apply(Plan(server.port, server.dialect, MEMORY_CONNECTIONS, sessions, turns, prefix="cycles"))
            server.settle()
            if (warm := agents_in(server)[0]) > 0:
                raise BenchError(f"{warm} agents stayed warm, where none should")
            self.samples.add("agents.cycles.rss", HOLDFAST, server.rss() - rss)
            self.samples.add("agents.cycles.fds", HOLDFAST, server.descriptors() - descriptors)

    # ── burst, rig ──────────────────────────────────────────────────────────────────────────────

    def _measure_burst(self) -> None:
        """As many turns at once as there are sessions, on a model that takes its time."""
        with open_stub(self._new_folder(), latency=BURST_LATENCY) as stub:
            for name in self.options.servers:
                _say(f"{BURST:,} turns at once: {name}")
                with self._start(name, self._new_folder(), stub) as server:
                    try:
                        result = apply(Plan(server.port, server.dialect, BURST, 1, 1, prefix="burst"))
                    except BenchError:
                        if name == HOLDFAST:
                            raise
                        _say(f"{name} did not answer them all")  # its client gives up after a minute
                    else:
                        self.samples.add("burst.wall", name, result.wall)

    def _measure_rig(self) -> None:
        """What the rig can do, so the best of three."""
        plan = Plan(self._stub.port, "stub", 32, 1, 200, prefix="rig", prompt_bytes=ASSUMED_PROMPT)
        results = [apply(plan) for _ in range(3)]
        self.rig.ceiling = max(result.turns / result.wall for result in results)


def _say(what: str) -> None:
    print(f"  {what} …", file=sys.stderr, flush=True)
