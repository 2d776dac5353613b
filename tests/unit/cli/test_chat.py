"""What `holdfast chat` makes of its options and of standard input."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from holdfast.cli import run
from holdfast.cli.chat import _question

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "terminal-chat.md"


@pytest.mark.parametrize(
    ("message", "piped", "question"),
    [
        ("Ask.", "", "Ask."),
        ("Ask.", "\n\n", "Ask."),
        ("Ask.", "  indented\nlines\n", "Ask.\n\n  indented\nlines"),
        ("-", "From a file.\n", "From a file."),
        (None, "From a pipe.\n", "From a pipe."),
        (" Ask. ", "", "Ask."),
    ],
)
def test_the_question_is_the_message_and_what_is_piped_in(message: str | None, piped: str, question: str) -> None:
    assert _question(message, piped) == question


@pytest.mark.parametrize(("message", "piped"), [("", ""), ("-", " \n"), (None, "")])
def test_there_must_be_a_question(message: str | None, piped: str) -> None:
    with pytest.raises(typer.BadParameter):
        _question(message, piped)


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "there is no terminal to talk on, use -m"), (["--json"], "it needs a message, see -m")]
)
def test_a_chat_needs_a_terminal_on_both_sides(arguments: list[str], said: str) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "chat", *arguments],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(r"holdfast: .+\n", done.stderr)
    assert said in done.stderr


def test_every_option_is_on_the_page_about_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    run(["chat", "--help"])
    options = set(re.findall(r"^  (?:-\w, )?(--\w+)", capsys.readouterr().out, re.MULTILINE)) - {"--help", "--message"}
    page = PAGE.read_text()
    assert options
    assert [option for option in options if option not in page] == []
