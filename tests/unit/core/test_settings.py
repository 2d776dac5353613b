"""What is in force, where it comes from, and the one line for whatever is wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import SettingsError
from holdfast.core.settings import SECTIONS, SETTINGS, Secret, Settings, load, load_settings, paths
from holdfast.core.toml import written, written_key


def loaded(text: str = "", **environ: str) -> Settings:
    return load(text, "holdfast.toml", environ)


def refused(text: str = "", **environ: str) -> str:
    with pytest.raises(SettingsError) as error:
        loaded(text, **environ)
    message = str(error.value)
    assert message.isprintable(), "it must be one line"
    return message


def test_with_nothing_given_everything_has_its_default() -> None:
    settings = loaded()
    assert settings == Settings()
    assert (settings.server.host, settings.server.port, settings.server.body_limit) == ("127.0.0.1", 8420, 4194304)
    assert (settings.residents.limit, settings.residents.idle_ttl) == (128, 3600)
    assert settings.channels.telegram.api_base == "https://api.telegram.org"
    assert not settings.server.token


def test_settings_are_frozen_and_can_be_compared_and_hashed() -> None:
    settings = loaded("[server]\nport = 1")
    assert settings == loaded(HOLDFAST_SERVER__PORT="1")
    assert hash(settings) == hash(loaded("server.port = 1"))
    with pytest.raises(AttributeError):
        settings.server.port = 2  # type: ignore[misc]


def test_the_environment_beats_the_file_and_the_file_beats_the_default() -> None:
    text = "[server]\nport = 1\nhost = 'here'\n[channels.telegram]\nallow = [1]"
    settings = loaded(text, HOLDFAST_SERVER__PORT="2", HOLDFAST_CHANNELS__TELEGRAM__ALLOW="7,@bob")
    assert (settings.server.port, settings.server.host, settings.server.connections) == (2, "here", 1024)
    assert settings.channels.telegram.allow == ("7", "@bob")


def test_every_setting_can_be_given_in_the_file_and_in_the_environment() -> None:
    for setting in SETTINGS:
        shown = setting.shown(setting.default)
        for settings in (
            loaded(f"[{setting.section}]\n{setting.name} = {shown}"),
            loaded(**{setting.variable: shown.strip('"')}),
        ):
            value: Any = settings
            for name in setting.key:
                value = getattr(value, name)
            assert value == setting.default


def test_variables_of_another_form_are_no_settings() -> None:
    assert loaded(HOLDFAST_HOME="/x", HOLDFAST_FAILPOINT="y", HOLDFASTER__X="z", PATH="w") == Settings()


@pytest.mark.parametrize(
    "text",
    [
        '[server]\ntoken = "s3cret"',
        'server.token = { env = "THE_TOKEN" }',
        '[server]\ntoken = { file = "folder/token" }',
        '[server.token]\nfile = "/etc/holdfast/folder/token"',
    ],
)
def test_a_secret_is_given_as_text_or_by_a_variable_or_by_a_file(text: str) -> None:
    files = {Path("/etc/holdfast/folder/token"): "s3cret\n"}
    settings = load(text, "/etc/holdfast/holdfast.toml", {"THE_TOKEN": "s3cret"}, lambda path: files[path])
    assert settings.server.token == Secret("s3cret")


def test_a_reference_that_the_environment_overrides_is_not_followed() -> None:
    settings = loaded('[server]\ntoken = { env = "NOT_SET" }', HOLDFAST_SERVER__TOKEN="given")
    assert settings.server.token.reveal() == "given"


WRONG_FILES = {
    '[server]\n# the port\nport = "eighty"': (
        'holdfast.toml:3: [server] port: found "eighty", but it must be a whole number from 0 to 65535'
    ),
    "server.port = 65536": "holdfast.toml:1: [server] port: found 65536, but it must be a whole number from 0 to 65535",
    "\nserver = { host = 'h', port = true }": (
        "holdfast.toml:2: [server] port: found true, but it must be a whole number from 0 to 65535"
    ),
    "[limits]\nturns = 0": "holdfast.toml:2: [limits] turns: found 0, but it must be a whole number from 1 upwards",
    "[turn]\nstall = 0": (
        'holdfast.toml:2: [turn] stall: found 0, but it must be a time such as 90 (seconds), "30 min" or "1 h", '
        "more than 0"
    ),
    '[server]\nbody_limit = "4 M"': (
        'holdfast.toml:2: [server] body_limit: found "4 M", but it must be a size such as 1048576 (bytes) or '
        '"512 MiB", more than 0'
    ),
    "[limits]\nturns = [\n1]": (
        "holdfast.toml:2: [limits] turns: found a list, but it must be a whole number from 1 upwards"
    ),
    "[server.port]\nx = 1": (
        "holdfast.toml:1: [server] port: found a table, but it must be a whole number from 0 to 65535"
    ),
    "[server]\nport = 2020-01-01": (
        "holdfast.toml:2: [server] port: found a date or time, but it must be a whole number from 0 to 65535"
    ),
    '[store]\ndurability = "ful"': (
        'holdfast.toml:2: [store] durability: found "ful", but it must be one of "normal", "full"; did you mean "full"?'
    ),
    '[model]\nbase_url = "localhost"': (
        'holdfast.toml:2: [model] base_url: found "localhost", but it must be an address that starts with http:// or '
        "https://"
    ),
    '[channels.telegram]\nallow = [\n  12,\n  # me\n  "bob",\n]': (
        'holdfast.toml:5: [channels.telegram] allow: found "bob" in the list, but it must be a list of user ids '
        "(numbers) and @names"
    ),
    '\n\n[server]\n"prot" = 1': 'holdfast.toml:4: [server] has no setting "prot"; did you mean "port"?',
    "[server]\nPort = 1": 'holdfast.toml:2: [server] has no setting "Port"; did you mean "port"?',
    "[server]\nidle_ttl = 1": 'holdfast.toml:2: [server] has no setting "idle_ttl"; did you mean [residents] idle_ttl?',
    "[log]\nzzz = 1": 'holdfast.toml:2: [log] has no setting "zzz"; it has level, format, file, file_size, files',
    '[log]\nfile_size = "1 KiB"': (
        'holdfast.toml:2: [log] file_size: found "1 KiB", but it must be a size such as 1048576 (bytes) or "512 MiB", '
        'at least "4 KiB"'
    ),
    "[retention]\nmail = 5": (
        'holdfast.toml:2: [retention] mail: found 5, but it must be a time such as 90 (seconds), "30 min" or "1 h", '
        'at least "1 min"'
    ),
    '[expiry]\npolicy = "idle"': (
        'holdfast.toml:2: [expiry] policy: found "idle", but it must be "none", "idle 12 h", "daily 4:00" or '
        '"idle 12 h daily 4:00", maybe with "force" behind it'
    ),
    '[expiry]\nrules = [\n"web none",\n"web daily 24:00"]': (
        'holdfast.toml:4: [expiry] rules: found "web daily 24:00" in the list, but it must be a list of channels or '
        'chats, each with a policy, such as "telegram idle 12 h"'
    ),
    "server = { tokn = { env = 'X' } }": 'holdfast.toml:1: [server] has no setting "tokn"; did you mean "token"?',
    "[server]\n[servr]\nx = 1": "holdfast.toml:2: there is no section [servr]; did you mean [server]?",
    "[chanels.telegram]": "holdfast.toml:1: there is no section [chanels]; did you mean [channels.telegram]?",
    "[channels]\n[channels.telegramm]": (
        "holdfast.toml:2: there is no section [channels.telegramm]; did you mean [channels.telegram]?"
    ),
    "[telegram]": "holdfast.toml:1: there is no section [telegram]; did you mean [channels.telegram]?",
    '["a\\nb"]': (
        'holdfast.toml:1: there is no section ["a\\nb"]; there are [server], [model], [residents], [turn], [limits], '
        "[store], [expiry], [retention], [tools], [log], [channels.telegram]"
    ),
    "port = 1": 'holdfast.toml:1: "port" stands outside of the sections; did you mean [server] port?',
    "zzz = 1": (
        'holdfast.toml:1: "zzz" stands outside of the sections; there are [server], [model], [residents], [turn], '
        "[limits], [store], [expiry], [retention], [tools], [log], [channels.telegram]"
    ),
    "# x\nserver = 8420": "holdfast.toml:2: server is a section; write [server] on its own line",
    "[[server]]\nport = 1": "holdfast.toml:1: server is a section; write [server] on its own line",
    "[channels]\ntelegram = 'x'": (
        "holdfast.toml:2: channels.telegram is a section; write [channels.telegram] on its own line"
    ),
}


@pytest.mark.parametrize(
    "policy",
    ["none", "idle 90s", "idle 30 min", "daily 4:00", "daily 23:59 force", "idle 2 d daily 04:00", "idle 1h force"],
)
def test_conversations_end_by_policies_of_a_few_words(policy: str) -> None:
    rules = (f"telegram {policy}", f"telegram:4711 {policy} Europe/Berlin")
    settings = loaded(f'[expiry]\npolicy = "{policy}"\nrules = ["{rules[0]}", "{rules[1]}"]')
    assert (settings.expiry.policy, settings.expiry.rules) == (policy, rules)


@pytest.mark.parametrize("policy", ["", "idle", "idle 0h", "idle 12 hours", "daily", "daily 24:00", "none force"])
def test_other_policies_are_refused(policy: str) -> None:
    assert "[expiry] policy" in refused(f'[expiry]\npolicy = "{policy}"')
    assert "[expiry] rules" in refused(f'[expiry]\nrules = ["web {policy}"]')


@pytest.mark.parametrize("text", WRONG_FILES)
def test_a_wrong_setting_in_the_file_gets_one_clear_line(text: str) -> None:
    assert refused(text) == WRONG_FILES[text]


NO_TOML = {
    "[server]\nhost = localhost": "holdfast.toml:2:8: a value is missing here, or it is text without quotes around it",
    "[server]\nhost = 127.0.0.1\n": "holdfast.toml:2:13: the line should end here; does the value need quotes?",
    "[server]\nhost = 'h": "holdfast.toml:2:10: a quote is not closed",
    '[server]\nhost = "h\nport = 1': "holdfast.toml:2:10: a quote is not closed on this line",
    "[server]\nhost = '''h\n\n": "holdfast.toml:2:12: a quote is not closed",
    "[server]\n\n[server]": "holdfast.toml:3:8: [server] is given twice",
    "[server]\nport = 1\nport = 2": "holdfast.toml:3:9: this name is given twice",
    "server = {a = 1, a = 2}": 'holdfast.toml:1:23: "a" is given twice',
    "[server\nport = 1": "holdfast.toml:1:8: expected ']' at the end of a table declaration",
    "= 1": "holdfast.toml:1:1: this is neither a [section] nor a name = value",
    "server = " + "[" * 5000: "holdfast.toml: lists or tables are nested too deeply",
    "server = " + "9" * 5000: "holdfast.toml: a number has too many digits",
}


@pytest.mark.parametrize("text", NO_TOML, ids=lambda text: text[:20])
def test_a_file_that_is_no_toml_gets_one_line_with_the_position(text: str) -> None:
    assert refused(text) == NO_TOML[text]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SERVER__PORT", "eighty", 'found "eighty", but it must be a whole number from 0 to 65535'),
        ("SERVER__PORT", "", 'found "", but it must be a whole number from 0 to 65535'),
        ("LOG__FORMAT", "jsn", 'found "jsn", but it must be one of "auto", "console", "json"; did you mean "json"?'),
        ("SERVER__PROT", "1", "there is no such setting; did you mean HOLDFAST_SERVER__PORT?"),
        ("CHANNELS__TELEGRAM_TOKEN", "t", "there is no such setting; did you mean HOLDFAST_CHANNELS__TELEGRAM__TOKEN?"),
        ("Server__Port", "1", "there is no such setting; did you mean HOLDFAST_SERVER__PORT?"),
        ("ZZZ__ZZZ", "1", "there is no such setting; they are named like HOLDFAST_SERVER__PORT"),
        ("SERVER__TOKEN", "two\nlines", "it must be one line of ASCII characters"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    assert refused("[server]\nport = 1", **{f"HOLDFAST_{name}": value}) == f"HOLDFAST_{name}: {message}"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ('{ env = "NOT_SET" }', "the variable NOT_SET is not set"),
        ('{ env = "EMPTY" }', "the variable EMPTY is empty"),
        ('{ env = "sk-s3cret" }', "the variable that env names is not set"),
        ('{ env = "gsk_s3cret" }', "the variable that env names is not set"),
        ('{ file = "gone" }', 'the file "/nowhere/gone" can\'t be read: No such file or directory'),
        ('{ env = "X", s3cret = 1 }', 'found a table, but it must be text, { env = "NAME" } or { file = "path" }'),
        ("{ env = 1 }", 'found a table, but it must be text, { env = "NAME" } or { file = "path" }'),
        ('["s3cret"]', 'found a list, but it must be text, { env = "NAME" } or { file = "path" }'),
        ("'''s3cret\n'''", "it must be one line of ASCII characters"),
    ],
)
def test_a_wrong_secret_is_described_but_never_shown(reference: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(f"[model]\napi_key = {reference}", "/nowhere/holdfast.toml", {"EMPTY": " "})
    assert str(error.value) == f"/nowhere/holdfast.toml:2: [model] api_key: {message}"
    assert "s3cret" not in str(error.value)


def one_line_or_none(text: str, environ: dict[str, str]) -> str:
    try:
        load(text, "holdfast.toml", environ)
    except SettingsError as error:
        return str(error)
    return "none"


names = st.sampled_from(sorted({name for setting in SETTINGS for name in setting.key} | {"env", "x", "a b", ""}))
values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1 h", "4 MiB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
sections = st.sampled_from([*sorted(SECTIONS), "x"])
documents = st.dictionaries(sections, st.dictionaries(names, values, min_size=1, max_size=3), max_size=3)
variables = st.sampled_from([setting.variable for setting in SETTINGS])


@given(documents, st.dictionaries(variables, st.text(), max_size=2))
def test_any_document_loads_or_is_refused_in_one_line(
    document: dict[str, dict[str, Any]], environ: dict[str, str]
) -> None:
    lines = []
    for section, table in document.items():
        lines += [f"[{section}]", *(f"{written_key(name)} = {written(value)}" for name, value in table.items())]
    assert one_line_or_none("\n".join(lines), environ).isprintable()


@given(st.text(alphabet="[]{}=.,#\"'\\\n\r ab1-_:é\0", max_size=40))
def test_any_text_loads_or_is_refused_in_one_line(text: str) -> None:
    assert one_line_or_none(text, {}).isprintable()


# ── places ──────────────────────────────────────────────────────────────────────────────────────


def test_everything_lies_under_the_home_that_is_named(tmp_path: Path) -> None:
    places = paths({"HOLDFAST_HOME": str(tmp_path)})
    assert (places.home, places.config_file, places.data) == (tmp_path, tmp_path / "holdfast.toml", tmp_path)
    assert places.database == tmp_path / "holdfast.db"
    assert places.token == tmp_path / "token"
    assert places.lock == tmp_path / "gateway.lock"
    assert places.sessions == tmp_path / "sessions"


def test_a_home_may_be_relative_or_begin_with_a_tilde() -> None:
    assert paths({"HOLDFAST_HOME": "here"}).data == Path.cwd() / "here"
    assert paths({"HOLDFAST_HOME": "~/there"}).data == Path.home() / "there"
    assert paths({"HOLDFAST_HOME": "~nobody-of-that-name/x"}).data == Path.cwd() / "~nobody-of-that-name/x"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names the folders of Linux")
def test_without_a_home_the_platforms_folders_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for environ in ({}, {"HOLDFAST_HOME": ""}):
        places = paths(environ)
        assert places.home is None
        assert places.config_file == tmp_path / "config/holdfast/holdfast.toml"
        assert places.data == tmp_path / "data/holdfast"


def test_the_file_is_read_and_may_be_missing(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_LOG__LEVEL": "debug"}
    settings, places = load_settings(environ)
    assert (settings.server.port, settings.log.level) == (8420, "debug")
    places.config_file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\ntoken = { file = 'the-token' }\r\n")
    (tmp_path / "the-token").write_text("s3cret\n")
    settings, _ = load_settings(environ)
    assert (settings.server.port, settings.log.level) == (1, "debug")
    assert settings.server.token.reveal() == "s3cret"


def test_a_file_that_cannot_be_read_gets_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    environ = {"HOLDFAST_HOME": str(tmp_path)}

    def complaint(environ: dict[str, str] = environ) -> str:
        with pytest.raises(SettingsError) as error:
            load_settings(environ)
        return str(error.value)

    file.mkdir()
    assert complaint() == f"{file}: found a folder, but it must be a file"
    file.rmdir()
    file.write_bytes(b"[server]\nhost = 'h\xff'\n")
    assert complaint() == f"{file}:2: found other bytes than UTF-8 text; save it as UTF-8"
    assert complaint({"HOLDFAST_HOME": str(file)}) == f"{file}/holdfast.toml: can't be read: Not a directory"
    if os.geteuid() != 0:  # root may read everything
        file.chmod(0)
        assert complaint() == f"{file}: can't be read: Permission denied"


# ── what it costs ───────────────────────────────────────────────────────────────────────────────


def test_importing_settings_brings_in_nothing_heavy() -> None:
    script = "import sys, holdfast.core.settings; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    foreign = {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert foreign - {"holdfast", "msgspec", "typing_extensions", "cython_runtime"} == set()
    assert not {"asyncio", "difflib", "json"} & set(names)


def test_every_section_says_what_it_is_about() -> None:
    assert [name for name, struct in SECTIONS.items() if not (struct.__doc__ or "").endswith(".")] == []
