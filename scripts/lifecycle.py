"""Keeps docs/lifecycle.md: `--check` fails when it differs from the contract and the tests, `--write` renews it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lifecycle.claims import collect, read_contract  # noqa: E402
from lifecycle.page import PAGE, page  # noqa: E402


def main(arguments: list[str]) -> int:
    if arguments not in (["--check"], ["--write"]):
        print("usage: python scripts/lifecycle.py --check | --write", file=sys.stderr)
        return 2
    contract = read_contract((ROOT / "tests/lifecycle/contract.toml").read_text(encoding="utf-8"))
    trials, _ = collect(ROOT)
    file, text = ROOT / PAGE, page(contract, trials)
    if arguments == ["--write"]:
        file.write_text(text, encoding="utf-8")
    elif not file.is_file() or file.read_text(encoding="utf-8") != text:
        print(f"{PAGE} differs from the contract and the tests: run python scripts/lifecycle.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
