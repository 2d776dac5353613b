"""The rows of the table: what each figure is called, what it must reach, and how it is printed."""

from collections import defaultdict
from statistics import median

import msgspec

from bench.servers import FAST, FLOOR, HOLDFAST, NAMES

SESSION_COUNTS = (1, 8, 32, 256)
STREAM_COUNTS = (1, 32)
MEMORY_COUNTS = (0, 100, 200, 1_000, 10_000)


class Bar(msgspec.Struct, frozen=True):
    """A limit: absolute, or a multiple of a floor's figure in the same run."""

    limit: float
    floor: str = ""
    at_least: bool = False

    def is_met(self, value: float, floor_value: float | None) -> bool | None:
        """None when the floor that it is relative to was not measured."""
        if self.floor and not floor_value:
            return None
        limit = self.limit * floor_value if self.floor and floor_value else self.limit
        return value >= limit if self.at_least else value <= limit

    def text(self, unit: str) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g}× {self.floor}.py" if self.floor else f"{sign} {self.limit:,g} {unit}".rstrip()


class Figure(msgspec.Struct, frozen=True):
    key: str
    label: str
    unit: str
    digits: int
    bar: Bar | None = None


def _turn_figures() -> list[Figure]:
    bars: dict[str, Bar] = {}
    for figure in ("p50", "cpu"):
        bars[f"turns.1.{figure}"] = Bar(1.0, FLOOR)
    for count in (32, 256):
        bars[f"turns.{count}.p50"] = bars[f"turns.{count}.cpu"] = Bar(1.5, FAST)
        bars[f"turns.{count}.rate"] = Bar(0.667, FAST, at_least=True)
    shapes = [("turns", count, "") for count in SESSION_COUNTS] + [
        ("stream", count, ", streamed") for count in STREAM_COUNTS
    ]
    rows: list[Figure] = []
    for part, count, suffix in shapes:
        where = f"{count} session{'s' if count > 1 else ''}{suffix}"
        for figure, label, unit, digits in (
            ("p50", "turn p50", "ms", 2),
            ("p95", "turn p95", "ms", 2),
            ("cpu", "CPU per turn", "ms", 2),
            ("rate", "turns/s", "", 0),
        ):
            key = f"{part}.{count}.{figure}"
            rows.append(Figure(key, f"{label}, {where}", unit, digits, bars.get(key)))
    return rows


def _memory_figures() -> list[Figure]:
    rss_bars = {0: Bar(90), 10_000: Bar(100)}
    rows: list[Figure] = []
    for kind, label, unit, digits, growth in (("rss", "RSS", "MB", 1, Bar(2)), ("fds", "descriptors", "", 0, Bar(2))):
        for count in MEMORY_COUNTS:
            where = f"after {count:,} sessions" if count else "at ready"
            bar = rss_bars.get(count) if kind == "rss" else None
            rows.append(Figure(f"memory.{count}.{kind}", f"{label} {where}", unit, digits, bar))
        rows.append(Figure(f"memory.growth.{kind}", f"{label}, growth since 200 sessions", unit, digits, growth))
    return rows


FIGURES = (
    Figure("ready.first", "ready, first start", "s", 2, Bar(1.0)),
    Figure("ready.again", "ready, later start", "s", 2, Bar(1.0)),
    Figure("prompt.bytes", "prompt for “hello”, 25 tools", "B", 0, Bar(12_000)),
    *_turn_figures(),
    *_memory_figures(),
    Figure("agents.rss", "RSS per warm agent beside its history", "kB", 1, Bar(60)),
    Figure("agents.build_ms", "agent built from the store, 200 messages", "ms", 2, Bar(5)),
    Figure("agents.seat_few_us", "newcomer among 100 residents", "µs", 1),
    Figure("agents.seat_many_us", "newcomer among 100,000 residents", "µs", 1),
    Figure("agents.seat_growth", "the second by the first", "×", 2, Bar(2)),
    Figure("agents.largest_few_us", "largest of 100 found", "µs", 1),
    Figure("agents.largest_many_us", "largest of 100,000 found", "µs", 1),
    Figure("agents.cycles.rss", "RSS, growth over 10,000 evict-and-resume cycles", "MB", 1, Bar(2)),
    Figure("agents.cycles.fds", "descriptors, growth over them", "", 0, Bar(0)),
    Figure("burst.wall", "1,000 turns at once, 3 s model", "s", 2, Bar(4.5)),
)


class Samples:
    """What was measured, by figure and server; a figure's value is the median of its rounds."""

    def __init__(self) -> None:
        self._values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, key: str, server: str, value: float) -> None:
        self._values[key][server].append(value)

    def value(self, key: str, server: str) -> float | None:
        values = self._values[key][server] if key in self._values else []
        return median(values) if values else None

    def all(self, key: str, server: str) -> list[float]:
        return list(self._values[key][server])


class Row(msgspec.Struct, frozen=True):
    """One measured figure, ready to print or to keep as JSON."""

    key: str
    label: str
    digits: int
    values: dict[str, float]
    samples: dict[str, list[float]]
    ratios: dict[str, float]
    """Holdfast's figure divided by each floor's."""
    bar: str
    met: bool | None
    """None when there is no bar, or nothing to hold against it."""


def rows(samples: Samples) -> list[Row]:
    """Every figure that was measured on any server, in the table's order."""
    found: list[Row] = []
    for figure in FIGURES:
        values = {name: value for name in NAMES if (value := samples.value(figure.key, name)) is not None}
        if values:
            found.append(_row(figure, values, samples))
    return found


def _row(figure: Figure, values: dict[str, float], samples: Samples) -> Row:
    ours = values.get(HOLDFAST)
    ratios = {name: ours / values[name] for name in (FLOOR, FAST) if ours is not None and values.get(name)}
    if figure.key.startswith("memory.growth"):
        ratios = {}  # a ratio of two numbers near zero says nothing
    met = None
    if figure.bar and ours is not None:
        met = figure.bar.is_met(ours, values.get(figure.bar.floor))
    return Row(
        key=figure.key,
        label=f"{figure.label} ({figure.unit})" if figure.unit else figure.label,
        digits=figure.digits,
        values=values,
        samples={name: samples.all(figure.key, name) for name in values},
        ratios=ratios,
        bar=figure.bar.text(figure.unit) if figure.bar else "",
        met=met,
    )


def table(found: list[Row]) -> str:
    """A Markdown table that also reads well on a terminal."""
    head = ["figure", "floor.py", "floor_fast.py", "Holdfast", "× floor", "× fast", "bar", ""]
    lines = [head, *map(_cells, found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numbers = range(1, 6)

    def line(cells: list[str]) -> str:
        padded = (
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = (f"{'-' * (width + 1)}{':' if column in numbers else '-'}" for column, width in enumerate(widths))
    return "\n".join([line(head), f"|{'|'.join(rule)}|", *map(line, lines[1:])])


def _cells(row: Row) -> list[str]:
    values = (f"{row.values[name]:,.{row.digits}f}" if name in row.values else "–" for name in NAMES)
    ratios = (f"{row.ratios[name]:.2f}×" if name in row.ratios else "–" for name in (FLOOR, FAST))
    return [row.label, *values, *ratios, row.bar, {True: "ok", False: "MISSED", None: ""}[row.met]]
