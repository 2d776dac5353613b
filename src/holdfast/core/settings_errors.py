"""The words for settings that are not there and for a file that is no TOML."""

import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.setting import PREFIX, Setting, nearest
from holdfast.core.toml import written, written_key

# What tomllib says, as a pattern, and what we say; {} stands for the names that it mentions.
_SYNTAX = (
    (r"Invalid value", "a value is missing here, or it is text without quotes around it"),
    (r"Invalid statement", "this is neither a [section] nor a name = value"),
    (r"Expected newline or end of document.*", "the line should end here; does the value need quotes?"),
    (r"(?:Illegal|Found invalid) character '\\n'", "a quote is not closed on this line"),
    (r"Unterminated string|Expected [\"']+", "a quote is not closed"),
    (r"Cannot overwrite a value", "this name is given twice"),
    (r"Duplicate inline table key .*", '"{}" is given twice'),
    (r"Cannot (?:declare|redefine namespace|mutate immutable namespace) .*", "[{}] is given twice"),
)


def syntax_error(error: str, text: str, file: str) -> str:
    """Where the text stops being TOML, and why. `error` is tomllib's."""
    reason, at, where = error.rpartition(" (at ")
    if not at:
        return f"{file}: a number has too many digits"  # the one error for which tomllib has no words of its own
    line, column = text.rstrip().count("\n") + 1, len(text.rstrip().rpartition("\n")[2]) + 1
    if numbers := re.findall(r"\d+", where):
        line, column = map(int, numbers)
    said = f"{reason[0].lower()}{reason[1:]}"
    for pattern, ours in _SYNTAX:
        if re.fullmatch(pattern, reason):
            said = ours.format(".".join(re.findall(r"'([^']*)'", reason)))
    return f"{file}:{line}:{column}: {said}"


def unknown_name(path: Sequence[str], is_table: bool, settings: Iterable[Setting]) -> str:
    """What to say of a name in the file that means nothing where it stands."""
    *parents, name = path
    section = ".".join(parents)
    own = [setting.name for setting in settings if setting.section == section]
    places = {setting.name: f"[{setting.section}] {setting.name}" for setting in reversed(list(settings))}
    sections = {part: f"[{setting.section}]" for setting in settings for part in setting.section.split(".")}
    if own:
        wrong = f"[{section}] has no setting {written(name)}"
        if name in places:
            return f"{wrong}; did you mean {places[name]}?"
        meant = nearest(name, own)
        return f"{wrong}; did you mean {written(meant)}?" if meant else f"{wrong}; it has {', '.join(own)}"
    known, wrong = places, f"{written(name)} stands outside of the sections"
    if is_table:
        known, wrong = sections, f"there is no section [{'.'.join(map(written_key, path))}]"
    meant = nearest(name, known)
    there = ", ".join(dict.fromkeys(sections.values()))
    return f"{wrong}; did you mean {known[meant]}?" if meant else f"{wrong}; there are {there}"


def unknown_variable(environ: Mapping[str, str], settings: Iterable[Setting]) -> str:
    """What to say of the first variable that looks like a setting and is none; nothing if there is no such."""
    known = [setting.variable.removeprefix(PREFIX) for setting in settings]
    for name in environ:
        ending = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and "__" in ending and ending not in known:
            shown = name if name.isprintable() else written(name)
            if meant := nearest(ending, known):
                return f"{shown}: there is no such setting; did you mean {PREFIX}{meant}?"
            return f"{shown}: there is no such setting; they are named like HOLDFAST_SERVER__PORT"
    return ""
