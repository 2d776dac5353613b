"""Every test of the lifecycle has been seen to fail: the lists of mutations are sound, and so is who makes them."""

from pathlib import Path

import anyio
import pytest

from .claims import Trial, collect
from .mutants import Mutation, MutationError, Stale, chosen, read_lists, read_mutations, unguarded, unknown_tests
from .workshop import SOURCE, Outcome, mutate, summary

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutations() -> list[Mutation]:
    return read_lists(ROOT)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return collect(ROOT)[0]


def listed(findings: list[str]) -> str:
    return "\n".join(["", *findings])


def test_every_mutation_fits_the_source_as_it_is(mutations: list[Mutation]) -> None:
    stale = []
    for mutation in mutations:
        file = ROOT / SOURCE / mutation.file
        try:
            compile(mutation.applied_to(file.read_text(encoding="utf-8")), mutation.file, "exec")
        except (Stale, OSError, SyntaxError) as error:
            stale.append(f"{mutation.module}: {mutation.breaks}: {error}")
    assert not stale, listed(stale)


def test_every_test_that_is_to_notice_one_exists(mutations: list[Mutation], trials: list[Trial]) -> None:
    unknown = unknown_tests(mutations, trials)
    assert not unknown, listed(unknown)


def test_every_test_of_the_lifecycle_notices_one(mutations: list[Mutation], trials: list[Trial]) -> None:
    bare = [f"{trial.file}: {trial.name}" for trial in unguarded(mutations, trials)]
    assert not bare, listed(bare)


# ── the lists, with faults ──────────────────────────────────────────────────────────────────────

GOOD = """
[[mutation]]
breaks = "it says no"
file = "answer.py"
find = '''return "yes"'''
replace = '''return "no"'''
kills = ["test_it_says_yes"]
"""


def test_a_list_is_of_the_module_that_it_is_named_after_or_that_it_names() -> None:
    (mutation,) = read_mutations(GOOD, "test_answers")
    assert mutation.module == "tests/lifecycle/test_answers.py"
    assert mutation.kills == ("test_it_says_yes",)
    (elsewhere,) = read_mutations(f'module = "tests/crash/test_x.py"\n{GOOD}', "test_answers")
    assert elsewhere.module == "tests/crash/test_x.py"


@pytest.mark.parametrize(
    ("good", "wrong"),
    [
        ('breaks = "it says no"\n', ""),
        ("it says no", ""),
        ('kills = ["test_it_says_yes"]', "kills = []"),
        ('kills = ["test_it_says_yes"]', 'kills = "test_it_says_yes"'),
        ('kills = ["test_it_says_yes"]', 'kills = ["test_it_says_yes", "test_it_says_yes"]'),
        ('return "no"', 'return "yes"'),
        ('file = "answer.py"', 'file = "answer.py"\nwhy = "because"'),
        ("[[mutation]]", "[[mutations]]"),
    ],
)
def test_a_list_with_a_fault_is_refused(good: str, wrong: str) -> None:
    assert good in GOOD
    with pytest.raises(MutationError, match="test_answers"):
        read_mutations(GOOD.replace(good, wrong), "test_answers")


def test_what_is_to_be_changed_is_there_exactly_once() -> None:
    (mutation,) = read_mutations(GOOD, "test_answers")
    assert mutation.applied_to('    return "yes"\n') == '    return "no"\n'
    for source in ("", 'return "yes"\nreturn "yes"'):
        with pytest.raises(Stale):
            mutation.applied_to(source)


def test_a_test_that_nothing_kills_is_found() -> None:
    mutations = read_mutations(GOOD, "test_answers")
    file = "tests/lifecycle/test_answers.py"
    yes, no = Trial(file, "test_it_says_yes"), Trial(file, "test_it_says_no")
    marked, other = Trial("tests/unit/test_x.py", "test_x", ("case 1",)), Trial("tests/unit/test_x.py", "test_y")
    assert unguarded(mutations, [yes, no, marked, other]) == [no, marked]
    assert unknown_tests(mutations, [no]) == [f"{file}: test_it_says_yes"]
    (one,) = (mutation._replace(kills=("test_it_says_yes[one]",)) for mutation in mutations)
    assert unguarded([one], [yes]) == []
    assert unknown_tests([one], [yes]) == []


def test_mutations_are_chosen_by_module_test_or_claim() -> None:
    mutations = [*read_mutations(GOOD, "test_answers"), *read_mutations(GOOD, "test_others")]
    trials = [Trial("tests/lifecycle/test_others.py", "test_it_says_yes", ("lease/evict", "case 3"))]
    assert chosen(mutations, trials, []) == mutations
    assert chosen(mutations, trials, ["test_it_says_yes"]) == mutations
    for word in ("test_others", "tests/lifecycle/test_others.py", "lease/evict", "case 3"):
        assert chosen(mutations, trials, [word]) == mutations[1:]
    with pytest.raises(MutationError, match="case 33"):
        chosen(mutations, trials, ["test_others", "case 33"])


# ── making them, in a small project that is called as ours ──────────────────────────────────────

ANSWER = """
def answer(asked):
    if asked == "hang":
        return "no hang"
    if asked == "bye":
        return "good bye"
    return "yes"
"""

TESTS = """
import time
import pytest
from holdfast.answer import answer

def test_it_says_yes():
    assert answer("well?") == "yes"

@pytest.mark.parametrize("asked", ["well?", "bye"])
def test_it_says_something(asked):
    assert answer(asked) in ("yes", "no", "good bye")

@pytest.mark.timeout(1)
def test_it_does_not_hang():
    while answer("hang") != "no hang":
        time.sleep(0.01)

def test_nobody_guards_this(): ...

def test_this_fails_anyway():
    assert answer("bye") == "never mind"
"""

MUTATIONS = f"""
{GOOD}
[[mutation]]
breaks = "it says good night"
file = "answer.py"
find = '''"good bye"'''
replace = '''"good night"'''
kills = ["test_it_says_something"]
[[mutation]]
breaks = "it says good night, but not at once"
file = "answer.py"
find = '''"good bye"'''
replace = '''"good night"'''
kills = ["test_it_says_something[bye]", "test_it_says_something[well?]"]
[[mutation]]
breaks = "it says no, which is something"
file = "answer.py"
find = '''return "yes"'''
replace = '''return "no"'''
kills = ["test_it_says_yes", "test_it_says_something"]
[[mutation]]
breaks = "it hangs"
file = "answer.py"
find = '''return "no hang"'''
replace = '''return "hang"'''
kills = ["test_it_does_not_hang", "test_this_fails_anyway"]
[[mutation]]
breaks = "it was mended long ago"
file = "answer.py"
find = '''return "perhaps"'''
replace = '''return "no"'''
kills = ["test_it_says_yes"]
[[mutation]]
breaks = "it can not even be read"
file = "answer.py"
find = '''def answer(asked):'''
replace = '''def answer(asked:'''
kills = ["test_it_says_yes"]
[[mutation]]
breaks = "it can not even be imported"
file = "answer.py"
find = '''def answer(asked):'''
replace = '''import nothing\ndef answer(asked):'''
kills = ["test_it_says_yes"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The same name, in another place: a copy must be what is imported, whatever is installed."""
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\npythonpath = ["src"]\n',
        "src/holdfast/__init__.py": "",
        "src/holdfast/answer.py": ANSWER,
        "tests/lifecycle/test_answers.py": TESTS,
        "tests/lifecycle/mutations/test_answers.toml": MUTATIONS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


CAUSE = "test_it_says_yes did not run: ModuleNotFoundError: No module named 'nothing'"


def fingerprint(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_killed_survivors_and_stale_ones_are_told_apart(project: Path) -> None:
    before = fingerprint(project)
    lines: list[str] = []
    outcome: Outcome = anyio.run(mutate, project, [], 2, lines.append)
    assert {verdict.mutation.breaks: (verdict.kind, verdict.detail) for verdict in outcome.verdicts} == {
        "it says no": ("killed", ""),
        "it says good night": ("killed", ""),
        "it says good night, but not at once": ("survived", "test_it_says_something[well?] still passes"),
        "it says no, which is something": ("survived", "test_it_says_something still passes"),
        "it hangs": ("killed", ""),
        "it was mended long ago": ("stale", "the text to find occurs 0 times in answer.py"),
        "it can not even be read": ("broken", "'(' was never closed, line 2"),
        "it can not even be imported": ("broken", CAUSE),
    }
    assert outcome.failing == ["tests/lifecycle/test_answers.py: test_this_fails_anyway"]
    assert [trial.name for trial in outcome.unguarded] == ["test_nobody_guards_this"]
    assert not outcome.good
    assert len(lines) == 1 + 8  # the sound tree's tests, and a line for each mutation
    assert fingerprint(project) == before
    told = summary(outcome)
    assert told[1].split() == ["tests/lifecycle/test_answers.py", "8", "3", "2", "1", "2"]
    assert told[-1] == "8 mutations, 2 survivors"


def test_all_is_good_when_every_mutation_is_killed_and_every_test_guarded(project: Path) -> None:
    (project / "tests/lifecycle/test_answers.py").write_text(TESTS[: TESTS.index("@pytest.mark.parametrize")])
    (project / "tests/lifecycle/mutations/test_answers.toml").write_text(GOOD)
    outcome: Outcome = anyio.run(mutate, project, [], 2, lambda line: None)
    assert outcome.good
    assert summary(outcome)[-1] == "1 mutations, 0 survivors"
    trial = Trial("tests/lifecycle/test_answers.py", "test_it_says_no")
    survivor = outcome.verdicts[0]._replace(kind="survived")
    assert not outcome._replace(unguarded=[trial]).good
    assert not outcome._replace(failing=["test_it_says_no"]).good
    assert not outcome._replace(verdicts=[*outcome.verdicts, survivor]).good
