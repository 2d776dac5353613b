"""Named points at which a test can kill or fail the process.

Points register themselves where they are made (every store write, every channel send), so the list
is generated. `HOLDFAST_FAILPOINT="store.finish.after=kill"` arms one; `=kill:3` waits for the third
time it is passed, `=fail` raises there instead.
"""

import os
import signal
from collections.abc import Callable

from holdfast.core.errors import StoreError

ENVIRONMENT_NAME = "HOLDFAST_FAILPOINT"


class InjectedFailure(StoreError):
    """An armed failpoint was passed; to the rest of the gateway it looks like a disk that gives out."""


_names: set[str] = set()
_armed: dict[str, Callable[[], None]] = {}


def register(name: str) -> str:
    _names.add(name)
    return name


def names() -> list[str]:
    return sorted(_names)


def reach(name: str) -> None:
    """Pass the point: free of charge unless a test armed something."""
    if _armed and (action := _armed.get(name)):
        action()


def arm(spec: str) -> None:
    name, _, action = spec.partition("=")
    verb, _, count = action.partition(":")
    if verb not in ("kill", "fail"):
        raise ValueError(f"a failpoint does 'kill' or 'fail', not {verb!r}")
    left = int(count or 1)

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if verb == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise InjectedFailure(name)

    _armed[name] = act


def disarm() -> None:
    _armed.clear()


def arm_from_environment() -> None:
    for spec in filter(None, os.environ.get(ENVIRONMENT_NAME, "").split(",")):
        arm(spec)
