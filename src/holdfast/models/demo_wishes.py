"""How the demo model understands which tools it is asked to use."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.messages import ToolCall
from holdfast.core.protocols import ToolSpec

_POLITE = re.compile(
    r"^(?:(?:please|now|then|and|also|can you|could you|would you|kindly|i want you to|let's|go and)\s+)+", re.I
)
# Beginning only where no space or comma stands before: or a long run of spaces would be tried from each of them.
_JOINTS = re.compile(r"((?<!\s)\s*;\s+|(?<![\s,]),?\s+(?:and\s+then|then|and)\s+)", re.I)
_BY_NAME = re.compile(
    r"^(?:use|call|run|invoke|try)\s+(?:the\s+)?(?:tool\s+)?(\w[\w.-]*)(?:\s+tool)?(?:\s+(.*))?$", re.I | re.S
)
_FILLERS = re.compile(
    r"^(?:(?:with|using|me|the|all|of|in|from|at|on|for|to|into|file|files|folder|directory|command|called|named|"
    r"path|contents?)\b\s*)+",
    re.I,
)

_LONGEST_WISH = 4000
_MOST_JOINTS = 20

_OTHER_WORDS = {
    "run": ("run", "terminal", "shell", "execute", "exec", "bash", "command"),
    "execute": ("run", "terminal", "shell", "execute", "exec", "bash", "command"),
    "show": ("read", "show", "list"),
    "cat": ("read",),
    "open": ("read", "open", "browse", "browser", "fetch"),
    "ls": ("list",),
    "find": ("find", "search"),
    "look": ("search", "find", "list"),
    "remember": ("remember", "memory"),
}
"""What people say for the words in tools' names."""


_COMMANDS = ("command", "cmd", "script", "code")
_PLACES = ("path", "file", "filename", "folder", "directory", "url")
"""Arguments that are one word, unless quoted."""


class _Property(msgspec.Struct):
    type: str | list[str] = "string"


class _Schema(msgspec.Struct):
    properties: dict[str, _Property] = {}
    required: list[str] = []


def wished_calls(text: str, tools: Sequence[ToolSpec], *, number: int) -> tuple[ToolCall, ...]:
    """The tool calls that a sentence asks for; "and" joins several. `number` makes their ids new."""
    if len(text) > _LONGEST_WISH:
        return ()
    pieces = _JOINTS.split(text.strip(), maxsplit=_MOST_JOINTS)
    clauses = [pieces[0]]
    for joint, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if _wish(piece, tools) and _wish(clauses[-1], tools):
            clauses.append(piece)
        else:
            clauses[-1] += joint + piece  # the joint was part of an argument
    wishes = [_wish(clause, tools) for clause in clauses]
    return tuple(
        ToolCall(f"demo{number:05d}{index:02d}", name, arguments)
        for index, (name, arguments) in enumerate(wish for wish in wishes if wish)
    )


def _wish(clause: str, tools: Sequence[ToolSpec]) -> tuple[str, str] | None:
    """A tool's name and its arguments, or None."""
    clause = _POLITE.sub("", clause.strip())
    by_name = {tool.name: tool for tool in tools}
    if (named := _BY_NAME.match(clause)) and named[1] in by_name:
        return named[1], _arguments(by_name[named[1]], named[2] or "")
    first, _, rest = clause.partition(" ")
    if first in by_name:
        return first, _arguments(by_name[first], rest)
    return _by_words(clause, tools)


def _by_words(clause: str, tools: Sequence[ToolSpec]) -> tuple[str, str] | None:
    """The tool whose name's words the clause begins with, and which gets what it needs; more words beat fewer."""
    candidates = [
        (said[0], tool, _arguments(tool, said[1]))
        for tool in tools
        if (said := _words_said(clause, re.split(r"[_\W]+", tool.name.lower())))
    ]
    for _, tool, arguments in sorted(candidates, key=lambda candidate: -candidate[0]):
        if arguments != "{}" or not _schema(tool).required:
            return tool.name, arguments
    return None


def _words_said(clause: str, name: list[str]) -> tuple[int, str] | None:
    """How many words of a tool's name begin the clause, and what follows them."""
    first, _, rest = clause.partition(" ")
    meant = _OTHER_WORDS.get(first.lower(), (first.lower(),))
    if not any(word in name[:1] or (first.lower() in _OTHER_WORDS and word in name) for word in meant):
        return None
    count = 2 if first.lower() == name[0] else 1
    for word in name[1:]:
        following, _, beyond = rest.strip().partition(" ")
        if following.lower().rstrip("s") != word.rstrip("s"):
            break
        count, rest = count + 1, beyond
    return count, rest


def _arguments(tool: ToolSpec, text: str) -> str:
    """Arguments out of words: JSON as it is, name=value pairs, or the one thing that is needed most."""
    text = re.sub(r"^with\s+(?=\{)", "", text.strip(), flags=re.I)
    if text.startswith("{"):
        return text  # even when it is broken: what comes of that is worth seeing too
    schema = _schema(tool)
    found: dict[str, Any] = {}
    words = []
    for word in re.findall(r"""\w+=(?:"[^"]*"|'[^']*'|\S+)|\S+""", text):
        name, sign, value = word.partition("=")
        if sign and name in schema.properties:
            found[name] = _typed(schema.properties[name], value.strip("\"'"))
        else:
            words.append(word)
    main = next(iter(schema.required or schema.properties), None)
    if words and main and main not in found:
        rest = text if not found else " ".join(words)
        if rest := _bare(rest, main):
            found[main] = _typed(schema.properties.get(main, _Property()), rest)
    return msgspec.json.encode(found).decode()


def _bare(text: str, argument: str) -> str:
    """What is meant, without the words around it; a command is taken as it stands."""
    text = text.strip()
    if argument in _COMMANDS:
        return text.strip("`")
    if " " in text or _FILLERS.fullmatch(text):
        text = _FILLERS.sub("", text)
    if quoted := re.match(r"""(["'`])(.+?)\1""", text):
        return quoted[2]
    if argument in _PLACES:
        text = text.partition(" ")[0]
    return re.sub(r"(?<=[\w\"'`])[.,?!]+$", "", text)


def _typed(declared: _Property, value: str) -> Any:
    kinds = declared.type if isinstance(declared.type, list) else [declared.type]
    if "string" in kinds:
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value.split() if "array" in kinds else value


def _schema(tool: ToolSpec) -> _Schema:
    try:
        return msgspec.json.decode(tool.parameters, type=_Schema)
    except msgspec.MsgspecError:  # a schema of another shape; its tool can still be called with JSON
        return _Schema()
