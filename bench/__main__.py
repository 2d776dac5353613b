"""Command line of the bench; `scripts/bench --help` says what it takes."""

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.figures import Row, rows, table
from bench.parts import PARTS, Bench, Options
from bench.servers import HOLDFAST, NAMES, ROOT, BenchError, open_stub

PAGE = ROOT / "docs/performance.md"


class Report(msgspec.Struct, frozen=True):
    """The whole run, as `--json` keeps it."""

    when: str
    where: str
    durability: str
    quick: bool
    rig: str
    rows: list[Row]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure Holdfast beside two floors, the least that could work."
    )
    parser.add_argument("--quick", action="store_true", help="one short round, and 1,000 sessions, not 10,000")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--server", action="append", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--durability", choices=("normal", "full"), default="normal", help="full: Holdfast alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures, with every round's sample")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if arguments.write and (arguments.quick or arguments.only or arguments.server):
        parser.error("--write puts down whole runs only: leave out --quick, --only and --server")
    return arguments


def measure(arguments: argparse.Namespace) -> Report:
    servers = [name for name in NAMES if name in (arguments.server or NAMES)]
    if arguments.durability == "full":
        servers = [HOLDFAST]  # the floors know only `normal`
    options = Options(
        parts=tuple(arguments.only or PARTS),
        servers=tuple(servers),
        quick=arguments.quick,
        durability=arguments.durability,
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, open_stub(Path(folder) / "stub") as stub:
        bench = Bench(options, stub, Path(folder))
        bench.run()
    return Report(
        when=time.strftime("%Y-%m-%d"),
        where=f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        durability=options.durability,
        quick=options.quick,
        rig=str(bench.rig),
        rows=rows(bench.samples),
    )


def describe(report: Report) -> str:
    bars = [row.met for row in report.rows if row.bar]
    verdict = f"Of {len(bars)} bars, {bars.count(True)} were met and {bars.count(False)} missed."
    quick = ", one quick round" if report.quick else ""
    title = f"{report.when}, {report.where}, durability `{report.durability}`{quick}."
    return f"{title}\n\n{table(report.rows)}\n\n{report.rig} {verdict}\n"


def write(report: Report) -> None:
    """Replace what stands between this durability's two markers."""
    start, end = f"<!-- figures: {report.durability} -->\n", f"<!-- end of figures: {report.durability} -->"
    before, found, rest = PAGE.read_text().partition(start)
    _, found_too, after = rest.partition(end)
    if not (found and found_too):
        raise BenchError(f"{PAGE.relative_to(ROOT)} has lost its markers for durability {report.durability}")
    PAGE.write_text(f"{before}{start}\n{describe(report)}\n{end}{after}")


def main() -> int:
    arguments = parse_arguments()
    try:
        report = measure(arguments)
        print(describe(report))
        if arguments.json:
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        if arguments.write:
            write(report)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # everything that was started has ended by now
    return 1 if any(row.met is False for row in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
