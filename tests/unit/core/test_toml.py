"""The locator against tomllib itself: the same keys, and each on the line where it was put."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.toml import KeyPath, key_lines, written


def paths_of(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every way into what tomllib made of a text."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*path, name)
        yield from paths_of(member, (*path, name))


CASES: dict[str, tuple[str, dict[KeyPath, int]]] = {
    "plain": ("a = 1\n\n# c = 3\nb = 2", {("a",): 1, ("b",): 4}),
    "sections": ("[server]\n\nport = 1 # port = 2\n[log]\nlevel = 'x'", {("server", "port"): 3, ("log", "level"): 5}),
    "no newline at the end": ("[server]\nport = 1", {("server", "port"): 2}),
    "carriage returns": ("[server]\r\n\r\nport = 1\r\n", {("server", "port"): 3}),
    "dotted keys": (
        "x = 1\nserver.port = 1\nserver . host = 'h'",
        {("server",): 2, ("server", "port"): 2, ("server", "host"): 3},
    ),
    "dotted sections": (
        "[channels]\n[channels . telegram]\ntoken = ''",
        {("channels",): 1, ("channels", "telegram"): 2, ("channels", "telegram", "token"): 3},
    ),
    "a section mentioned by its child first": ("\n[a.b]\nc = 1\n[a]\nd = 1", {("a",): 2, ("a", "b"): 2, ("a", "d"): 5}),
    "quoted keys": (
        '"a b" = 1\n\'c.d\' = 2\n"e\\"\\u0041" = 3\n["x ] # y".\'z\']\n"" = 4',
        {("a b",): 1, ("c.d",): 2, ('e"A',): 3, ("x ] # y", "z"): 4, ("x ] # y", "z", ""): 5},
    ),
    "inline tables": (
        "a = { b = 1, c.d = { e = '}' }, f = [1, 2] }\ng = {}\nh = 1",
        {("a", "b"): 1, ("a", "c", "d", "e"): 1, ("a", "f", 1): 1, ("g",): 2, ("h",): 3},
    ),
    "lists over several lines": (
        "[t]\nallow = [\n  1, # ] not here\n\n  '@bob', 2,\n  [3,\n   4],\n]\nnext = 1",
        {
            ("t", "allow"): 2,
            ("t", "allow", 0): 3,
            ("t", "allow", 1): 5,
            ("t", "allow", 2): 5,
            ("t", "allow", 3, 0): 6,
            ("t", "allow", 3, 1): 7,
            ("t", "next"): 9,
        },
    ),
    "strings over several lines": (
        'a = """\nx = 1\n[y]\n\\""" z = 2\n""\n"""""\nb = \'\'\'\nc = 1\n\'\'\'\'\nd = """"""\ne = """\\\\"""\nf = 1',
        {("a",): 1, ("b",): 7, ("d",): 10, ("e",): 11, ("f",): 12},
    ),
    "strings that look like something else": (
        "a = '# [x]'\nb = \"\\\" = 1 \\\\\"\nc = ''\nd = [\"]\", '}']\ne = 1",
        {("a",): 1, ("b",): 2, ("c",): 3, ("d", 1): 4, ("e",): 5},
    ),
    "numbers and dates": (
        "a = -1_000\nb = 1e-3\nc = 1979-05-27 07:32:00Z\nd = 07:32:00\ne = +inf\nf = true # g",
        {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4, ("e",): 5, ("f",): 6},
    ),
    "lists of tables": (
        "[[a]]\nx = 1\n[[a]]\nx = 2\n[a.b]\ny = 1\n[[a.c]]\n[[a.c]]\nz = 1",
        {("a",): 1, ("a", 0, "x"): 2, ("a", 1): 3, ("a", 1, "x"): 4, ("a", 1, "b", "y"): 6, ("a", 1, "c", 1, "z"): 9},
    ),
    "empty": ("", {}),
    "nothing but a comment": ("# a = 1", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_key_is_found_on_its_line(case: str) -> None:
    text, expected = CASES[case]
    found = key_lines(text)
    assert {path: found.get(path) for path in expected} == expected
    assert set(found) == set(paths_of(tomllib.loads(text)))


bare_keys = st.text("abcXYZ019_-", min_size=1, max_size=4)
keys = bare_keys | st.text(max_size=4).map(written)
scalars = (
    st.booleans().map(written)
    | st.integers(-(10**9), 10**9).map(str)
    | st.floats().map(repr)
    | st.text(max_size=6).map(written)
    | st.text("ab#=[]{},. \"'", max_size=8).map(written)
    | st.text('ab#=[]{},. "', max_size=8).map(lambda text: f"'{text}'")
    | st.text("a=\n#'[]", max_size=8).map(lambda text: f'"""{text}"""')
    | st.text('a=\n#"[]\\', max_size=8).map(lambda text: f"'''{text}'''")
    | st.sampled_from(["1979-05-27T07:32:00Z", "1979-05-27 07:32:00", "07:32:00.5", "0xff", "1_0.5e+3"])
)
gaps = st.sampled_from(["", " ", "\t", "\n", "# [x] = 'y\n", " \n\n "])
values = st.recursive(
    scalars,
    lambda inner: (
        st.tuples(gaps, st.lists(st.tuples(inner, gaps), max_size=3)).map(
            lambda parts: f"[{parts[0]}{','.join(value + gap for value, gap in parts[1])}]"
        )
        | st.dictionaries(keys, inner, max_size=3).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        )
    ),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    """A text of sections with keys, each put on a line that is noted while it is written."""
    text, expected = draw(gaps), {}
    for header in draw(st.lists(keys, max_size=3, unique_by=lambda key: loaded(key))):
        text += draw(gaps) + "\n"
        expected[(loaded(header),)] = text.count("\n") + 1
        text += f"[{draw(st.sampled_from(['', ' ']))}{header} ]\n"
        for key in draw(st.lists(keys, max_size=3, unique_by=lambda key: loaded(key))):
            text += draw(gaps)
            text += "" if text.endswith("\n") else "\n"
            expected[(loaded(header), loaded(key))] = text.count("\n") + 1
            text += f"{key} = {draw(values)} # \" ' [\n"
    return text, expected


def loaded(key: str) -> str:
    return next(iter(tomllib.loads(f"{key} = 1")))


@given(documents())
def test_keys_are_found_on_their_lines_in_any_document(document: tuple[str, dict[KeyPath, int]]) -> None:
    text, expected = document
    found = key_lines(text)
    assert {path: found.get(path) for path in expected} == expected
    assert set(found) == set(paths_of(tomllib.loads(text)))


@given(st.recursive(st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=8))
def test_what_is_written_is_read_back_and_takes_one_line(value: Any) -> None:
    text = written(value)
    assert tomllib.loads(f"value = {text}")["value"] == value
    assert len(text.splitlines()) == 1
