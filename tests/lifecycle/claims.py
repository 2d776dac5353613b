"""What the lifecycle claims, which tests prove it, and what is amiss between the two.

Nothing here imports a test: what a test proves is read from its markers, so that a page and a check can be had
without running anything.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

NOTHING = "–"
"""A cell that begins so claims nothing."""
MACHINERY = ("test_contract.py", "test_mutations.py")
"""Tests of the tests: they prove nothing of the product."""

_OPTION = re.compile(r"--[a-z][a-z-]*")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class ContractError(Exception):
    """The contract contradicts itself; the message says where."""


class Pending(NamedTuple):
    """Something that comes with a later issue."""

    issue: str
    signs: tuple[str, ...]
    """Patterns of names, one of which will be there as soon as it is."""
    part: str = ""
    """What is still to come of a claim; the rest has its test. Empty: all of it is."""


class Claim(NamedTuple):
    id: str
    text: str
    later: tuple[Pending, ...] = ()
    because: str = ""
    """Why the structure makes the failure impossible; the test proves that structure."""

    @property
    def pending(self) -> Pending | None:
        """Set when there is nothing of it yet."""
        return next((pending for pending in self.later if not pending.part), None)


class Thing(NamedTuple):
    id: str
    name: str


class Contract(NamedTuple):
    events: dict[str, str]
    things: tuple[Thing, ...]
    groups: dict[str, tuple[str, ...]]
    """The cases' ids, by the group's name."""
    claims: dict[str, Claim]
    """By id, in the order of the page. Cells that claim nothing are not among them."""
    columns: dict[str, tuple[Pending, ...]]
    """What is still to come of an event, for everything that it happens to."""
    blank: dict[str, str]
    """The cells that claim nothing."""


class Trial(NamedTuple):
    """A test function, and the claims that it proves."""

    file: str
    """Its path from the root, with slashes."""
    name: str
    proves: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return self.name.removeprefix("test_").replace("_", " ")


# ── the contract ────────────────────────────────────────────────────────────────────────────────


def read_contract(text: str) -> Contract:
    data = tomllib.loads(text)
    events: dict[str, str] = data["events"]
    cells = {f"{thing['id']}/{event}": thing[event] for thing in data["thing"] for event in events}
    groups = {name: tuple(f"case {number}" for number in cases) for name, cases in data["cases"].items()}
    texts = {
        **{cell: said for cell, said in cells.items() if not said.startswith(NOTHING)},
        **{f"invariant {number}": said for number, said in data["invariants"].items()},
        **{f"case {number}": said for cases in data["cases"].values() for number, said in cases.items()},
    }
    later, columns = _pending(data.get("pending", []), texts, events)
    because = data.get("because", {})
    if strange := because.keys() - texts.keys():
        raise ContractError(f"[because] there is no claim {', '.join(sorted(strange))}")
    claims = {id: Claim(id, said, tuple(later.get(id, ())), because.get(id, "")) for id, said in texts.items()}
    things = tuple(Thing(thing["id"], thing["name"]) for thing in data["thing"])
    blank = {cell: said for cell, said in cells.items() if cell not in texts}
    return Contract(events, things, groups, claims, columns, blank)


def _pending(
    entries: Sequence[Mapping[str, Any]], texts: Mapping[str, str], events: Mapping[str, str]
) -> tuple[dict[str, list[Pending]], dict[str, tuple[Pending, ...]]]:
    later: dict[str, list[Pending]] = {}
    columns: dict[str, tuple[Pending, ...]] = dict.fromkeys(events, ())
    for entry in entries:
        pending = Pending(entry["issue"], tuple(entry["signs"]), entry.get("part", ""))
        for named in entry["claims"]:
            row, _, event = named.partition("/")
            meant = [id for id in texts if id.startswith(f"{row}/")] if event == "*" else [named]
            if row == "*" and event in columns and pending.part:
                columns[event] += (pending,)
            elif not meant or not set(meant) <= texts.keys():
                raise ContractError(f"[[pending]] there is no claim {named}")
            else:
                for id in meant:
                    later.setdefault(id, []).append(pending)
    if doubled := [id for id, found in later.items() if len(found) > 1 and not all(pending.part for pending in found)]:
        raise ContractError(f"[[pending]] {doubled[0]} is pending more than once")
    return later, columns


# ── the tests ───────────────────────────────────────────────────────────────────────────────────


def read_tests(source: str, file: str) -> tuple[list[Trial], list[str]]:
    """The test functions of a module, and what is wrong with their markers."""
    tree = ast.parse(source)
    trials, wrong, seen = [], [], set()
    for function in tree.body:
        if not isinstance(function, _FUNCTIONS) or not function.name.startswith("test_"):
            continue
        proves: list[str] = []
        for marker in (marker for decorator in function.decorator_list for marker in _markers(decorator)):
            seen.add(marker)
            for argument in marker.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    proves.append(argument.value)
                else:
                    wrong.append(f"{file}:{argument.lineno}: a claim has to be a plain string")
        trials.append(Trial(file, function.name, tuple(dict.fromkeys(proves))))
    wrong += [
        f"{file}:{marker.lineno}: this marker is on no test function" for marker in _markers(tree) if marker not in seen
    ]
    return trials, wrong


def _markers(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "proves":
            yield node


def collect(root: Path) -> tuple[list[Trial], list[str]]:
    """All tests below `tests`, and what is wrong with their markers."""
    trials: list[Trial] = []
    wrong: list[str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        found, amiss = read_tests(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
        trials += found
        wrong += amiss
    return trials, wrong


def lifecycle_tests(trials: Iterable[Trial]) -> list[Trial]:
    """Those that have to prove something and to be seen failing: all in the folder, and all that are marked."""
    return [
        trial
        for trial in trials
        if trial.proves or (trial.file.startswith("tests/lifecycle/") and not trial.file.endswith(MACHINERY))
    ]


# ── what is there by now ────────────────────────────────────────────────────────────────────────


def names_in(root: Path) -> set[str]:
    """All by which a thing can be known to exist: paths, definitions, commands and options, in small letters."""
    source, scripts = root / "src/holdfast", root / "scripts"
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if "__pycache__" not in path.parts}
    names |= {path.relative_to(root).as_posix() for path in scripts.glob("*")}
    for path in source.rglob("*.py"):
        names.update(_names_of(ast.parse(path.read_text(encoding="utf-8"))))
    return {name.lower() for name in names}


def _names_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _OPTION.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Command":
            given = (part for argument in (*node.args, *node.keywords) for part in ast.walk(argument))
            yield from (f"/{part.value!s}" for part in given if isinstance(part, ast.Constant))


def signs_of(pending: Pending, names: Iterable[str]) -> list[str]:
    """The names that tell of it."""
    return sorted(name for name in names if any(fnmatchcase(name, sign.lower()) for sign in pending.signs))


# ── what is amiss ───────────────────────────────────────────────────────────────────────────────


def proofs(contract: Contract, trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The tests of each claim."""
    found: dict[str, list[Trial]] = {claim: [] for claim in contract.claims}
    for trial in trials:
        for claim in trial.proves:
            found.setdefault(claim, []).append(trial)
    return found


def without_a_test(contract: Contract, trials: Iterable[Trial]) -> list[str]:
    proved = proofs(contract, trials)
    return [claim.id for claim in contract.claims.values() if not claim.pending and not proved[claim.id]]


def unknown(contract: Contract, trials: Iterable[Trial]) -> list[str]:
    """Claims that a test names and the contract doesn't."""
    return [
        f"{trial.file}: {trial.name} proves {claim!r}, which the contract does not claim"
        for trial in trials
        for claim in trial.proves
        if claim not in contract.claims
    ]


def pending_but_proved(contract: Contract, trials: Iterable[Trial]) -> list[str]:
    proved = proofs(contract, trials)
    return [
        f"{claim.id} has a test ({proved[claim.id][0].name}) and is pending until {claim.pending.issue!r}"
        for claim in contract.claims.values()
        if claim.pending and proved[claim.id]
    ]


def pending_but_there(contract: Contract, names: Iterable[str]) -> list[str]:
    """What was to come and has come: its claims need their tests, and leave the list."""
    wanted: dict[Pending, list[str]] = {}
    for claim in contract.claims.values():
        for pending in claim.later:
            wanted.setdefault(pending, []).append(claim.id)
    for event, later in contract.columns.items():
        for pending in later:
            wanted.setdefault(pending, []).append(f"*/{event}")
    known = list(names)
    return [
        f"{found[0]} is there by now: prove {', '.join(claims)}{f' ({pending.part})' if pending.part else ''}"
        for pending, claims in wanted.items()
        if (found := signs_of(pending, known))
    ]


def proves_nothing(trials: Iterable[Trial]) -> list[str]:
    return [f"{trial.file}: {trial.name}" for trial in lifecycle_tests(trials) if not trial.proves]
