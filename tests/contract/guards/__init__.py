"""Rules that the source keeps, and that no linter knows."""

from collections.abc import Iterator

from . import endings, names, shape, tables
from .source import Source
from .violation import INSTEAD, Allowed, Violation

__all__ = ["INSTEAD", "Allowed", "Violation", "violations"]


def violations(text: str, where: str) -> Iterator[Violation]:
    source = Source(text)
    for rules in (shape, names, tables, endings):
        for rule, node, what in rules.find(source):
            yield Violation(rule, where, getattr(node, "lineno", 1), what)
