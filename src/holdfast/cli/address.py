"""Where the gateway answers, and the token that it wants."""

import fcntl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import SettingsError
from holdfast.core.settings import Places, Secret, Settings

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class Address(msgspec.Struct, frozen=True):
    """A gateway, as a client sees it."""

    base_url: str
    token: Secret

    @property
    def link(self) -> str:
        """The web chat. The token is in the fragment, which browsers send to nobody."""
        return f"{self.base_url}/#token={self.token.reveal()}"


def find_address(settings: Settings, places: Places, *, url: str = "", token: str = "") -> Address:
    """The gateway that was named, or the one of these settings. Raises `SettingsError`."""
    own = _announced(places.lock) or _configured(settings)
    if not url:
        return Address(own, Secret(token) if token else _own_token(settings, places))
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise SettingsError("--url must be an address such as http://127.0.0.1:8420")
    base_url = parts._replace(query="", fragment="").geturl().rstrip("/")
    if not token:
        token = parts.fragment.removeprefix("token=") if parts.fragment.startswith("token=") else ""
    if token:
        return Address(base_url, Secret(token))
    if host not in (*_THIS_MACHINE, urlsplit(own).hostname):
        # The token of this machine's gateway is not for others to see.
        raise SettingsError(f"{host} is another machine: give its gateway's token with --token, or its link to --url")
    return Address(base_url, _own_token(settings, places))


def _configured(settings: Settings) -> str:
    host = _EVERY_ADDRESS.get(settings.server.host, settings.server.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def _announced(lock: Path) -> str:
    """Where the gateway that owns the data folder says it is, whatever port it was started on."""
    try:
        with lock.open(encoding="ascii") as file:
            _, url, *_ = file.read().split()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return url  # it still holds the lock, so the address is its own and not a successor's on its port
    except (OSError, ValueError):
        pass
    return ""


def _own_token(settings: Settings, places: Places) -> Secret:
    if settings.server.token:
        return settings.server.token
    try:
        return Secret(places.token.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return Secret()  # no gateway has started here yet
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SettingsError(f"{places.token}: the gateway's token can't be read: {reason}") from None
