"""The tools that are there, and the immutable sets of them that agents share."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import structlog

from holdfast.core.protocols import Model, Tool

log = structlog.get_logger(__name__)

KEPT_SETS = 8


class ToolSet:
    """Some tools, in one order, with unique names. Shared by every agent that has the same ones."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.by_name: Mapping[str, Tool] = MappingProxyType({tool.spec.name: tool for tool in tools})
        self.fingerprint = _fingerprint(tools)
        self._encoded: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def __repr__(self) -> str:
        return f"<ToolSet {self.fingerprint[:8]}: {', '.join(self.by_name)}>"

    def encoded(self, model: Model) -> bytes:
        """The JSON for this model's wire, made once."""
        if model.wire not in self._encoded:
            self._encoded[model.wire] = model.encode_tools([tool.spec for tool in self.by_name.values()])
        return self._encoded[model.wire]


class Catalogue:
    """All tools, by name. The first of a name wins; a later one is reported once and left out."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        by_name: dict[str, Tool] = {}
        for tool in tools:
            if (name := tool.spec.name) in by_name:
                log.warning("two tools have one name; the first stays", tool=name, left_out=repr(tool))
            else:
                by_name[name] = tool
        self._tools = tuple(by_name.values())
        self._sets: OrderedDict[frozenset[str] | None, ToolSet] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Catalogue: {len(self._tools)} tools, {len(self._sets)}/{KEPT_SETS} sets kept>"

    def __iter__(self) -> Iterable[Tool]:
        return iter(self._tools)

    @property
    def toolsets(self) -> list[str]:
        return sorted({tool.toolset for tool in self._tools})

    def choose(self, toolsets: Iterable[str] = ()) -> ToolSet:
        """The set of the named toolsets' tools; of all tools when none is named."""
        wanted = frozenset(toolsets) or None
        if wanted not in self._sets:
            self._sets[wanted] = ToolSet([t for t in self._tools if wanted is None or t.toolset in wanted])
            if len(self._sets) > KEPT_SETS:
                self._sets.popitem(last=False)
        return self._sets[wanted]


def _fingerprint(tools: Sequence[Tool]) -> str:
    digest = hashlib.sha256()
    for tool in tools:
        for part in (tool.spec.name.encode(), tool.spec.description.encode(), bytes(tool.spec.parameters)):
            digest.update(len(part).to_bytes(4, "big") + part)
    return digest.hexdigest()
