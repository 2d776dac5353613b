"""Rules that the source keeps, and that no linter knows. An exception to a rule is listed here with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 500


class Allowed(NamedTuple):
    rule: str
    where: str
    reason: str


ALLOWED = [
    Allowed("task", "api/exchange.py", "one listener per request, ended with it; a task group costs six times as much"),
    Allowed("task", "testing/", "checks wait in tasks of their own; the leak fixture sees to their end"),
    Allowed("thread", "storage/lanes.py", "the store's writer and readers: a database call blocks"),
    Allowed("thread", "testing/virtual.py", "hands on what code under test asks for, and stops the clock for it"),
    Allowed("clock", "core/clock.py", "the one place where time comes from"),
    Allowed("clock", "cli/", "a command lives for a moment, and shows a person the time by the wall"),
    Allowed("clock", "models/failures.py", "a provider that sends a date and no clock of its own means the wall's"),
    Allowed("clock", "testing/", "waits for real processes, in real time"),
    Allowed("environment", "cli/", "read at the start, then passed on as settings"),
    Allowed("environment", "app.py", "read at the start, then passed on as settings"),
    Allowed("environment", "core/failpoints.py", "how a test arms a process that it starts"),
    Allowed("environment", "testing/", "prepares the environment of the processes that tests start"),
]

# What may not be named, by rule. A name that ends in a dot stands for all functions of that module.
FORBIDDEN = {
    "task": ("asyncio.create_task", "asyncio.ensure_future", "asyncio.TaskGroup"),
    "thread": (
        "threading.Thread",
        "threading.Timer",
        "concurrent.futures.ThreadPoolExecutor",
        "asyncio.to_thread",
        "anyio.from_thread.start_blocking_portal",
    ),
    "clock": (
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.sleep",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
        "uuid.uuid1",
        "uuid.uuid4",
        "random.",
    ),
    "print": ("print",),
    "environment": ("os.environ", "os.getenv", "os.putenv"),
}
FORBIDDEN_METHODS = {"create_task": "task", "run_in_executor": "thread"}
INSTEAD = {
    "task": "a task needs an owner: start it in a task group",
    "thread": "a blocking call goes to anyio.to_thread, with a limiter",
    "clock": "time, ids and chance are injected: see core/clock.py",
    "print": "people read what the command line's console writes; all else is logged",
    "environment": "pass settings on as arguments",
    "except": "who catches everything logs it, raises it, or hands the error on",
    "function": f"more than {MAX_FUNCTION_LINES} lines",
    "file": f"more than {MAX_FILE_LINES} lines",
}


class Violation(NamedTuple):
    rule: str
    where: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.what} ({INSTEAD[self.rule]})"


def violations(source: str, where: str) -> Iterator[Violation]:
    tree = ast.parse(source)
    imported = dict(_imported(tree))
    if (lines := source.count("\n")) > MAX_FILE_LINES:
        yield Violation("file", where, lines, where)
    annotations = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES:
                yield Violation("function", where, node.lineno, node.name)
        elif isinstance(node, ast.ExceptHandler):
            if _catches_all(node) and not _deals_with_it(node):
                yield Violation("except", where, node.lineno, "except " + ast.unparse(node.type or ast.Name("")))
        elif id(node) not in annotations and (rule := _rule_for(node, imported)):
            yield Violation(rule, where, node.lineno, ast.unparse(node))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What each imported name stands for, in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (name.asname, name.name) if name.asname else (name.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for field in ("annotation", "returns"):
        if isinstance(part := getattr(node, field, None), ast.AST):
            yield from ast.walk(part)


def _rule_for(node: ast.AST, imported: dict[str, str]) -> str | None:
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    full = _full_name(node, imported)
    for rule, names in FORBIDDEN.items():
        for name in names:
            if full == name or (name.endswith(".") and full.startswith(name) and full[len(name)].islower()):
                return rule
    return FORBIDDEN_METHODS.get(node.attr) if isinstance(node, ast.Attribute) else None


def _full_name(node: ast.expr, imported: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, imported)}.{node.attr}"
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id if node.id == "print" else f"local {node.id}")
    return "something"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _deals_with_it(handler: ast.ExceptHandler) -> bool:
    for node in (node for statement in handler.body for node in ast.walk(statement)):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Name) and node.id == handler.name:
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
            return True
    return False


def is_allowed(violation: Violation, allowed: Allowed) -> bool:
    return violation.rule == allowed.rule and violation.where.startswith(allowed.where)


@pytest.fixture(scope="module")
def found() -> list[Violation]:
    return [
        violation
        for file in sorted(SOURCE.rglob("*.py"))
        for violation in violations(file.read_text(encoding="utf-8"), file.relative_to(SOURCE).as_posix())
    ]


def test_the_source_keeps_the_rules(found: list[Violation]) -> None:
    broken = [str(each) for each in found if not any(is_allowed(each, allowed) for allowed in ALLOWED)]
    assert not broken, "\n" + "\n".join(broken)


def test_every_exception_is_still_needed(found: list[Violation]) -> None:
    idle = [allowed for allowed in ALLOWED if not any(is_allowed(each, allowed) for each in found)]
    assert not idle


# ── the guard itself ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("task", "import asyncio\nasyncio.create_task(f())"),
        ("task", "from asyncio import ensure_future as later\nlater(f())"),
        ("task", "import asyncio\nasyncio.get_running_loop().create_task(f())"),
        ("thread", "import threading\nthreading.Thread(target=f)"),
        ("thread", "from threading import Thread\nclass Worker(Thread): ..."),
        ("thread", "import asyncio\nasyncio.get_running_loop().run_in_executor(None, f)"),
        ("thread", "import asyncio\nasyncio.to_thread(f)"),
        ("thread", "from anyio import from_thread\nfrom_thread.start_blocking_portal()"),
        ("clock", "import time\nnow = time.time()"),
        ("clock", "from time import sleep\nsleep(1)"),
        ("clock", "import time\nclass Row:\n    made = field(default_factory=time.time)"),
        ("clock", "import datetime as dt\ndt.datetime.now(dt.UTC)"),
        ("clock", "from datetime import datetime\ndatetime.now()"),
        ("clock", "import random\nrandom.choice([1])"),
        ("clock", "from random import random\nrandom()"),
        ("clock", "import uuid\nuuid.uuid4()"),
        ("print", "print('hello')"),
        ("environment", "import os\nos.environ['HOME']"),
        ("environment", "from os import environ\nenviron.get('HOME')"),
        ("environment", "import os\nos.getenv('HOME')"),
        ("except", "try: ...\nexcept: pass"),
        ("except", "try: ...\nexcept Exception: return_value = None"),
        ("except", "try: ...\nexcept (ValueError, BaseException) as error: pass"),
        ("function", "def f():\n" + "    pass\n" * 80),
        ("function", "class C:\n    async def f(self):\n" + "        pass\n" * 80),
        ("file", "\n" * 501),
    ],
)
def test_a_planted_violation_is_found(rule: str, source: str) -> None:
    assert [violation.rule for violation in violations(source, "planted.py")] == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "async with create_task_group() as group:\n    group.start_soon(f)",
        "import threading\nlock = threading.Lock()\ndef f(thread: threading.Thread) -> threading.Thread: ...",
        "import random\ndef f(chance: random.Random): return random.Random(1), chance.choice([1])",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(clock.now(), UTC)",
        "import time\ntime.strftime('%H', time.gmtime(0))",
        "class Console:\n    def print(self): ...\nconsole.print()",
        "try: ...\nexcept ValueError: pass",
        "try: ...\nexcept Exception: log.exception('broke')",
        "try: ...\nexcept BaseException:\n    undo()\n    raise",
        "try: ...\nexcept Exception as error: future.set_exception(error)",
        "def f():\n" + "    pass\n" * 79,
        "\n" * 500,
    ],
)
def test_what_is_right_passes(source: str) -> None:
    if source.startswith("async with"):
        source = "async def f():\n    " + source.replace("\n", "\n    ")
    assert not list(violations(source, "planted.py"))
