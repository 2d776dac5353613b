"""State outside its owner: tables by session or chat, caches that remember them, and module state."""

import ast
from collections.abc import Iterator

from .source import Source
from .violation import Found

KEYS = {"AwakeChat", "ChatKey", "Session", "SessionId"}
"""The types that stand for one session or chat."""
NAMES = {"chat", "chat_id", "chat_key", "conversation", "session", "session_id", "session_key", "sid"}
"""What such a thing is called where its type is not said."""
SAME = {"id", "key", "row"}
"""What still stands for it: `session.id`, `chat.key`, `session.row.id`."""
KEEPS = {"add": 1, "append": 1, "appendleft": 1, "insert": 2, "setdefault": 2, "__setitem__": 2}
"""Methods by which a container keeps something, with how many arguments they take: others' may be called the same."""
MUTATORS = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "move_to_end", "pop", "popitem", "popleft", "put", "put_nowait", "remove", "reverse",
    "setdefault", "sort", "subtract", "symmetric_difference_update", "update",
}  # fmt: skip
CONTAINERS = {
    "bytearray", "ChainMap", "Counter", "defaultdict", "deque", "dict", "LifoQueue", "list", "OrderedDict",
    "PriorityQueue", "Queue", "set", "SimpleQueue", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary",
}  # fmt: skip
TABLES = (CONTAINERS - {"bytearray"}) | {
    "AbstractSet", "Collection", "Dict", "frozenset", "FrozenSet", "List", "Mapping", "MutableMapping",
    "MutableSequence", "MutableSet", "Sequence", "Set", "tuple",
}  # fmt: skip
CACHES = {"alru_cache", "cache", "cached", "lru_cache", "ttl_cache"}


def find(source: Source) -> Iterator[Found]:
    yield from _module_state(source)
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _remembers_sessions(source, node):
                yield "table", node, f"a cache on {node.name}"
        elif _is_a_table(source, node):
            yield "table", node, ast.unparse(node)


def _is_a_table(source: Source, node: ast.AST) -> bool:
    match node:
        case ast.AnnAssign(target=target, annotation=annotation, value=value):
            if isinstance(target, ast.Name) and any(source.functions_around(node)):
                return False  # a variable of a function goes with it
            return _holds_sessions(annotation) or (value is not None and _is_keyed(source, value))
        case ast.Assign(targets=targets, value=value):
            return _is_keyed(source, value) and any(_outlives(source, target) for target in targets)
        case ast.AugAssign(target=target, value=value):
            return _is_keyed(source, value) and _outlives(source, target)
        case ast.Subscript(value=container, slice=key):
            return _identifies(source, key) and _outlives(source, container)
        case ast.Call(func=ast.Attribute(value=container, attr="update"), args=[value, *_]):
            return _is_keyed(source, value) and _outlives(source, container)
        case ast.Call(func=ast.Attribute(value=container, attr=method), args=[*_, _] as given) if method in KEEPS:
            kept = given[-1] if method == "insert" else given[0]
            words = isinstance(kept, ast.JoinedStr) and method in ("append", "appendleft", "insert")
            fits = len(given) == KEEPS[method] or (method == "setdefault" and len(given) == 1)
            return fits and not words and _identifies(source, kept) and _outlives(source, container)
        case ast.Call(func=function, args=[container, kept, *_]):
            return (
                source.full_name(function) in ("heapq.heappush", "heapq.heappushpop", "bisect.insort")
                and _identifies(source, kept)
                and _outlives(source, container)
            )
    return False


# ── what a type, a value or a place is ──────────────────────────────────────────────────────────


def _holds_sessions(annotation: ast.expr) -> bool:
    """Whether a type is a container with sessions or chats in it, as keys or else."""
    match annotation:
        case ast.Constant(value=str() as text):
            return (quoted := _quoted(text)) is not None and _holds_sessions(quoted)
        case ast.Subscript(value=kind, slice=inside):
            name = ast.unparse(kind).rpartition(".")[2]
            return _mentions_sessions(inside) if name in TABLES else name != "Callable" and _holds_sessions(inside)
        case ast.BinOp(left=left, right=right):
            return _holds_sessions(left) or _holds_sessions(right)
        case ast.Tuple(elts=parts):
            return any(map(_holds_sessions, parts))
    return False


def _mentions_sessions(annotation: ast.AST) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in KEYS
        case ast.Constant(value=str() as text):
            return (quoted := _quoted(text)) is not None and _mentions_sessions(quoted)
        case ast.Subscript(value=kind) if ast.unparse(kind).rpartition(".")[2] == "Callable":
            return False
    return any(map(_mentions_sessions, ast.iter_child_nodes(annotation)))


def _quoted(text: str) -> ast.expr | None:
    """An annotation in quotes; None for other words, such as a pattern in `Annotated`."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _identifies(source: Source, node: ast.expr) -> bool:
    """Whether a value stands for one session or chat: it, its id, or something made from that."""
    match node:
        case ast.Name(id=name):
            annotation = source.annotation_of(node)
            if annotation is None:
                value = source.value_of(node)
                return name in NAMES or (value is not None and _identifies(source, value))
            of_text = ast.unparse(annotation).strip("'\"").split(" | ")[0] == "str"
            return _mentions_sessions(annotation) or (of_text and name in NAMES)
        case ast.Attribute(value=value, attr=name):
            inside = isinstance(value, ast.Name) and value.id == "self" and source.class_around(node) in KEYS
            return name in NAMES or (name in SAME and (inside or _identifies(source, value)))
        case ast.Call(func=function, args=arguments):
            name = ast.unparse(function)
            if name.partition(".")[0] in ("ChatKey", "SessionId"):
                return True
            return name in ("hash", "id", "repr", "str") and any(_identifies(source, part) for part in arguments)
        case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            return any(_identifies(source, part) for part in parts)
        case ast.FormattedValue(value=value) | ast.NamedExpr(value=value):
            return _identifies(source, value)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return _identifies(source, left) or _identifies(source, right)
    return False


def _is_keyed(source: Source, node: ast.expr) -> bool:
    """Whether a value is a container with sessions or chats for keys."""
    match node:
        case ast.Dict(keys=keys):
            return any(key is not None and _identifies(source, key) for key in keys)
        case ast.Set(elts=keys):
            return any(_identifies(source, key) for key in keys)
        case ast.DictComp(key=key) | ast.SetComp(elt=key):
            return _identifies(source, key)
        case ast.Call(func=ast.Name(id="dict" | "set"), args=[ast.GeneratorExp(elt=key)]):
            return _identifies(source, key)
        case ast.BinOp(left=left, right=right):
            return _is_keyed(source, left) or _is_keyed(source, right)
    return False


def _outlives(source: Source, node: ast.expr) -> bool:
    """Whether a place is still there when the function returns: an attribute, or a variable from further out."""
    if isinstance(node, ast.Subscript):  # a table in a table
        return _outlives(source, node.value)
    if not isinstance(node, ast.Name):
        return isinstance(node, ast.Attribute)
    if not source.is_local(node):
        return True
    value = source.value_of(node)  # another name for what belongs to someone else
    return isinstance(value, ast.Attribute) or (isinstance(value, ast.Name) and _outlives(source, value))


def _remembers_sessions(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    caches = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    if not any(source.full_name(cache).rpartition(".")[2].removeprefix("local ") in CACHES for cache in caches):
        return False
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return any(
        each.arg in NAMES or (each.annotation is not None and _mentions_sessions(each.annotation))
        for each in parameters
    )


# ── module state ────────────────────────────────────────────────────────────────────────────────


def _module_state(source: Source) -> Iterator[Found]:
    """Containers of a module or a class that its functions change, and names that they bind anew."""
    shared = set(_containers(source, source.tree.body))
    of_classes = {
        name
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for name in _containers(source, node.body)
        if not _is_set_by_instances(node, name)
    }
    for node in source.nodes:
        if isinstance(node, ast.Global):
            yield "global", node, ast.unparse(node)
        elif any(source.functions_around(node)) and (changed := _changed(node)) is not None:
            of_module = isinstance(changed, ast.Name) and changed.id in shared and not source.is_local(changed)
            if of_module or (isinstance(changed, ast.Attribute) and changed.attr in of_classes):
                yield "global", node, ast.unparse(node)


def _containers(source: Source, body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        display = isinstance(value, ast.Dict | ast.DictComp | ast.List | ast.ListComp | ast.Set | ast.SetComp)
        made = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in CONTAINERS
        if display or made:
            yield name


def _is_set_by_instances(owner: ast.ClassDef, name: str) -> bool:
    """Whether each object has one of its own, or is frozen data whose fields are copied."""
    return bool(owner.bases and any("Struct" in ast.unparse(base) for base in owner.bases)) or any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(owner)
    )


def _changed(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=method)) if method in MUTATORS:
            return container
        case ast.Subscript(value=container, ctx=ast.Store() | ast.Del()):
            return container
    return None
