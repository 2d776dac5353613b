"""What was typed, kept for the next chat."""

from pathlib import Path

from prompt_toolkit.history import InMemoryHistory

from holdfast.cli import terminal
from holdfast.cli.terminal import open_history


def test_what_was_typed_is_there_the_next_time_and_only_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "data" / "chat_history"
    open_history(file).store_string("one\ntwo")
    open_history(file).store_string("three")
    assert list(open_history(file).load_history_strings()) == ["three", "one\ntwo"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_history_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    file = tmp_path / "chat_history"
    file.touch(mode=0o644)
    open_history(file)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_long_history_loses_its_older_half(tmp_path: Path) -> None:
    file = tmp_path / "chat_history"
    history = open_history(file)
    size = terminal._HISTORY_SIZE // 100
    for number in range(120):
        history.store_string(f"{number} " + "x" * size)
    kept = list(open_history(file).load_history_strings())
    assert file.stat().st_size < terminal._HISTORY_SIZE
    assert [entry.split()[0] for entry in kept] == [str(number) for number in range(119, 119 - len(kept), -1)]
    assert 50 < len(kept) < 70
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_where_nothing_can_be_kept_the_chat_works_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(open_history(tmp_path / "file" / "chat_history"), InMemoryHistory)
