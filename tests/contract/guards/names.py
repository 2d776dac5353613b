"""What may not be named: each stands for something that would begin or end outside of every scope."""

import ast
from collections.abc import Iterator

from .source import Source
from .violation import Found

# A name that ends in a dot stands for all functions of that module, one that ends in a star for all of it.
FORBIDDEN = {
    "task": (
        "asyncio.create_task",
        "asyncio.ensure_future",
        "asyncio.gather",
        "asyncio.run_coroutine_threadsafe",
        "asyncio.Task",
        "asyncio.TaskGroup",
    ),
    "thread": (
        "_thread.start_new_thread",
        "anyio.from_thread.BlockingPortalProvider",
        "anyio.from_thread.start_blocking_portal",
        "asyncio.to_thread",
        "concurrent.futures.ThreadPoolExecutor",
        "threading.Thread",
        "threading.Timer",
    ),
    "loop": (
        "anyio.run",
        "asyncio.new_event_loop",
        "asyncio.run",
        "asyncio.Runner",
        "asyncio.set_event_loop",
        "uvloop.install",
        "uvloop.new_event_loop",
        "uvloop.run",
    ),
    "process": (
        "anyio.open_process",
        "anyio.run_process",
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
        "concurrent.futures.ProcessPoolExecutor",
        "multiprocessing.*",
        "os.fork",
        "os.forkpty",
        "os.popen",
        "os.posix_spawn",
        "os.posix_spawnp",
        "os.system",
        "pty.fork",
        "pty.spawn",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.getoutput",
        "subprocess.Popen",
        "subprocess.run",
    ),
    "finalizer": (
        "atexit.register",
        "sys.excepthook",
        "sys.unraisablehook",
        "threading.excepthook",
        "weakref.finalize",
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
FORBIDDEN_METHODS = {
    "create_task": "task",
    "run_forever": "loop",
    "run_in_executor": "thread",
    "run_until_complete": "loop",
}
TIMERS = ("call_at", "call_later")


def find(source: Source) -> Iterator[Found]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield "finalizer", node, "def __del__"
        elif isinstance(node, ast.Expr) and _is_call(node.value, *TIMERS):
            yield "timer", node, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and _leaves_a_task(source, node):
            yield "task", node, ast.unparse(node)
        elif rule := _rule_for(source, node):
            yield rule, node, ast.unparse(node)


def _rule_for(source: Source, node: ast.AST) -> str | None:
    if not isinstance(node, ast.Name | ast.Attribute) or id(node) in source.annotations:
        return None
    full = source.full_name(node)
    if full.rpartition(".")[2][:1].isupper() and isinstance(source.parent(node), ast.Subscript):
        return None  # `Popen[bytes]` is a type
    for rule, names in FORBIDDEN.items():
        if any(_stands_for(name, full) for name in names):
            return None if rule == "process" and _is_in_the_ledger(source, node) else rule
    return FORBIDDEN_METHODS.get(node.attr) if isinstance(node, ast.Attribute) else None


def _stands_for(name: str, full: str) -> bool:
    if name.endswith("*"):
        return full.startswith(name[:-1])
    if name.endswith("."):
        return full.startswith(name) and full[len(name)].islower()
    return full == name


def _is_call(node: ast.AST, *methods: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods


def _leaves_a_task(source: Source, call: ast.Call) -> bool:
    """`shield` makes a task of a coroutine, and leaves it behind when the caller is cancelled."""
    return source.full_name(call.func) == "asyncio.shield" and bool(call.args) and isinstance(call.args[0], ast.Call)


def _is_in_the_ledger(source: Source, node: ast.AST) -> bool:
    """Whether the function that starts a process enters it in the ledger."""
    function = next(source.functions_around(node), None)
    return function is not None and any(
        isinstance(part, ast.Call)
        and _is_call(part, "enter")
        and bool(part.args)
        and isinstance(part.args[0], ast.Constant)
        and part.args[0].value == "process"
        for part in ast.walk(function)
    )
