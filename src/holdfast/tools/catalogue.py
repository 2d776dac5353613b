"""The tools that are there, and the immutable sets of them that agents share.

A conversation's tools are chosen once, at its start: `choose`. From then on `named` gives the same ones, so
that what its model is sent never changes, whatever comes, goes or fails meanwhile.
"""

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import structlog

from holdfast.core.protocols import Model, Tool, ToolSpec

log = structlog.get_logger(__name__)

KEPT_SETS = 8

Kind: TypeAlias = Literal["built-in", "plug-in", "module", "memory", "context engine", "MCP"]
SOURCES: tuple[Kind, ...] = get_args(Kind)
"""Where tools come from, in the order in which names are given away: the first that wants one has it."""

_VALID_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what all providers accept


class Source(msgspec.Struct, frozen=True):
    """Tools of one origin."""

    kind: Kind
    tools: tuple[Tool, ...]
    name: str = ""
    """Which one of its kind: a package, a module, a server."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class ToolSet(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Some tools, in one order, with unique names. Shared by every agent that has the same ones."""

    names: tuple[str, ...]
    by_name: Mapping[str, Tool]
    fingerprint: str
    """Of all that a model is told about them."""
    _specs: tuple[ToolSpec, ...]
    _encoded: dict[str, bytes] = msgspec.field(default_factory=dict)
    """By wire."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<ToolSet {self.fingerprint[:8]}: {', '.join(self.names)}>"

    def encoded(self, model: Model) -> bytes:
        """The JSON for this model's wire, made once."""
        if model.wire not in self._encoded:
            self._encoded[model.wire] = model.encode_tools(self._specs)
        return self._encoded[model.wire]


class _Entry(msgspec.Struct, frozen=True, eq=False):
    """A tool as it was when it came in: what its object says later of itself changes nothing."""

    spec: ToolSpec
    toolset: str
    source: str
    tool: Tool


class Catalogue:
    """All tools, by name. It never changes: tools that come later make a new one, which keeps all that was there.

    The first of a name wins; a later one is reported once and left out.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Of built-in tools; see `of` for all others."""
        self._reports = _Reports()
        self._sets: dict[tuple[_Entry, ...], ToolSet] = {}
        self._entries: Mapping[str, _Entry] = self._with(Source("built-in", tuple(tools)), {})

    @classmethod
    def of(cls, sources: Iterable[Source]) -> "Catalogue":
        """The tools of all these, in the order of `SOURCES`; within a kind, in the order given."""
        catalogue = cls()
        for source in sorted(sources, key=lambda source: SOURCES.index(source.kind)):
            catalogue = catalogue.joined(source)
        return catalogue

    def __repr__(self) -> str:
        return f"<Catalogue: {len(self._entries)} tools, {len(self._sets)}/{KEPT_SETS} sets kept>"

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Tool]:
        return (entry.tool for entry in self._entries.values())

    @property
    def toolsets(self) -> list[str]:
        return sorted({entry.toolset for entry in self._entries.values()})

    def joined(self, source: Source) -> "Catalogue":
        """A catalogue with these tools too, behind those that are there: nobody loses a tool to a newcomer."""
        later = copy.copy(self)  # shares the sets, and the memory of what was reported
        later._entries = self._with(source, self._entries)
        return later

    def choose(self, toolsets: Iterable[str] = ()) -> ToolSet:
        """For a new conversation: the tools of the named toolsets, of all when none is named, that can work now."""
        wanted = frozenset(toolsets)
        for unknown in sorted(wanted.difference(self.toolsets)):
            known = f"there are: {', '.join(self.toolsets) or 'none'}"
            self._reports.once("no tool belongs to a toolset that was asked for", toolset=unknown, cause=known)
        return self._set(
            entry
            for entry in self._entries.values()
            if (not wanted or entry.toolset in wanted) and self._is_available(entry)
        )

    def named(self, names: Iterable[str]) -> ToolSet:
        """For a conversation that has chosen: exactly these tools in this order, whether they can work now or not.

        A name that is not there any more is left out.
        """
        return self._set(entry for name in dict.fromkeys(names) if (entry := self._find(name)))

    def _with(self, source: Source, entries: Mapping[str, _Entry]) -> Mapping[str, _Entry]:
        """The entries and, behind them, those of the source."""
        by_name = dict(entries)
        for tool in source.tools:
            spec = _frozen(tool.spec)
            if wrong := _whats_wrong(spec):
                self._reports.once(f"a tool is left out: {wrong}", tool=spec.name, left_out=str(source))
            elif (known := by_name.get(spec.name)) is None:
                by_name[spec.name] = _Entry(spec, tool.toolset, str(source), tool)
            elif known.tool is not tool:
                self._reports.once(
                    "two tools have one name; the first stays",
                    tool=spec.name,
                    stays=known.source,
                    left_out=str(source),
                )
        return MappingProxyType(by_name)

    def _find(self, name: str) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is None:
            self._reports.once("a tool that a conversation began with is gone; it goes on without", tool=name)
        return entry

    def _is_available(self, entry: _Entry) -> bool:
        try:
            return entry.tool.available()
        except Exception as error:  # noqa: BLE001 - the edge of a tool's own code; the other tools go on
            event = "a tool can't say whether it is available; it counts as not"
            self._reports.once(event, tool=entry.spec.name, source=entry.source, cause=repr(error))
            return False

    def _set(self, entries: Iterable[_Entry]) -> ToolSet:
        key = tuple(entries)
        if key not in self._sets:
            self._sets[key] = _tool_set(key)
            if len(self._sets) > KEPT_SETS:
                del self._sets[next(iter(self._sets))]
        return self._sets[key]


class _Reports:
    """Tells the operator each thing once, however often catalogues and sets are built anew."""

    def __init__(self) -> None:
        self._made: set[tuple[str, ...]] = set()

    def once(self, event: str, *, cause: str = "", **what: str) -> None:
        report = (event, *what.values())  # without the cause, which may read differently every time
        if report not in self._made:
            self._made.add(report)
            log.warning(event, **what, **({"cause": cause} if cause else {}))


def _tool_set(entries: Sequence[_Entry]) -> ToolSet:
    specs = tuple(entry.spec for entry in entries)
    by_name = MappingProxyType({entry.spec.name: entry.tool for entry in entries})
    return ToolSet(tuple(by_name), by_name, _fingerprint(specs), specs)


def _frozen(spec: ToolSpec) -> ToolSpec:
    """A copy that can be sent, and that nobody can change: a `Raw` may look into a buffer of its maker's."""
    description = spec.description.encode("utf-8", "replace").decode()
    return ToolSpec(spec.name, description, msgspec.Raw(bytes(spec.parameters)))


def _whats_wrong(spec: ToolSpec) -> str:
    """Why a provider would reject every request with this tool in it."""
    if not _VALID_NAME.fullmatch(spec.name):
        return "its name has to be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -"
    try:
        msgspec.json.decode(spec.parameters, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "its parameters have to be a JSON object"
    return ""


def _fingerprint(specs: Iterable[ToolSpec]) -> str:
    digest = hashlib.sha256()
    for spec in specs:
        for part in (spec.name.encode(), spec.description.encode(), bytes(spec.parameters)):
            digest.update(len(part).to_bytes(4, "big") + part)
    return digest.hexdigest()
