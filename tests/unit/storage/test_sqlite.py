import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.storage.records import characters
from holdfast.storage.sqlite import Durability, connect, match, prepare_to_write


@pytest.fixture(scope="module")
def index() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE words USING fts5 (text, tokenize='unicode61 remove_diacritics 2')")
        db.execute("INSERT INTO words VALUES ('the quick brown fox')")
        yield db


@given(st.text(st.characters()))
@example('"')
@example('a" OR "b')
@example("NEAR(a b, 2)")
@example("text : fox")
@example("^fox -fox +fox")
@example("\0")
@example("fox\0")
@example("🦊")
@example("\ud800x")
def test_whatever_is_typed_is_an_expression(index: sqlite3.Connection, text: str) -> None:
    if expression := match(characters(text)):
        index.execute("SELECT rowid FROM words WHERE words MATCH ?", (expression,)).fetchall()


@pytest.mark.parametrize(
    ("typed", "expression"),
    [
        ("", ""),
        (" \t\n", ""),
        ("?! 🦊 -- **", ""),
        ("fox", '"fox"*'),
        ("  brown   fo ", '"brown" AND "fo"*'),
        ('say "hi"', '"say" AND """hi"""*'),
        ("a - b", '"a" AND "b"*'),
    ],
)
def test_words_are_quoted_and_the_last_is_a_beginning(typed: str, expression: str) -> None:
    assert match(typed) == expression


def test_a_flood_of_words_is_cut_off() -> None:
    assert match("word " * 10_000).count('"word"') == 32


@pytest.mark.parametrize(("durability", "synchronous"), [("normal", 1), ("full", 2)])
def test_the_file_is_opened_as_promised(tmp_path: Path, durability: Durability, synchronous: int) -> None:
    with closing(connect(tmp_path / "x.db", 3.0)) as db:
        prepare_to_write(db, durability)

        def setting(name: str) -> object:
            return db.execute(f"PRAGMA {name}").fetchone()[0]

        assert setting("journal_mode") == "wal"
        assert setting("synchronous") == synchronous
        assert setting("foreign_keys") == 1
        assert setting("busy_timeout") == 3000
        assert setting("mmap_size") == 0, "mapped pages would count as resident memory"
        assert setting("auto_vacuum") == 2, "free pages can be given back step by step"
