"""The lock files say what pyproject.toml asks for, agree with each other, and pin every file by its hash."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-telegram.lock", "requirements-dev.lock", "requirements-build.lock")
PIN = re.compile(r"^(\S+)==(\S+)( ; .+)? \\$\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?$\n)+", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    found = {name: version for name, version, _ in PIN.findall(text)}
    rest = [line for line in PIN.sub("", text).splitlines() if line and not line.lstrip().startswith("#")]
    assert not rest, f"neither a pinned package nor a comment: {rest}"
    return found


def wanted(lock: str) -> list[Requirement]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups, extras = settings["dependency-groups"], settings["project"]["optional-dependencies"]
    core = settings["project"]["dependencies"]
    return [
        Requirement(line)
        for line in {
            "requirements.lock": core,
            "requirements-telegram.lock": core + extras["telegram"],
            "requirements-dev.lock": [*core, *chain(*extras.values()), *groups["dev"]],
            "requirements-build.lock": groups["build"],
        }[lock]
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_what_is_asked_for(lock: str) -> None:
    pinned = pins(lock)
    for requirement in wanted(lock):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement} is missing: run scripts/lock"
        assert requirement.specifier.contains(version), f"{version} is not {requirement}: run scripts/lock"


@pytest.mark.parametrize("larger", ["requirements-telegram.lock", "requirements-dev.lock"])
def test_what_is_larger_contains_what_the_gateway_runs_on(larger: str) -> None:
    assert pins("requirements.lock").items() <= pins(larger).items()


def test_the_gateway_runs_without_what_is_extra() -> None:
    assert not {"python-telegram-bot", "pytest", "openai", "playwright"} & pins("requirements.lock").keys()


def test_the_build_is_locked_too() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for line in settings["build-system"]["requires"]:
        assert Requirement(line) in wanted("requirements-build.lock")
