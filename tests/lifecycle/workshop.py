"""Breaks the product on purpose, one mistake at a time, and sees whether the tests notice; `scripts/mutate` runs it.

The tree is copied to a temporary folder, each mistake is made in a copy of its own, and the tests that must notice it
run there. The tree itself is only read.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import anyio

from .claims import Trial, collect
from .mutants import Mutation, MutationError, Stale, chosen, function, read_lists, unguarded, unknown_tests

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/holdfast"
LONGEST = 120.0
"""Seconds for the tests of one mutation, unless they take long without it."""
LONGEST_TEST = 20.0
"""Likewise for a single test. One that hangs is one that fails: so it does in CI, though after a longer time."""
SLACK = 5
"""How many times longer than usual a test may take."""

_PLUGINS = ("anyio.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin")
"""Those that our tests use. Finding and loading all that are installed takes longer than most tests."""
_MARK = "HOLDFAST_MUTANT"
"""The environment variable by which whatever a run has started is found again."""


class Verdict(NamedTuple):
    mutation: Mutation
    kind: str
    """killed, survived, stale or broken: what can't even be imported, or does not end, proves nothing."""
    seconds: float = 0.0
    detail: str = ""


class Run(NamedTuple):
    """What became of some tests, as they were named; of all parametrizations of a function together."""

    failed: dict[str, bool]
    """Whether any failed. A test that did not run is not there."""
    seconds: dict[str, float]
    cause: str
    """Why, in a line, in case they could not be run."""
    ended: bool


class Workshop:
    """A copy of the tree that works, and next to it one for each mutation."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self._sound = folder / "sound"
        self._folder = folder
        self._jobs = anyio.CapacityLimiter(jobs)
        self._usual: dict[tuple[str, str], float] = {}
        self._number = 0
        shutil.copytree(root, self._sound, ignore=shutil.ignore_patterns(".*", "__pycache__"), symlinks=True)

    async def check(self) -> None:
        """That what is imported in a copy is the copy, whatever is installed."""
        done = await anyio.run_process(
            [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"],
            cwd=self._sound,
            env=_environment(self._sound, "check"),
        )
        imported = Path(done.stdout.decode().strip())
        if not imported.is_relative_to(self._sound):
            raise MutationError(f"The copy's tests would import {imported}.")

    async def baseline(self, module: str, tests: Iterable[str]) -> tuple[list[str], float]:
        """Run tests without a mutation, once more if they fail. Returns those that fail all the same, and how long
        it took."""
        failing = sorted(tests)
        async with self._jobs:
            began = time.monotonic()
            for _ in range(2):
                run = await self._run(self._sound, module, failing, LONGEST * SLACK, LONGEST)
                self._usual |= {(module, test): seconds for test, seconds in run.seconds.items()}
                failing = [test for test in failing if run.failed.get(test, True)]
                if not failing:
                    break
            return failing, time.monotonic() - began

    async def put_to_test(self, mutation: Mutation) -> Verdict:
        async with self._jobs:
            began = time.monotonic()
            kind, detail = await self._judge(mutation)
        return Verdict(mutation, kind, time.monotonic() - began, detail)

    async def _judge(self, mutation: Mutation) -> tuple[str, str]:
        self._number += 1
        tree = self._folder / f"mutant-{self._number}"
        # Links, not copies; with them comes the byte code that the baseline has left.
        shutil.copytree(self._sound, tree, copy_function=os.link, symlinks=True)
        try:
            file = tree / SOURCE / mutation.file
            try:
                changed = mutation.applied_to(file.read_text(encoding="utf-8") if file.is_file() else "")
                compile(changed, mutation.file, "exec") if file.suffix == ".py" else None
            except Stale as stale:
                return "stale", str(stale)
            except SyntaxError as error:
                return "broken", f"{error.msg}, line {error.lineno}"
            file.unlink()
            file.write_text(changed, encoding="utf-8")
            Path(cache_from_source(str(file))).unlink(missing_ok=True)
            usual = [self._usual.get((mutation.module, test), 0.0) for test in mutation.kills]
            run = await self._run(
                tree,
                mutation.module,
                mutation.kills,
                max(LONGEST, SLACK * sum(usual)),
                max(LONGEST_TEST, SLACK * max(usual)),
            )
            return _judgement(mutation, run)
        finally:
            shutil.rmtree(tree)

    async def _run(self, tree: Path, module: str, tests: Iterable[str], longest: float, longest_test: float) -> Run:
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        report, output, files = (self._folder / f"{kind}-{mark}" for kind in ("report", "output", "files"))
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"]
        command += [f"-p{plugin}" for plugin in _PLUGINS]
        command += [f"--timeout={longest_test:.0f}", f"--junit-xml={report}", f"--basetemp={files}"]
        command += [f"{module}::{test}" for test in tests]
        with output.open("wb") as file, anyio.move_on_after(longest) as scope:
            try:
                process = await anyio.open_process(
                    command,
                    cwd=tree,
                    env=_environment(tree, mark),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for us
                )
                async with process:
                    await process.wait()
            finally:
                _end_all(mark)
        failed, seconds = _read_report(report)
        said = output.read_text(encoding="utf-8", errors="replace")
        return Run(failed, seconds, _cause(said), not scope.cancelled_caught)


def _environment(tree: Path, mark: str) -> dict[str, str]:
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPATH": str(tree / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", _MARK: mark}


def _read_report(report: Path) -> tuple[dict[str, bool], dict[str, float]]:
    failed: dict[str, bool] = {}
    seconds: dict[str, float] = {}
    for case in ET.parse(report).iter("testcase") if report.exists() else ():
        bad = case.find("failure") is not None or case.find("error") is not None
        one = case.get("name", "")
        for name in {one, function(one)}:
            failed[name] = failed.get(name, False) or bad
            seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
    return failed, seconds


def _cause(output: str) -> str:
    lines = output.strip().splitlines() or [""]
    return next((line.removeprefix("E").strip() for line in lines if line.startswith("E  ")), lines[-1])


def _judgement(mutation: Mutation, run: Run) -> tuple[str, str]:
    if not run.ended:
        return "broken", "the tests did not end"
    if unseen := [test for test in mutation.kills if test not in run.failed]:
        return "broken", f"{', '.join(unseen)} did not run: {run.cause}"
    if survivors := [test for test in mutation.kills if not run.failed[test]]:
        return "survived", f"{', '.join(survivors)} still {'passes' if len(survivors) == 1 else 'pass'}"
    return "killed", ""


def _end_all(mark: str) -> None:
    """End whatever a run has started and left, in whichever session of processes it is."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or it belongs to someone else
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


# ── the report ──────────────────────────────────────────────────────────────────────────────────


class Outcome(NamedTuple):
    verdicts: list[Verdict]
    failing: list[str]
    """Tests that fail without any mutation."""
    unguarded: list[Trial]

    @property
    def good(self) -> bool:
        return not self.failing and not self.unguarded and all(verdict.kind == "killed" for verdict in self.verdicts)


async def mutate(root: Path, words: Sequence[str], jobs: int, say: Callable[[str], None]) -> Outcome:
    """Make the mutations that the words choose, and tell of each."""
    mutations, (trials, _) = read_lists(root), collect(root)
    selected = chosen(mutations, trials, words)
    if unknown := unknown_tests(selected, trials):
        raise MutationError(f"There is no such test: {'; '.join(unknown)}")
    outcome = Outcome([], [], [] if words else unguarded(mutations, trials))
    modules = {mutation.module: Path(mutation.module).stem for mutation in selected}
    width = max(map(len, modules.values()), default=0)

    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        workshop = Workshop(root, Path(folder), jobs)
        await workshop.check()

        async def prepare(module: str) -> None:
            tests = {test for mutation in selected if mutation.module == module for test in mutation.kills}
            failing, seconds = await workshop.baseline(module, tests)
            outcome.failing.extend(f"{module}: {test}" for test in failing)
            verdict = f"FAILING without a mutation: {', '.join(failing)}" if failing else f"{len(tests)} tests pass"
            say(f"{'sound':<9} {modules[module]:<{width}} {seconds:5.1f} s  {verdict}")

        async def judge(mutation: Mutation) -> None:
            verdict = await workshop.put_to_test(mutation)
            outcome.verdicts.append(verdict)
            kind = verdict.kind if verdict.kind == "killed" else verdict.kind.upper()
            detail = f": {verdict.detail}" if verdict.detail else ""
            say(f"{kind:<9} {modules[mutation.module]:<{width}} {verdict.seconds:5.1f} s  {mutation.breaks}{detail}")

        async with anyio.create_task_group() as group:
            for module in modules:
                group.start_soon(prepare, module)
        async with anyio.create_task_group() as group:
            for mutation in selected:
                group.start_soon(judge, mutation)
    return outcome


def summary(outcome: Outcome) -> list[str]:
    """A table by module, and what is to be done."""
    kinds = ("killed", "survived", "stale", "broken")
    rows = {
        module: Counter(verdict.kind for verdict in outcome.verdicts if verdict.mutation.module == module)
        for module in sorted({verdict.mutation.module for verdict in outcome.verdicts})
    }
    width = max(map(len, (*rows, "all")))
    lines = [f"{'':<{width}} {'mutations':>9} " + " ".join(f"{kind:>8}" for kind in kinds)]
    for name, counts in (*rows.items(), ("all", sum(rows.values(), Counter()))):
        lines.append(f"{name:<{width}} {counts.total():>9} " + " ".join(f"{counts[kind]:>8}" for kind in kinds))
    lines += [f"fails without a mutation: {test}" for test in outcome.failing]
    lines += [f"no mutation kills {trial.file}: {trial.name}" for trial in outcome.unguarded]
    survivors = sum(verdict.kind == "survived" for verdict in outcome.verdicts)
    return [*lines, f"{len(outcome.verdicts)} mutations, {survivors} survivors"]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/mutate", description="Break the product on purpose; the tests must notice."
    )
    parser.add_argument("words", nargs="*", metavar="module|test|claim", help="only the mutations that concern it")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    given = parser.parse_args()
    try:
        outcome = anyio.run(mutate, ROOT, given.words, given.jobs, _say)
    except MutationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    _say("\n".join(("", *summary(outcome))))
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
