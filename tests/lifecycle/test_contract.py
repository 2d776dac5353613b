"""The contract and the tests belong together: no claim without a test, no test without a claim."""

from pathlib import Path

import pytest

from . import claims
from .claims import Contract, ContractError, Trial, read_contract, read_tests
from .page import PAGE, page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def contract() -> Contract:
    return read_contract((ROOT / "tests/lifecycle/contract.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def collected() -> tuple[list[Trial], list[str]]:
    return claims.collect(ROOT)


@pytest.fixture(scope="module")
def trials(collected: tuple[list[Trial], list[str]]) -> list[Trial]:
    return collected[0]


def listed(findings: list[str]) -> str:
    return "\n".join(["", *findings])


def test_every_claim_has_a_test_or_waits_for_its_issue(contract: Contract, trials: list[Trial]) -> None:
    missing = claims.without_a_test(contract, trials)
    assert not missing, listed([f"{len(missing)} claims have no test:", *missing])


def test_every_test_names_claims_that_exist(contract: Contract, collected: tuple[list[Trial], list[str]]) -> None:
    trials, wrong = collected
    wrong = [*wrong, *claims.unknown(contract, trials)]
    assert not wrong, listed(wrong)


def test_every_test_of_the_lifecycle_says_what_it_proves(trials: list[Trial]) -> None:
    idle = claims.proves_nothing(trials)
    assert not idle, listed(idle)


def test_what_is_pending_is_not_there_yet(contract: Contract, trials: list[Trial]) -> None:
    late = [*claims.pending_but_there(contract, claims.names_in(ROOT)), *claims.pending_but_proved(contract, trials)]
    assert not late, listed(late)


def test_the_page_shows_what_the_contract_and_the_tests_say(contract: Contract, trials: list[Trial]) -> None:
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == page(contract, trials), "run python scripts/lifecycle.py --write"


def test_the_contract_is_whole(contract: Contract) -> None:
    """Nobody drops a row, a column, an invariant or a case on the way."""
    numbers = [id.partition(" ")[2] for id in contract.claims if id.startswith("invariant ")]
    assert numbers == [str(number) for number in range(1, 21)]
    cases = [id for group in contract.groups.values() for id in group]
    assert cases == [f"case {number}" for number in range(1, 70)]
    assert len(contract.things) == 21
    cells = {f"{thing.id}/{event}" for thing in contract.things for event in contract.events}
    assert cells == {id for id in contract.claims if "/" in id} | contract.blank.keys()


# ── the checks themselves, on a contract with faults ────────────────────────────────────────────

PLANTED = """
[events]
evict = "eviction"
end = "/new"

[[thing]]
id = "lease"
name = "the lease"
evict = "released"
end = "–"

[[thing]]
id = "shell"
name = "the shell"
evict = "kept"
end = "closed"

[invariants]
1 = "It holds. Whatever happens."

[cases.Bounds]
1 = "the oldest goes"
2 = "nobody waits"

[because]
"case 2" = "There is nothing to wait for."

[[pending]]
issue = "The workspace"
signs = ["tools/shell*", "/yolo", "--replace", "*Approval*"]
claims = ["shell/*"]

[[pending]]
issue = "Proof"
part = "the second half"
signs = ["scripts/soak"]
claims = ["invariant 1", "*/evict"]
"""

MODULE = '''
import pytest
@pytest.mark.proves("lease/evict", "case 1")
def test_one(): ...
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.proves("invariant 1"))])
@pytest.mark.proves("case 1")
async def test_two(x): ...
def test_three():
    """proves nothing"""
def not_a_test(): ...
'''


@pytest.fixture
def planted() -> Contract:
    return read_contract(PLANTED)


def some(*proved: str, file: str = "tests/lifecycle/test_x.py") -> list[Trial]:
    return [Trial(file, f"test_{number}", (claim,)) for number, claim in enumerate(proved)]


def test_the_claims_of_a_contract_are_read(planted: Contract) -> None:
    assert list(planted.claims) == ["lease/evict", "shell/evict", "shell/end", "invariant 1", "case 1", "case 2"]
    assert planted.blank == {"lease/end": "–"}
    waiting = [id for id, claim in planted.claims.items() if claim.pending]
    assert waiting == ["shell/evict", "shell/end"]


@pytest.mark.parametrize(
    "wrong",
    ['claims = ["shell/evict"]', 'claims = ["case 3"]', 'claims = ["lamp/*"]', 'claims = ["*/evict"]'],
)
def test_a_claim_that_is_not_there_can_not_be_pending(wrong: str) -> None:
    """Nor one that is pending already, nor all of a column."""
    with pytest.raises(ContractError):
        read_contract(f'{PLANTED}\n[[pending]]\nissue = "Proof"\nsigns = ["x"]\n{wrong}\n')


def test_a_reason_needs_its_claim() -> None:
    with pytest.raises(ContractError, match="case 9"):
        read_contract(PLANTED.replace('"case 2" =', '"case 9" ='))


def test_what_tests_prove_is_read_from_their_markers() -> None:
    trials, wrong = read_tests(MODULE, "tests/lifecycle/test_x.py")
    assert [(trial.name, set(trial.proves)) for trial in trials] == [
        ("test_one", {"lease/evict", "case 1"}),
        ("test_two", {"invariant 1", "case 1"}),
        ("test_three", set()),
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.proves(*CLAIMS)\ndef test_x(): ...",
        '@pytest.mark.proves(f"lease/{event}")\ndef test_x(): ...',
        '@pytest.mark.proves("lease/evict")\ndef helper(): ...',
        'pytestmark = [pytest.mark.proves("lease/evict")]',
        'class TestX:\n    @pytest.mark.proves("lease/evict")\n    def test_x(self): ...',
    ],
)
def test_a_marker_that_nobody_could_read_is_found(source: str) -> None:
    _, wrong = read_tests(source, "tests/test_x.py")
    assert len(wrong) == 1
    assert wrong[0].startswith("tests/test_x.py:")


def test_a_claim_without_a_test_is_found(planted: Contract) -> None:
    assert claims.without_a_test(planted, some("lease/evict", "case 1")) == ["invariant 1", "case 2"]
    assert claims.without_a_test(planted, some("lease/evict", "case 1", "invariant 1", "case 2")) == []


def test_a_claim_that_nobody_makes_is_found(planted: Contract) -> None:
    (told,) = claims.unknown(planted, some("case 1", "lease/end"))
    assert "test_1 proves 'lease/end'" in told


def test_what_is_pending_and_proved_is_found(planted: Contract) -> None:
    """Where only a part is pending, the rest has to be proved."""
    (told,) = claims.pending_but_proved(planted, some("shell/end", "invariant 1"))
    assert told == "shell/end has a test (test_0) and is pending until 'The workspace'"


def test_a_test_of_the_lifecycle_that_proves_nothing_is_found() -> None:
    bare = [
        Trial(f"tests/{file}", "test_x") for file in ("lifecycle/test_x.py", "lifecycle/test_contract.py", "unit/x.py")
    ]
    assert claims.proves_nothing([*bare, *some("case 1")]) == ["tests/lifecycle/test_x.py: test_x"]


@pytest.mark.parametrize(
    ("path", "text", "claim"),
    [
        ("src/holdfast/tools/shell.py", "", "shell/evict"),
        ("src/holdfast/tools/shells/pty.py", "", "shell/evict"),
        ("src/holdfast/gateway/commands.py", 'COMMANDS = (Command("yolo", "Allow all."),)', "shell/evict"),
        ("src/holdfast/gateway/commands.py", 'COMMANDS = (Command("all", "x", also=("yolo",)),)', "shell/evict"),
        ("src/holdfast/cli/serve.py", 'def serve(replace=Option(False, "--replace")): ...', "shell/evict"),
        ("src/holdfast/core/x.py", "class PendingApproval: ...", "shell/evict"),
        ("src/holdfast/core/x.py", "class X:\n    def ask_approval(self): ...", "shell/evict"),
        ("src/holdfast/core/x.py", "class X:\n    approval: str = ''", "shell/evict"),
        ("scripts/soak", "", "invariant 1, */evict (the second half)"),
    ],
)
def test_a_pending_thing_that_exists_is_found(
    tmp_path: Path, planted: Contract, path: str, text: str, claim: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    (told,) = claims.pending_but_there(planted, claims.names_in(tmp_path))
    assert told.partition("prove ")[2].startswith(claim)


def test_what_is_not_there_is_no_sign(tmp_path: Path, planted: Contract) -> None:
    (tmp_path / "src/holdfast/cli").mkdir(parents=True)
    (tmp_path / "src/holdfast/cli/shell.py").write_text('"""Its --replace and approval come later."""\nx = "yolo"\n')
    assert claims.pending_but_there(planted, claims.names_in(tmp_path)) == []


def test_a_page_has_each_claim_with_its_tests_and_what_is_to_come(planted: Contract) -> None:
    lines = page(planted, some("lease/evict", "invariant 1", "case 2")).splitlines()
    test = "../tests/lifecycle/test_x.py"
    assert '|  | eviction [◷](#proof "the second half: Proof") | /new |' in lines
    assert f'| **the lease** | released [✓]({test} "0") | – |' in lines
    assert (
        '| **the shell** | kept [◷](#the-workspace "The workspace") | closed [◷](#the-workspace "The workspace") |'
        in lines
    )
    assert "1. **It holds.** Whatever happens." in lines
    assert f"   <br>[1]({test}) · ◷ the second half: [Proof](#proof)" in lines
    assert "| 1 | the oldest goes |  ✗ no test |" in lines
    assert f"| 2 | nobody waits *There is nothing to wait for.* | [2]({test}) |" in lines
    later = lines[lines.index("## Still to come") :]
    assert [line for line in later if line.startswith(("#", "-"))] == [
        "## Still to come",
        "### The workspace",
        "- the shell",
        "### Proof",
        '- **the second half**, in: invariant 1; the column "eviction"',
    ]
