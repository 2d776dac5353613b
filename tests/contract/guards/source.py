"""A file of Python as the rules see it: what its names stand for, and what stands around each piece of it."""

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.annotations = {id(part) for node in self.nodes for part in _annotations(node)}
        self._parents = {id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._imported = dict(_imported(self.nodes))
        self._bound: dict[ast.AST, dict[str, ast.expr | None]] = {}

    def full_name(self, node: ast.AST) -> str:
        """`later` is `asyncio.ensure_future` when it was imported so."""
        if isinstance(node, ast.Attribute):
            return f"{self.full_name(node.value)}.{node.attr}"
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id if node.id == "print" else f"local {node.id}")
        return "something"

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(id(node))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a piece stands in, innermost first."""
        while (outer := self.parent(node)) is not None:
            yield outer
            node = outer

    def functions_around(self, node: ast.AST) -> Iterator[Function]:
        return (outer for outer in self.around(node) if isinstance(outer, Function))

    def class_around(self, node: ast.AST) -> str:
        return next((outer.name for outer in self.around(node) if isinstance(outer, ast.ClassDef)), "")

    def is_local(self, name: ast.Name) -> bool:
        """Whether it is gone when the function that uses it returns."""
        function = next(self.functions_around(name), None)
        return function is not None and name.id in self.bound(function)

    def annotation_of(self, name: ast.Name) -> ast.expr | None:
        """As its parameter or its variable is annotated, in this function or one around it."""
        for function in self.functions_around(name):
            if name.id in self.bound(function):
                found = next((part for part in _annotated(function) if part[0] == name.id), None)
                return found[1] if found else None
        return None

    def value_of(self, name: ast.Name) -> ast.expr | None:
        """What a local variable was made from, where that is one plain assignment."""
        for function in self.functions_around(name):
            if name.id in self.bound(function):
                return self.bound(function)[name.id]
        return None

    def bound(self, function: ast.AST) -> dict[str, ast.expr | None]:
        """The names that belong to a function, each with the value that it is given."""
        if function not in self._bound:
            self._bound[function] = dict(_bound(function))
        return self._bound[function]


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """What each imported name stands for, in full."""
    for node in nodes:
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


def _parameters(function: ast.AST) -> Iterator[ast.arg]:
    if isinstance(function, Function):
        arguments = function.args
        yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        yield from (each for each in (arguments.vararg, arguments.kwarg) if each)


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The pieces of a function that belong to no function inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, Function | ast.ClassDef):
            yield from _own(child)


def _bound(function: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    elsewhere = {name for node in _own(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    for parameter in _parameters(function):
        yield parameter.arg, None
    for node in _own(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in elsewhere:
            yield node.id, None
    for node in _own(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id not in elsewhere:
                    yield target.id, node.value
        elif isinstance(node, ast.NamedExpr) and node.target.id not in elsewhere:
            yield node.target.id, node.value


def _annotated(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for parameter in _parameters(function):
        if parameter.annotation:
            yield parameter.arg, parameter.annotation
    for node in _own(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
