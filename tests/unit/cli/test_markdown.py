"""Cutting Markdown where it can be printed for good."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.markdown import MarkdownStream, Piece

DOCUMENT = """\
# Title
A paragraph
on two lines.

1. one
2. two
   more of two

   - nested
3. three

- loose

- items
plain text that goes on

```python
def f():

    return 1
```
Text right after.

- an item with code:

  ```sh
  - not an item

  ls
  ```
- the next

| a | b |
|---|---|
| 1 | 2 |

***
~~~
unfinished"""


def pieces(*chunks: str) -> list[Piece]:
    stream = MarkdownStream()
    done = [piece for chunk in chunks for piece in stream.feed(chunk)]
    return done + stream.finish()


def written(done: list[Piece]) -> str:
    """What one would see: the pieces with their gaps."""
    text = ""
    for piece in done:
        text += "\n" if piece.gap else ""
        text += f"```{piece.language}\n" if piece.opens else ""
        text += piece.text if piece.kind == "code" else f"{piece.text}\n"
        text += "```\n" if piece.closes else ""
    return text


def test_blocks_items_and_code_are_told_apart() -> None:
    done = pieces(DOCUMENT)
    assert [(piece.kind, piece.gap) for piece in done] == [
        ("block", False),
        ("block", True),
        ("item", True),
        ("item", False),
        ("item", False),
        ("item", True),
        ("item", True),
        ("code", True),
        ("block", True),
        ("item", True),
        ("item", False),
        ("block", True),
        ("block", True),
        ("code", True),
    ]
    assert done[3].text == "2. two\n   more of two\n\n   - nested"
    assert done[6].text == "- items\nplain text that goes on"
    assert (done[7].text, done[7].language) == ("def f():\n\n    return 1\n", "python")
    assert done[9].text == "- an item with code:\n\n  ```sh\n  - not an item\n\n  ls\n  ```"
    assert done[13].text == "unfinished\n"


@settings(deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=len(DOCUMENT)), max_size=40))
def test_it_does_not_matter_how_the_text_was_cut_up(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(DOCUMENT)]
    chunks = [DOCUMENT[start:end] for start, end in pairwise(edges)]
    assert written(pieces(*chunks)) == written(pieces(DOCUMENT))


@settings(deadline=None)
@given(st.text(alphabet="ab \n`~-*#1.>|", max_size=200))
def test_no_word_is_lost_and_none_is_said_twice(text: str) -> None:
    done = pieces(*text)
    letters = [letter for letter in text if letter in "ab"]
    shown = "".join(piece.language + piece.text if piece.opens else piece.text for piece in done)
    seen = [letter for letter in shown if letter in "ab"]
    assert len(seen) <= len(letters)
    if "`" not in text and "~" not in text:  # the rest of a fence's own line is not shown
        assert seen == letters


@settings(deadline=None)
@given(st.text(alphabet="ab \n`~-*#1.>|", max_size=200))
def test_what_was_given_and_the_tail_are_everything(text: str) -> None:
    """A tail is how the rest will look: finishing right now gives the same."""
    stream = MarkdownStream()
    given_out = stream.feed(text)
    tail = stream.tail
    rest = stream.finish()
    assert written(given_out + rest) == written(pieces(text))
    if tail and tail.kind != "code" and len(rest) == 1 and rest[0].kind != "code":
        assert (tail.text, tail.gap) == (rest[0].text, rest[0].gap)


def test_code_leaves_line_by_line_with_what_came_before_as_context() -> None:
    stream = MarkdownStream()
    assert stream.feed("```py\nx = '''\n") == [Piece("code", "x = '''\n", False, "py", "", opens=True)]
    assert stream.feed("y\n") == [Piece("code", "y\n", False, "py", "x = '''\n")]
    assert stream.feed("z") == []
    assert stream.tail == Piece("code", "z", False, "py", "x = '''\ny\n")


def test_a_paragraph_waits_for_its_end_and_a_heading_does_not() -> None:
    stream = MarkdownStream()
    assert stream.feed("words and ") == []
    assert stream.tail == Piece("block", "words and", gap=False)
    assert [piece.text for piece in stream.feed("more\n\n# Head\n")] == ["words and more", "# Head"]
    assert stream.tail is None


@pytest.mark.parametrize("text", ["in the year\n1986. Then it was\n", "a\n---\n", "one\ntwo\n"])
def test_some_lines_only_look_as_if_they_began_something(text: str) -> None:
    assert [piece.text for piece in pieces(text)] == [text.rstrip()]


def test_the_cost_of_a_line_of_code_is_bounded() -> None:
    stream = MarkdownStream()
    stream.feed("```\n")
    last = [stream.feed(f"line {number}\n") for number in range(1000)][-1]
    assert last[0].context.count("\n") == 100
