"""The data folder: one owner at a time, and a token for its owner's eyes."""

from pathlib import Path

import pytest

from holdfast.core.errors import AlreadyRunning, SettingsError
from holdfast.core.ledger import Ledger
from holdfast.storage.folder import keep_token, open_folder


def test_a_token_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = keep_token(path)
    assert len(token) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert keep_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_token_file_that_a_crash_left_empty_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch()
    assert keep_token(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.symlink_to(path.parent / "nowhere" / "token"),
        lambda path: path.write_text("two words"),
    ],
)
def test_a_token_file_that_can_not_be_used_is_one_line(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "token"
    spoil(path)  # type: ignore[operator]
    with pytest.raises(SettingsError, match="remove"):
        keep_token(path)


def test_a_folder_has_one_owner_who_says_where_it_answers(tmp_path: Path) -> None:
    data, ledger = tmp_path / "data", Ledger()
    with open_folder(data, data / "lock", ledger) as announce:
        announce("http://127.0.0.1:1")
        assert data.stat().st_mode & 0o777 == 0o700
        with pytest.raises(AlreadyRunning, match=r"http://127\.0\.0\.1:1"), open_folder(data, data / "lock", ledger):
            pass
    with open_folder(data, data / "lock", ledger):
        assert [entry.kind for entry in ledger] == ["lock"]
