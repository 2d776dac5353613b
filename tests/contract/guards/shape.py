"""How long a function and a file may get, and what may be caught."""

import ast
from collections.abc import Iterator

from .source import Source
from .violation import MAX_FILE_LINES, MAX_FUNCTION_LINES, Found


def find(source: Source) -> Iterator[Found]:
    if (lines := source.text.count("\n")) > MAX_FILE_LINES:
        yield "file", source.tree, f"{lines} lines"
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES:
                yield "function", node, node.name
        elif isinstance(node, ast.ExceptHandler) and _catches_all(node) and not _deals_with_it(node):
            yield "except", node, "except " + ast.unparse(node.type or ast.Name(""))


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
