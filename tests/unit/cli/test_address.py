"""Finding the gateway, and giving its token to nobody else."""

import os
from pathlib import Path

import pytest

from holdfast.cli.address import find_address
from holdfast.core.errors import SettingsError
from holdfast.core.ledger import Ledger
from holdfast.core.settings import Places, Secret, ServerSettings, Settings
from holdfast.storage.folder import open_folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "token").write_text("own\n")
    return Places(tmp_path, tmp_path / "holdfast.toml", tmp_path)


def settings(**server: object) -> Settings:
    return Settings(server=ServerSettings(**server))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8420"),
        ("0.0.0.0", "http://127.0.0.1:8420"),
        ("::", "http://[::1]:8420"),
        ("example.org", "http://example.org:8420"),
    ],
)
def test_the_address_comes_from_the_settings(places: Places, host: str, url: str) -> None:
    assert find_address(settings(host=host), places).base_url == url


def test_the_token_comes_from_the_settings_else_from_its_file_else_is_not_there(places: Places) -> None:
    assert find_address(settings(token=Secret("set")), places).token == Secret("set")
    assert find_address(settings(), places).token == Secret("own")
    assert find_address(settings(), places).link == "http://127.0.0.1:8420/#token=own"
    places.token.unlink()
    assert not find_address(settings(), places).token


def test_a_token_that_was_given_is_used(places: Places) -> None:
    assert find_address(settings(), places, token="given").token == Secret("given")


def test_a_token_file_that_can_t_be_read_is_said(places: Places) -> None:
    places.token.unlink()
    places.token.mkdir()
    with pytest.raises(SettingsError, match="token: the gateway's token can't be read: Is a directory"):
        find_address(settings(), places)


def test_a_gateway_that_runs_elsewhere_is_found_by_what_it_announced(places: Places) -> None:
    with open_folder(places.data, places.lock, Ledger()) as announce:
        announce("http://127.0.0.1:9999")
        assert find_address(settings(), places).base_url == "http://127.0.0.1:9999"


def test_what_a_gateway_announced_that_is_gone_does_not_count(places: Places) -> None:
    with open_folder(places.data, places.lock, Ledger()) as announce:
        announce("http://127.0.0.1:9999")
    assert find_address(settings(), places).base_url == "http://127.0.0.1:8420"  # whoever has the port now
    for text in (f"{os.getpid()}\n", "", "nonsense here"):
        places.lock.write_text(text)
        assert find_address(settings(), places).base_url == "http://127.0.0.1:8420"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://localhost:9/", "http://[::1]:9", "http://own.example:9"])
def test_the_own_token_is_for_gateways_of_this_machine(places: Places, url: str) -> None:
    address = find_address(settings(host="own.example"), places, url=url)
    assert (address.base_url, address.token) == (url.rstrip("/"), Secret("own"))


def test_the_own_token_is_not_for_other_machines(places: Places) -> None:
    with pytest.raises(
        SettingsError, match=r"other\.example is another machine: give its gateway's token with --token"
    ):
        find_address(settings(), places, url="https://other.example")
    address = find_address(settings(), places, url="https://other.example", token="theirs")
    assert address.token == Secret("theirs")


def test_a_link_is_an_address_with_its_token(places: Places) -> None:
    address = find_address(settings(), places, url="https://other.example/holdfast/#token=theirs")
    assert (address.base_url, address.token) == ("https://other.example/holdfast", Secret("theirs"))


@pytest.mark.parametrize("url", ["localhost:8420", "ftp://x", "http://", "http://x:port", "http://[x", "nonsense"])
def test_what_is_no_address_is_said(places: Places, url: str) -> None:
    with pytest.raises(SettingsError, match="--url must be an address such as http"):
        find_address(settings(), places, url=url)
