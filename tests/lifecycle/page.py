"""docs/lifecycle.md: the contract, each claim of it with the tests that prove it."""

import re
from collections.abc import Iterable, Iterator, Sequence

from .claims import Claim, Contract, Pending, Trial, proofs

PAGE = "docs/lifecycle.md"
_UP = "../"
"""From the page's folder to the root."""

_HEAD = """\
<!-- Made from tests/lifecycle by `python scripts/lifecycle.py --write`; change contract.toml or the tests. -->
# What lives how long

What becomes of your conversation when its agent leaves memory, when you say `/new`, when the gateway stops, when it
crashes? This page says it, for everything that Holdfast holds. Each sentence has a test that proves it, and each of
these tests has been seen to fail: `scripts/mutate` breaks the behaviour that it guards on purpose.

## The ladder

A conversation is in one of four states. Each lies strictly inside the one above it, and memory is a matter of what is
awake, never of how many conversations there ever were.

| state | where it lives | how it leaves |
| --- | --- | --- |
| dormant | rows in the store, nothing in memory | a message, a command, an expiry |
| awake | a task with a mailbox, and what its tools opened | nothing open and no mail: dormant again, losing nothing |
| resident | awake, with a warm agent | too long idle, too many residents, too little memory, another model |
| running | resident, inside a turn | the turn's end, however it ends |

A warm agent is a lease on the model, the messages in the model's own form, the tool set and the system prompt.
That an agent leaves memory is **not** the end of its conversation. Only the end of a conversation closes what it owns.

## What each event does to each thing

- **kept**: untouched.
- **out**: leaves memory, and is rebuilt from the store when it is next needed, the same to the byte.
- **released**: can make no further request. A shared connection closes when it is idle and nobody holds it.
- **closed**: really closed; its sockets, processes and files are gone.
- **gone**: dropped for good.

Each ✓ leads to a test, whose name it shows under the pointer. Each ◷ leads to the issue that brings the cell, or the
rest of it; a test fails once the thing is there and its cell has no test. A – claims nothing.
"""

_INVARIANTS = """
## Invariants

What holds whatever happens. Each prevents a failure that long-lived gateways have had.
"""

_CASES = """
## Cases

What has gone wrong in gateways, case by case.
"""

_LATER = """
## Still to come

What waits for its issue, and for its tests with it.
"""


def page(contract: Contract, trials: Iterable[Trial]) -> str:
    proved = proofs(contract, sorted(trials))
    lines = [*_HEAD.splitlines(), "", *_table(contract, proved)]
    lines += [*_INVARIANTS.splitlines(), *_invariants(contract, proved)]
    lines += [*_CASES.splitlines(), *_cases(contract, proved)]
    if later := _later(contract):
        lines += _LATER.splitlines()
        for issue, sentences in later.items():
            lines += ["", f"### {issue}", "", *(f"- {sentence}" for sentence in sentences)]
    return "\n".join(lines) + "\n"


def _table(contract: Contract, proved: dict[str, list[Trial]]) -> Iterator[str]:
    heads = [" ".join((text, *map(_clock, contract.columns[event]))) for event, text in contract.events.items()]
    yield _row("", *heads)
    yield _row(*["---"] * (len(heads) + 1))
    for thing in contract.things:
        cells = (f"{thing.id}/{event}" for event in contract.events)
        yield _row(f"**{thing.name}**", *(_cell(contract, cell, proved) for cell in cells))


def _cell(contract: Contract, cell: str, proved: dict[str, list[Trial]]) -> str:
    claim = contract.claims.get(cell)
    if claim is None:
        return contract.blank[cell]
    checks = (f'[✓]({_UP}{trial.file} "{trial.sentence}")' for trial in proved[cell])
    return " ".join((claim.text, *checks, *map(_clock, claim.later))) + _bare(claim, proved)


def _invariants(contract: Contract, proved: dict[str, list[Trial]]) -> Iterator[str]:
    yield ""
    for claim in (claim for claim in contract.claims.values() if claim.id.startswith("invariant ")):
        first, rest = re.fullmatch(r"(.+?\.)(?: (.+))?", claim.text, re.DOTALL).groups("")  # type: ignore[union-attr]
        number = claim.id.partition(" ")[2]
        yield " ".join(part for part in (f"{number}. **{first}**", rest, _because(claim)) if part)
        yield f"   <br>{_evidence(claim, proved)}"


def _cases(contract: Contract, proved: dict[str, list[Trial]]) -> Iterator[str]:
    for group, cases in contract.groups.items():
        yield from ("", f"### {group}", "", "| | what holds | proved by |", "| ---: | --- | --- |")
        for claim in (contract.claims[case] for case in cases):
            said = " ".join(part for part in (claim.text, _because(claim)) if part)
            yield _row(claim.id.partition(" ")[2], said, _evidence(claim, proved))


def _because(claim: Claim) -> str:
    return f"*{claim.because}*" if claim.because else ""


def _evidence(claim: Claim, proved: dict[str, list[Trial]]) -> str:
    """The tests by their names, and what is still to come."""
    tests = [f"[{trial.sentence}]({_UP}{trial.file})" for trial in proved[claim.id]]
    later = [f"◷ {f'{pending.part}: ' if pending.part else ''}{_issue(pending)}" for pending in claim.later]
    return " · ".join([*tests, *later]) + _bare(claim, proved)


def _bare(claim: Claim, proved: dict[str, list[Trial]]) -> str:
    return "" if proved[claim.id] or claim.pending else " ✗ no test"


def _later(contract: Contract) -> dict[str, list[str]]:
    """By issue: what it brings, a sentence for each of its entries."""
    wanted: dict[Pending, list[str]] = {}
    for claim in contract.claims.values():
        for pending in claim.later:
            wanted.setdefault(pending, []).append(claim.id)
    for event, columns in contract.columns.items():
        for pending in columns:
            wanted.setdefault(pending, []).append(f"*/{event}")
    issues: dict[str, list[str]] = {}
    for pending, claims in wanted.items():
        part = f"**{pending.part}**, in: " if pending.part else ""
        issues.setdefault(pending.issue, []).append(part + "; ".join(_readable(contract, claims)))
    return issues


def _readable(contract: Contract, claims: Sequence[str]) -> Iterator[str]:
    """Whole rows by the thing's name, single cells with their event, all else by its number."""
    for thing in contract.things:
        cells = [claim for claim in claims if claim.startswith(f"{thing.id}/")]
        if cells and cells == [claim for claim in contract.claims if claim.startswith(f"{thing.id}/")]:
            yield thing.name
        elif cells:
            yield f"{thing.name} ({'; '.join(contract.events[cell.partition('/')[2]] for cell in cells)})"
    for claim in claims:
        if claim.startswith("*/"):
            yield f'the column "{contract.events[claim[2:]]}"'
        elif "/" not in claim:
            yield claim


def _clock(pending: Pending) -> str:
    said = f"{pending.part}: {pending.issue}" if pending.part else pending.issue
    return f'[◷](#{_anchor(pending.issue)} "{said}")'


def _issue(pending: Pending) -> str:
    return f"[{pending.issue}](#{_anchor(pending.issue)})"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
