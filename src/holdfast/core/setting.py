"""One setting: what it may hold, how it is read from a file or a variable, and what to say when it is wrong."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from holdfast.core.errors import SettingsError
from holdfast.core.toml import written

PREFIX = "HOLDFAST_"

Kind: TypeAlias = Literal["text", "number", "seconds", "bytes", "choice", "list", "secret"]

# How a setting's type says more than Python's types can: `extra` holds its kind or, for a pattern, the words for it.
Seconds = Annotated[float, msgspec.Meta(le=1e10, extra={"kind": "seconds"})]
Bytes = Annotated[int, msgspec.Meta(le=2**62, extra={"kind": "bytes"})]

_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
_BYTES = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_OTHER_SPELLINGS = {
    "seconds": {"sec": 1, "second": 1, "seconds": 1, "m": 60, "minute": 60, "minutes": 60}
    | {"hour": 3600, "hours": 3600, "day": 86400, "days": 86400},
    "bytes": {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_UNITS = {"seconds": _SECONDS, "bytes": _BYTES}
_QUANTITY = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)
_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,20}\s*", re.ASCII)
_LONGEST_SHOWN = 28


# A dataclass without fields: whatever encodes or prints an object field by field finds nothing to show.
@dataclass(init=False, repr=False, eq=False)
class Secret:
    """A string that never shows itself; `reveal()` is the only way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return "…" if self._value else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


class Refused(SettingsError):
    """A value was found that is not allowed. `item` is the number of the list's item that is wrong."""

    def __init__(self, message: str, item: int | None = None) -> None:
        super().__init__(message)
        self.item = item


class Setting(msgspec.Struct, frozen=True):
    """One setting as it is declared; checks, messages, the written file and the reference all come from here."""

    section: str
    name: str
    kind: Kind
    type: Any
    default: Any
    description: str
    allowed: str
    """What it must be, in words that follow "it must be"."""

    @property
    def key(self) -> tuple[str, ...]:
        return (*self.section.split("."), self.name)

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + "__".join(self.key).upper()

    def parse(self, text: str) -> Any:
        """The value of a variable's text, or of what was typed. Raises `Refused`."""
        raw: object = text
        if self.kind == "number" and _WHOLE_NUMBER.fullmatch(text):
            raw = int(text)
        elif self.kind == "list":
            raw = _listed(text)
        return self.check(raw)

    def check(self, raw: object) -> Any:
        """The value of what the file holds. Raises `Refused`."""
        if self.kind == "list" and isinstance(raw, list):
            item_type = get_args(get_args(self.type)[0])[0]
            return tuple(self._converted(item, item_type, number) for number, item in enumerate(raw))
        if self.kind == "secret":
            return self._secret(raw)
        return self._converted(raw, self.type)

    def shown(self, value: Any) -> str:
        """The value as a person would write it in the file, but for a secret."""
        if self.kind == "secret":
            return written(str(value))
        if self.kind in ("seconds", "bytes"):
            return _spelled(value, _UNITS[self.kind])
        return written(value)

    def _converted(self, raw: object, wanted: Any, item: int | None = None) -> Any:
        plain = raw
        if isinstance(raw, str) and self.kind in ("seconds", "bytes"):
            plain = _amount(raw, self.kind)
        elif item is not None and type(raw) is int:
            plain = str(raw)  # people write the numbers of users without quotes
        one_line = not isinstance(plain, str) or plain.isprintable()
        if one_line:
            try:
                return msgspec.convert(plain, wanted)
            except msgspec.ValidationError:
                pass  # told in our own words below
        found = _found(raw) if item is None else f"{_found(raw)} in the list"
        meant = nearest(raw, _choices(self.type)) if self.kind == "choice" and isinstance(raw, str) else None
        hint = f"; did you mean {written(meant)}?" if meant else ""
        raise Refused(f"found {found}, but it must be {self.allowed}{hint}", item)

    def _secret(self, raw: object) -> Secret:
        if not isinstance(raw, str):
            raise Refused(f"found {_kind_of(raw)}, but it must be {self.allowed}")
        # It travels in HTTP headers and is compared in constant time; neither takes anything else.
        if not (raw.isascii() and raw.isprintable()):
            raise Refused("it must be one line of ASCII characters")
        return Secret(raw.strip())


def declared(section: str, field: msgspec.structs.FieldInfo) -> Setting:
    """The setting that a struct's field declares."""
    base, *metas = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    stated: dict[str, Any] = {}
    for meta in metas:
        facts = {name: getattr(meta, name) for name in ("description", "ge", "gt", "le")}
        stated |= {name: fact for name, fact in facts.items() if fact is not None} | (meta.extra or {})
    kind = stated.get("kind") or _kind(base)
    return Setting(
        section, field.name, kind, field.type, field.default, stated["description"], _allowed(kind, base, stated)
    )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of the names that was probably meant."""
    import difflib  # costs milliseconds, and only a mistake needs it

    spelled = {known.lower(): known for known in names}
    matches = difflib.get_close_matches(name.lower(), spelled, n=1)
    return spelled[matches[0]] if matches else None


def _kind(base: Any) -> Kind:
    if get_origin(base) is Literal:
        return "choice"
    if get_origin(base) is tuple:
        return "list"
    return "secret" if base is Secret else "number" if base is int else "text"


def _choices(annotated: Any) -> tuple[str, ...]:
    return get_args(get_args(annotated)[0])


def _allowed(kind: Kind, base: Any, stated: dict[str, Any]) -> str:
    if "allowed" in stated:
        return str(stated["allowed"])
    lowest, highest = stated.get("ge", 0), stated.get("le")
    more = ", more than 0" if "gt" in stated else ""
    if kind in _UNITS and lowest > 0:
        more = f", at least {_spelled(lowest, _UNITS[kind])}"
    match kind:
        case "secret":
            return 'text, { env = "NAME" } or { file = "path" }'
        case "seconds":
            return f'a time such as 90 (seconds), "30 min" or "1 h"{more}'
        case "bytes":
            return f'a size such as 1048576 (bytes) or "512 MiB"{more}'
        case "number":
            return f"a whole number from {lowest} " + (f"to {highest}" if highest is not None else "upwards")
        case "choice":
            return "one of " + ", ".join(map(written, get_args(base)))
        case "list":
            return "a list of texts"
    return "a line of text"


def _listed(text: str) -> object:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text  # which is no list, and is refused as that


def _amount(text: str, kind: str) -> float | int | str:
    """The number that a quantity means, or the text itself when it is none."""
    spellings = {name.lower(): size for name, size in (_UNITS[kind] | _OTHER_SPELLINGS[kind]).items()}
    match = _QUANTITY.fullmatch(text)
    if not match or (match[2] and match[2].lower() not in spellings):
        return text
    number = float(match[1]) if "." in match[1] else int(match[1])
    amount = number * (spellings[match[2].lower()] if match[2] else 1)
    return amount if kind == "seconds" else int(amount)


def _spelled(value: float, units: dict[str, int]) -> str:
    """In the largest unit that leaves no rest; without a unit where that is the smallest."""
    for unit, size in units.items():
        if size > 1 and value and value % size == 0:
            return written(f"{int(value // size)} {unit}")
    return written(int(value) if value == int(value) else value)


def _found(raw: object) -> str:
    if isinstance(raw, str):
        return written(raw if len(raw) <= _LONGEST_SHOWN else raw[: _LONGEST_SHOWN - 1] + "…")
    if isinstance(raw, bool | float) or (isinstance(raw, int) and abs(raw) < 10**20):
        return written(raw)
    return _kind_of(raw)


def _kind_of(raw: object) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(raw), "a date or time")
