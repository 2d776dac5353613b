"""How things end: by leaving a block, not by a verb of their own; and a turn's state goes as one."""

import ast
from collections.abc import Iterator

from .source import Source
from .tables import MUTATORS
from .violation import Found

VERBS = (
    "aclose",
    "clean_up",
    "cleanup",
    "close",
    "destroy",
    "disconnect",
    "dispose",
    "finalize",
    "kill",
    "quit",
    "release",
    "shut_down",
    "shutdown",
    "stop",
    "tear_down",
    "teardown",
    "terminate",
)


def find(source: Source) -> Iterator[Found]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_a_verb(node.name) and isinstance(owner := source.parent(node), ast.ClassDef | ast.Module):
                yield "verb", node, f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
        elif isinstance(node, ast.Attribute | ast.Call | ast.Subscript) and _takes_from_a_turn(source, node):
            yield "turn", node, ast.unparse(node)


def _is_a_verb(name: str) -> bool:
    """A name of its own, that is: what begins with an underscore is a step inside of someone's block."""
    return any(name == verb or name.startswith(f"{verb}_") for verb in VERBS)


# ── a turn's state ──────────────────────────────────────────────────────────────────────────────


def _takes_from_a_turn(source: Source, node: ast.Attribute | ast.Call | ast.Subscript) -> bool:
    if isinstance(node, ast.Attribute):
        if isinstance(node.ctx, ast.Load):
            return node.attr.startswith("_") and _is_a_turn(source, node.value)
        return (node.attr == "turn" and not _declares(source, node)) or _is_a_turn(source, node.value)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_part_of_a_turn(source, node.value)
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in MUTATORS and _is_part_of_a_turn(source, node.func.value)
    if isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr", "vars") and node.args:
        names_it = len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and node.args[1].value == "turn"
        return names_it or _is_a_turn(source, node.args[0])
    return False


def _is_part_of_a_turn(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _is_a_turn(source, node.value)


def _is_a_turn(source: Source, node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "turn"
    if isinstance(node, ast.NamedExpr):
        return _is_a_turn(source, node.value)
    if not isinstance(node, ast.Name):
        return False
    annotation = source.annotation_of(node)
    if annotation is not None:
        return "Turn" in ast.unparse(annotation).replace("'", "").replace('"', "").replace("|", " ").split()
    value = source.value_of(node)
    return node.id == "turn" if value is None else _is_a_turn(source, value) or _makes_a_turn(value)


def _makes_a_turn(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "Turn"


def _declares(source: Source, node: ast.Attribute) -> bool:
    """`self.turn = None` in `__init__`: where there was none before."""
    function = next(source.functions_around(node), None)
    return (
        isinstance(function, ast.FunctionDef)
        and function.name == "__init__"
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
