"""What a rule says when it is broken, and what to do instead."""

import ast
from typing import NamedTuple

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 500

INSTEAD = {
    "task": "a task needs an owner: start it in a task group",
    "thread": "a blocking call goes to anyio.to_thread, with a limiter",
    "loop": "there is one event loop, made in app.py: await, or come back to it with anyio.from_thread",
    "process": 'a child needs an owner: open it inside `with ledger.enter("process", …)`, in a block that ends it',
    "timer": "a timer that nobody holds can't be cancelled: keep its handle, and cancel it where the block is left",
    "finalizer": "things end when their block is left, not by the collector or at the interpreter's exit: open_x()",
    "clock": "time, ids and chance are injected: see core/clock.py",
    "print": "people read what the command line's console writes; all else is logged",
    "environment": "pass settings on as arguments",
    "table": "a table by session leaks: put it into Session, AwakeChat or Turn, where it goes with its owner",
    "global": "module state is everyone's and never ends: put it into an object that a scope opens",
    "verb": "leaving a block is how things end: an open_x() that yields it, with the ending in its `finally`",
    "turn": "a turn's state goes as one, in gateway/turns.py: ask for the end with Turn.stop",
    "except": "who catches everything logs it, raises it, or hands the error on",
    "function": f"more than {MAX_FUNCTION_LINES} lines",
    "file": f"more than {MAX_FILE_LINES} lines",
}

Found = tuple[str, ast.AST, str]
"""The rule that is broken, by what, in words."""


class Violation(NamedTuple):
    rule: str
    where: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.what} ({self.rule}: {INSTEAD[self.rule]})"


class Allowed(NamedTuple):
    rule: str
    where: str
    reason: str
    what: str = ""
    """Only what contains this; all of the rule, when it is empty."""

    def covers(self, violation: Violation) -> bool:
        return violation.rule == self.rule and violation.where.startswith(self.where) and self.what in violation.what
