"""Plausible mistakes, each with the tests that must notice it: one list in `mutations/` for each module of tests."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .claims import Trial, lifecycle_tests

LISTS = "tests/lifecycle/mutations"


class MutationError(Exception):
    """A list of mutations is not as it should be; the message says where and why."""


class Stale(Exception):
    """The text to change is not there exactly once."""


class Mutation(NamedTuple):
    """A mistake, and the tests that must notice it."""

    module: str
    """Where those tests are, from the root."""
    breaks: str
    """What does not hold any more, in a sentence."""
    file: str
    """Where the mistake is made, below src/holdfast."""
    find: str
    replace: str
    kills: tuple[str, ...]
    """Test functions; where all parametrizations of one would take long, with the name of some: `test_x[point]`."""

    def applied_to(self, source: str) -> str:
        if (count := source.count(self.find)) != 1:
            raise Stale(f"the text to find occurs {count} times in {self.file}")
        return source.replace(self.find, self.replace)


def read_mutations(text: str, stem: str) -> list[Mutation]:
    """A list, whose file is named as its module of tests unless it says where that is."""
    data = tomllib.loads(text)
    module = data.pop("module", f"tests/lifecycle/{stem}.py")
    entries: list[dict[str, Any]] = data.pop("mutation", [])
    if data or not entries:
        raise MutationError(f"{stem}: a list has [[mutation]] tables and maybe `module`, nothing else")
    return [_mutation(module, entry, f"{stem}: mutation {number}") for number, entry in enumerate(entries, 1)]


def _mutation(module: str, entry: dict[str, Any], where: str) -> Mutation:
    wanted = {"breaks": str, "file": str, "find": str, "replace": str, "kills": list}
    if entry.keys() != wanted.keys():
        raise MutationError(f"{where} has {', '.join(sorted(entry))}; it needs {', '.join(wanted)}")
    for name, kind in wanted.items():
        if not isinstance(entry[name], kind) or (not entry[name] and name != "replace"):
            raise MutationError(f"{where}: `{name}` is empty or of the wrong type")
    if entry["find"] == entry["replace"]:
        raise MutationError(f"{where} changes nothing")
    if len(set(entry["kills"])) < len(entry["kills"]):
        raise MutationError(f"{where} names a test twice")
    return Mutation(module, **{**entry, "kills": tuple(entry["kills"])})


def read_lists(root: Path) -> list[Mutation]:
    return [
        mutation
        for path in sorted((root / LISTS).glob("*.toml"))
        for mutation in read_mutations(path.read_text(encoding="utf-8"), path.stem)
    ]


def function(test: str) -> str:
    """The function's name alone."""
    return test.partition("[")[0]


def unknown_tests(mutations: Iterable[Mutation], trials: Iterable[Trial]) -> list[str]:
    """Tests that a list names and nobody has written."""
    there = {(trial.file, trial.name) for trial in trials}
    named = {(mutation.module, function(test)) for mutation in mutations for test in mutation.kills}
    return [f"{module}: {test}" for module, test in sorted(named - there)]


def unguarded(mutations: Iterable[Mutation], trials: Iterable[Trial]) -> list[Trial]:
    """Tests that no mutation kills: nobody has seen them fail."""
    killed = {(mutation.module, function(test)) for mutation in mutations for test in mutation.kills}
    return [trial for trial in lifecycle_tests(trials) if (trial.file, trial.name) not in killed]


def chosen(mutations: Sequence[Mutation], trials: Iterable[Trial], words: Sequence[str]) -> list[Mutation]:
    """Those that concern a module, a test or a claim; without words, all."""
    claims = {(trial.file, trial.name): trial.proves for trial in trials}

    def names(mutation: Mutation) -> set[str]:
        tests = [function(test) for test in mutation.kills]
        proved = {claim for test in tests for claim in claims.get((mutation.module, test), ())}
        return {mutation.module, Path(mutation.module).stem, *tests, *proved}

    for word in words:
        if not any(word in names(mutation) for mutation in mutations):
            raise MutationError(f"No mutation concerns {word!r}: name a module of tests, a test or a claim.")
    return [mutation for mutation in mutations if not words or names(mutation) & set(words)]
