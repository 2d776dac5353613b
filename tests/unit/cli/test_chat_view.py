"""What a person sees of an answer."""

import io

import pytest
from rich.console import Console, RenderableType

from holdfast.cli.chat_view import CUT_SHORT, AnswerView
from holdfast.cli.exchange import Away, Back, Happening, StartsOver
from holdfast.cli.rendering import THEME, last_rows, print_lines
from holdfast.core.events import Answered, Reasoning, Retrying, Started, Text, ToolFinished, ToolStarted


def console(width: int = 60) -> Console:
    return Console(theme=THEME, file=io.StringIO(), width=width, height=40, highlight=False, markup=False, emoji=False)


def printed(lines: list[RenderableType], width: int = 60) -> str:
    screen = console(width)
    print_lines(screen, lines)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def shown(*events: Happening, width: int = 60) -> str:
    """Everything that was printed for good."""
    view = AnswerView(lambda: width)
    return "".join(printed(view.feed(event), width) for event in events)


def ok(text: str, error: str = "") -> Answered:
    return Answered("a", text, "ok", error)


def test_paragraphs_are_printed_when_they_are_finished_and_once() -> None:
    view = AnswerView(lambda: 60)
    assert view.feed(Started("s")) == []
    assert view.feed(Text("One **bo")) == []
    assert printed(view.unfinished) == "One **bo\n"
    assert printed(view.feed(Text("ld**.\n\nTw"))) == "One bold.\n"
    assert printed(view.unfinished) == "\nTw\n"
    assert printed(view.feed(ok("One **bold**.\n\nTwo."))) == "\nTwo.\n"
    assert view.unfinished == []
    assert view.outcome


def test_a_tool_call_is_one_line_whatever_its_arguments() -> None:
    arguments = '{"path": "a/b.txt", "lines": [1, 2], "text": "' + "long " * 50 + '"}'
    lines = shown(
        Text("Let me see."),
        ToolStarted("1", "read_file", arguments),
        ToolStarted("2", "list_files", '{"path": "."}'),
        ToolFinished("2", "list_files", "a\nb"),
        ToolFinished("1", "read_file", "There is\nno such file.", failed=True),
        Text("No."),
        ok("No."),
    ).splitlines()
    assert lines[:4] == ["Let me see.", "", "✓ list_files .", lines[3]]
    assert lines[3].startswith("✗ read_file path=a/b.txt lines=[1, 2] text=long")
    assert len(lines[3]) < 60
    assert lines[4:] == ["", "No."]


def test_running_tools_are_shown_until_they_are_finished() -> None:
    view = AnswerView(lambda: 60)
    view.feed(ToolStarted("1", "wait", '{"seconds": 3}'))
    assert printed(view.unfinished) == "· wait 3\n"
    assert printed(view.feed(ToolFinished("1", "wait", ""))) == "✓ wait 3\n"
    assert view.unfinished == []


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "null"])
def test_arguments_that_are_no_object_are_shown_as_they_are(arguments: str) -> None:
    line = shown(ToolStarted("1", "t", arguments), ToolFinished("1", "t", ""))
    assert line == f"✓ t {arguments}".rstrip() + "\n"


def test_thoughts_are_shown_while_they_last_and_never_printed() -> None:
    view = AnswerView(lambda: 20)
    assert view.feed(Reasoning("I wonder whether\nthis is long")) == []
    assert printed(view.unfinished, 20) == "ether this is long\n"
    assert view.feed(Text("Yes")) == []
    assert printed(view.unfinished, 20) == "Yes\n"


def test_text_before_a_retry_is_dropped_or_said_to_come_again() -> None:
    assert shown(Text("Half"), Retrying("The model is busy.", 2.0), Text("Whole."), ok("Whole.")) == (
        "The model is busy; asking again in 2 s\n\nWhole.\n"
    )


def test_an_answer_that_starts_over_says_so() -> None:
    text = shown(Text("One.\n\nTw"), Away("It is away."), Back(), StartsOver(), Text("New."), ok("New."))
    assert text == (
        "One.\n\nIt is away. Trying again by itself.\nThe gateway is back.\nThe answer starts over.\n\nNew.\n"
    )


@pytest.mark.parametrize(
    ("streamed", "answer", "seen"),
    [
        ("", "All of it.", "All of it.\n"),
        ("All of", "All of it.", "All of it.\n"),
        ("All of it.\n\n\n", "All of it.", "All of it.\n"),
        ("One\n\n\n", "One\n\n(Stopped.)", "One\n\n(Stopped.)\n"),
        ("One", "Other", "The answer starts over.\n\nOther\n"),
        ("", "", ""),
    ],
)
def test_in_the_end_the_answer_is_on_the_screen(streamed: str, answer: str, seen: str) -> None:
    events = [Text(streamed)] if streamed else []
    assert shown(*events, ok(answer)) == seen


def test_a_failure_is_one_sentence_after_what_was_said() -> None:
    assert shown(Text("I be"), Answered("a", "It failed.", "failed", "x")) == "I be\n\nIt failed.\n"


def test_an_answer_that_was_cut_short_says_so() -> None:
    assert shown(Text("Half a"), ok("Half a", "length"), width=80) == f"Half a\n\n{CUT_SHORT}\n"


def test_code_is_printed_line_by_line_as_it_is_and_never_wrapped() -> None:
    code = "x = 1\n\n\tif a:  # " + "long " * 20 + "\n"
    text = shown(*(Text(character) for character in f"```py\n{code}```\n"), ok(f"```py\n{code}```\n"), width=40)
    assert text.replace("\t", "    ").split("\n") == ["```py", *code.replace("\t", "    ").split("\n")[:-1], "```", ""]


def test_every_kind_of_markdown_fits_the_width() -> None:
    markdown = (
        "# A heading that is rather long for this width\n\n- an item that is long, too, and has `code`\n"
        "  1. nested and just as long as the others\n\n> quoted words that go on and on\n\n"
        "| name | value |\n|---|---|\n| a long cell of text | another long cell |\n\n<b>html</b> stays\n"
    )
    for width in (80, 40, 20):
        text = shown(ok(markdown), width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "\n\n\n" not in text
        assert "<b>html</b>" in text
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_what_could_play_tricks_on_a_terminal_is_taken_out_everywhere() -> None:
    evil = "\x1b]0;x\x07\x1b[2J\x9b2J\u202eabc\x7f\r"
    events: list[Happening] = [
        Text(f"{evil}\n\n```\n{evil}\n```\n"),
        ToolStarted("1", evil, f'{{"a": "{evil}"}}'),
        ToolFinished("1", evil, evil, failed=True),
        Answered("a", evil, "failed"),
    ]
    text = shown(*events)
    assert not set(text) & set("\x1b\x07\x9b\u202e\x7f\r")
    assert text.count("abc") >= 4


def test_of_a_long_tail_the_end_is_shown() -> None:
    view = AnswerView(lambda: 60)
    view.feed(Text("\n".join(f"row {number}  " for number in range(100))))
    rows = last_rows(console(), view.unfinished).splitlines()
    assert rows[-1] == "row 99"
    assert len(rows) == 20
