"""All settings: what there is, where it lies, and how file and environment become one frozen `Settings`.

The environment beats the file, and the file beats the default. Whatever is wrong ends in a `SettingsError`
of one line that says where it stands, what was found and what is allowed.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.errors import SettingsError
from holdfast.core.setting import Bytes, Refused, Seconds, Setting, declared
from holdfast.core.setting import Secret as Secret
from holdfast.core.settings_errors import syntax_error, unknown_name, unknown_variable
from holdfast.core.toml import KeyPath, key_lines, written

T = TypeVar("T", bound=msgspec.Struct)

FILE_NAME = "holdfast.toml"

_HOST = {"allowed": "the name or the IP address of this machine"}
_ADDRESS = {"allowed": "an address that starts with http:// or https://"}
_TOOLSETS = {"allowed": "a list of names of toolsets"}
_MODULES = {"allowed": "a list of names of Python modules"}
_PEOPLE = {"allowed": "a list of user ids (numbers) and @names"}

_IDLE, _DAILY = r"idle [1-9]\d{0,5} ?(s|min|h|d)", r"daily ([01]?\d|2[0-3]):[0-5]\d"
_POLICY = rf"(none|({_IDLE}|{_DAILY}|{_IDLE} {_DAILY})( force)?)"
_POLICIES = {"allowed": '"none", "idle 12 h", "daily 4:00" or "idle 12 h daily 4:00", maybe with "force" behind it'}
_RULES = {"allowed": 'a list of channels or chats, each with a policy, such as "telegram idle 12 h"'}


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web server: the API, the web chat and what operators need."""

    host: Annotated[
        str, Meta(description="The address to listen on; 0.0.0.0 is every address.", pattern=r"^\S+$", extra=_HOST)
    ] = "127.0.0.1"
    port: Annotated[int, Meta(description="The port to listen on; 0 takes any that is free.", ge=0, le=65535)] = 8420
    token: Annotated[
        Secret, Meta(description="What clients must show to be let in; empty: made at the first start.")
    ] = Secret()
    body_limit: Annotated[Bytes, Meta(description="The largest request that is taken.", gt=0)] = 4 * 2**20
    request_timeout: Annotated[
        Seconds, Meta(description="How long a request may take, its wait for other turns included.", gt=0)
    ] = 1800
    connections: Annotated[int, Meta(description="How many connections may be open at once.", ge=1)] = 1024


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model that answers."""

    provider: Annotated[
        str, Meta(description="Who runs the model; empty: the first one whose key or server is found.")
    ] = ""
    name: Annotated[str, Meta(description="The model's name; empty: the provider's usual one.")] = ""
    base_url: Annotated[
        str,
        Meta(
            description="Where its API is; empty: the provider's own.",
            pattern=r"^(https?://[^\s/].*)?$",
            extra=_ADDRESS,
        ),
    ] = ""
    api_key: Annotated[Secret, Meta(description="The provider's key; empty: from the provider's own variable.")] = (
        Secret()
    )
    attempts: Annotated[int, Meta(description="How often a question is asked before giving up.", ge=1)] = 4
    idle_timeout: Annotated[
        Seconds, Meta(description="How long a model may stay silent before it is asked anew.", gt=0)
    ] = 120


class ResidentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many agents stay warm, and for how long. A chat whose agent leaves loses nothing."""

    limit: Annotated[int, Meta(description="How many agents stay warm at once.", ge=1)] = 128
    idle_ttl: Annotated[Seconds, Meta(description="How long an agent stays warm without a message.", ge=0)] = 3600
    memory_budget: Annotated[
        Bytes,
        Meta(
            description="The memory above which agents are let go; 0: half of what this machine or container has.",
            ge=0,
        ),
    ] = 0


class TurnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message's way to its answer."""

    max_steps: Annotated[int, Meta(description="How many times a turn may ask the model.", ge=1)] = 90
    stall: Annotated[Seconds, Meta(description="After how long without any progress a turn is ended.", gt=0)] = 1800


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be under way; whoever comes on top is told to come back later."""

    mailbox: Annotated[int, Meta(description="Messages that wait in one chat.", ge=1)] = 32
    turns: Annotated[int, Meta(description="Turns in flight; the next one waits until one ends.", ge=1)] = 2000
    inbox: Annotated[int, Meta(description="Messages that wait in all chats together.", ge=1)] = 100_000


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The database."""

    durability: Annotated[
        Literal["normal", "full"],
        Meta(description='What is stored survives: "normal" the end of the process, "full" also the loss of power.'),
    ] = "normal"


class ExpirySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When conversations end by themselves. What ended is kept, and `/resume` brings it back."""

    policy: Annotated[
        str,
        Meta(
            description='They end after some time without a message ("idle 12 h"), at an hour of the day ("daily '
            '4:00"), at the first of both ("idle 12 h daily 4:00") or never ("none"); with "force" behind it also '
            "while something that was started there still runs.",
            pattern=rf"^{_POLICY}$",
            extra=_POLICIES,
        ),
    ] = "none"
    rules: Annotated[
        tuple[Annotated[str, Meta(pattern=rf"^\S+ {_POLICY}( [A-Z][A-Za-z0-9_+/-]*)?$")], ...],
        Meta(
            description='The same for single channels and chats, such as "telegram idle 12 h" or, with a time zone '
            "of its own, \"telegram:4711 daily 4:00 Europe/Berlin\"; a chat's rule beats its channel's.",
            extra=_RULES,
        ),
    ] = ()
    zone: Annotated[
        str, Meta(description='The time zone of "daily", such as Europe/Berlin; empty: this machine\'s own.')
    ] = ""


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how long what is over is kept. It is cleaned up in small steps, beside the work."""

    conversations: Annotated[
        Seconds, Meta(description="How long an ended conversation is kept, with its folder; 0: for ever.", ge=0)
    ] = 0
    outputs: Annotated[
        Seconds,
        Meta(description="How long an ended conversation's folder is kept; 0: as long as the conversation.", ge=0),
    ] = 0
    mail: Annotated[
        Seconds,
        Meta(description="How long a message that comes a second time is known, and not answered again.", ge=60),
    ] = 7 * 86400


class ToolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What agents may use."""

    toolsets: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="The toolsets that agents get; empty: all that are available.", extra=_TOOLSETS),
    ] = ()
    modules: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")], ...],
        Meta(description="Python modules with tools of your own.", extra=_MODULES),
    ] = ()


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the gateway tells its operator, on standard error or in a file."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is worth a line.")
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description='"console" is for people, "json" for programs; "auto" looks whether it is a terminal.'),
    ] = "auto"
    file: Annotated[
        str,
        Meta(description="The file to write to; a relative path starts at the data folder; empty: standard error."),
    ] = ""
    file_size: Annotated[
        Bytes, Meta(description="How large that file grows before it is set aside and a new one is begun.", ge=4096)
    ] = 20 * 2**20
    files: Annotated[
        int, Meta(description="How many of those set aside are kept; they get .1, .2 … behind their name.", ge=0)
    ] = 5


class TelegramSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Telegram bot; it is on when there is a token."""

    token: Annotated[Secret, Meta(description="The bot's token, from @BotFather.")] = Secret()
    api_base: Annotated[
        str,
        Meta(
            description="Where the Bot API is; a server of your own may serve it.",
            pattern=r"^https?://[^\s/]",
            extra=_ADDRESS,
        ),
    ] = "https://api.telegram.org"
    allow: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(@[A-Za-z0-9_]+|[0-9]+)$")], ...],
        Meta(description="Who may write to the bot: user ids and @names; empty: nobody.", extra=_PEOPLE),
    ] = ()


class ChannelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ways to reach people."""

    telegram: TelegramSettings = TelegramSettings()


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting, checked."""

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    residents: ResidentSettings = ResidentSettings()
    turn: TurnSettings = TurnSettings()
    limits: LimitSettings = LimitSettings()
    store: StoreSettings = StoreSettings()
    expiry: ExpirySettings = ExpirySettings()
    retention: RetentionSettings = RetentionSettings()
    tools: ToolSettings = ToolSettings()
    log: LogSettings = LogSettings()
    channels: ChannelSettings = ChannelSettings()


def _sections(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for field in msgspec.structs.fields(struct):
        if _is_section(field.type):
            yield ".".join((*path, field.name)), field.type
            yield from _sections(field.type, (*path, field.name))


def _is_section(field_type: Any) -> bool:
    return isinstance(field_type, type) and issubclass(field_type, msgspec.Struct)


SECTIONS: Mapping[str, type[msgspec.Struct]] = MappingProxyType(dict(_sections(Settings)))
"""The struct of each section, by its name in the file; its docstring says what the section is about."""

LIVE_SECTIONS = ("residents", "turn", "limits", "expiry", "retention")
"""Those that a running gateway takes over when it reads its settings again; all others wait for the next start."""

SETTINGS: tuple[Setting, ...] = tuple(
    declared(section, field)
    for section, struct in SECTIONS.items()
    for field in msgspec.structs.fields(struct)
    if not _is_section(field.type)
)


# ── where things lie ────────────────────────────────────────────────────────────────────────────


class Places(msgspec.Struct, frozen=True):
    """Where settings and data lie."""

    home: Path | None
    """The one folder for everything, where `HOLDFAST_HOME` names it."""
    config_file: Path
    data: Path

    @property
    def database(self) -> Path:
        return self.data / "holdfast.db"

    @property
    def token(self) -> Path:
        return self.data / "token"

    @property
    def lock(self) -> Path:
        return self.data / "gateway.lock"

    @property
    def sessions(self) -> Path:
        """The folder of the sessions' own folders."""
        return self.data / "sessions"


def paths(environ: Mapping[str, str]) -> Places:
    """Everything under `HOLDFAST_HOME`; without it, in the platform's folders for settings and data."""
    if stated := environ.get("HOLDFAST_HOME"):
        home = _expanded(stated).absolute()
        return Places(home, home / FILE_NAME, home)
    import platformdirs  # costs milliseconds, and not every run needs it

    config = platformdirs.user_config_path("holdfast", appauthor=False)
    return Places(None, config / FILE_NAME, platformdirs.user_data_path("holdfast", appauthor=False))


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~ of somebody who is not known here
        return Path(text)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


def load_settings(environ: Mapping[str, str]) -> tuple[Settings, Places]:
    """The settings of this machine and where they lie. Raises `SettingsError`; no file is no error."""
    places = paths(environ)
    file = str(places.config_file)
    try:
        data = places.config_file.read_bytes()
    except FileNotFoundError:
        data = b""
    except IsADirectoryError:
        raise SettingsError(f"{file}: found a folder, but it must be a file") from None
    except OSError as error:
        raise SettingsError(f"{file}: can't be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{file}:{line}: found other bytes than UTF-8 text; save it as UTF-8") from None
    return load(text, file, environ), places


def load(text: str, file: str, environ: Mapping[str, str], read: Callable[[Path], str] = Path.read_text) -> Settings:
    """Settings from the text of `file` and the environment. Raises `SettingsError`, whose message is one line."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise SettingsError(f"{file}: lists or tables are nested too deeply") from None
    except ValueError as error:  # mostly TOMLDecodeError
        raise SettingsError(syntax_error(str(error), text, file)) from None
    _refuse_unknown_names(document, Settings, (), text, file)
    if unknown := unknown_variable(environ, SETTINGS):
        raise SettingsError(unknown)
    values: dict[tuple[str, ...], Any] = {}
    for setting in SETTINGS:
        raw = _looked_up(document, setting.key)
        try:
            if setting.variable in environ:
                values[setting.key] = setting.parse(environ[setting.variable])
            elif raw is not None:
                if setting.kind == "secret" and isinstance(raw, dict):
                    raw = _referred(raw, setting, Path(file).parent, environ, read)
                values[setting.key] = setting.check(raw)
        except Refused as error:
            place = setting.variable
            if place not in environ:
                path: KeyPath = setting.key if error.item is None else (*setting.key, error.item)
                place = f"{_place(path, text, file)} [{setting.section}] {setting.name}"
            raise SettingsError(f"{place}: {error}") from None
    return _built(Settings, (), values)


def _place(path: KeyPath, text: str, file: str) -> str:
    return f"{file}:{key_lines(text)[path]}:"


def _refuse_unknown_names(
    table: dict[str, Any], struct: type[msgspec.Struct], path: tuple[str, ...], text: str, file: str
) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        here = (*path, name)
        if name not in fields:
            wrong = unknown_name(here, isinstance(value, dict), SETTINGS)
            raise SettingsError(f"{_place(here, text, file)} {wrong}")
        if not _is_section(fields[name]):
            continue
        if not isinstance(value, dict):
            section = ".".join(here)
            raise SettingsError(f"{_place(here, text, file)} {section} is a section; write [{section}] on its own line")
        _refuse_unknown_names(value, fields[name], here, text, file)


def _looked_up(document: dict[str, Any], key: tuple[str, ...]) -> Any:
    """What the file says, or None, which TOML does not have."""
    *parents, name = key
    for parent in parents:
        document = document.get(parent, {})
    return document.get(name)


def _referred(
    reference: dict[str, Any],
    setting: Setting,
    folder: Path,
    environ: Mapping[str, str],
    read: Callable[[Path], str],
) -> str:
    """The secret that stands in a variable or in a file of its own."""
    match reference:
        case {"env": str(name), **rest} if not rest:
            # What isn't spelled like a variable may be the secret itself, put in the wrong place: don't show it.
            shown = f"the variable {name}" if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) else "the variable that env names"
            if name not in environ:
                raise Refused(f"{shown} is not set")
            if not (value := environ[name].strip()):
                raise Refused(f"{shown} is empty")
            return value
        case {"file": str(name), **rest} if not rest:
            path = folder / _expanded(name)
            try:
                value = read(path).strip()
            except OSError as error:
                raise Refused(f"the file {written(str(path))} can't be read: {error.strerror}") from None
            except ValueError:
                raise Refused(f"the file {written(str(path))} is not text") from None
            if not value:
                raise Refused(f"the file {written(str(path))} is empty")
            return value
    raise Refused(f"found a table, but it must be {setting.allowed}")


def _built(struct: type[T], path: tuple[str, ...], values: Mapping[tuple[str, ...], Any]) -> T:
    parts: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        here = (*path, field.name)
        if _is_section(field.type):
            parts[field.name] = _built(field.type, here, values)
        elif here in values:
            parts[field.name] = values[here]
    return struct(**parts)
