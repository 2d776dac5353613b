"""`holdfast init` as people meet it: on a real terminal, and in scripts."""

import itertools
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from holdfast.cli.init import init, settings_text
from holdfast.core.setting import Setting
from holdfast.core.settings import SETTINGS, Secret, Settings, load
from holdfast.models.providers import CUSTOM, PRESETS

PROGRAM = "import typer; from holdfast.cli.init import init; typer.run(init)"
# Ctrl-C reaches only those to whom the terminal belongs.
ON_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {PROGRAM}"
DEADLINE = 20.0


def environment(home: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return own | {"HOLDFAST_HOME": str(home), "TERM": "dumb", "NO_COLOR": "1", **more}


def run_init(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(
        command, env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def loaded(home: Path, **environ: str) -> Settings:
    return load((home / "holdfast.toml").read_text(), "holdfast.toml", environ)


class Terminal:
    """A person at a real terminal: reads until something is asked, types, and sees everything that is shown."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.screen = ""
        self._seen = 0
        self._controller, terminal = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *arguments],
            env=environment(home),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._controller)

    def read_until(self, text: str) -> None:
        """Wait for the text to be shown after what was seen before."""
        deadline = time.monotonic() + DEADLINE
        while (found := self.screen.find(text, self._seen)) < 0:
            assert self._read_some(deadline), f"{text!r} was not shown:\n{self.screen}"
        self._seen = found + len(text)

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def answer(self, question: str, text: str) -> None:
        self.read_until(question)
        self.read_until(": ")
        self.type(text + "\n")

    def end(self) -> int:
        """Everything has been answered; the status with which it ended."""
        deadline = time.monotonic() + DEADLINE
        while self._read_some(deadline):
            pass
        return self._process.wait(timeout=DEADLINE)

    def _read_some(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return False
        try:
            data = os.read(self._controller, 4096)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.screen += data.decode()
        return bool(data)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    yield folder
    left = [path.name for path in folder.iterdir()] if folder.exists() else []
    assert set(left) <= {"holdfast.toml", "link-target"}, "no draft may be left behind"


# ── on a terminal ───────────────────────────────────────────────────────────────────────────────


def test_enter_at_every_question_writes_a_file_of_defaults(home: Path) -> None:
    with Terminal(home) as terminal:
        terminal.answer("Provider [auto]", "")
        terminal.answer("Port of the web chat and the API [8420]", "")
        terminal.answer("Token of a Telegram bot", "")
        terminal.read_until(f"Wrote {home}/holdfast.toml")
        assert terminal.end() == 0
    assert loaded(home) == Settings()
    assert stat.S_IMODE((home / "holdfast.toml").stat().st_mode) == 0o600


def test_answers_end_up_in_the_file(home: Path) -> None:
    with Terminal(home) as terminal:
        terminal.answer("Provider [auto]", "openai")
        terminal.answer(f"Model [{PRESETS['openai'].model}]", "my-model")
        terminal.answer("Variable that holds the key, or - to type the key [OPENAI_API_KEY]", "MY_KEY")
        terminal.answer("Port", "8421")
        terminal.answer("Token of a Telegram bot", "123:bot-s3cret")
        terminal.answer("Who may write to it", "42, @bob")
        terminal.read_until("Set MY_KEY before the gateway starts")
        assert terminal.end() == 0
        assert "s3cret" not in terminal.screen
    settings = loaded(home, MY_KEY="sk-1")
    assert (settings.model.provider, settings.model.name, settings.server.port) == ("openai", "my-model", 8421)
    assert settings.model.api_key == Secret("sk-1")
    assert settings.channels.telegram.token == Secret("123:bot-s3cret")
    assert settings.channels.telegram.allow == ("42", "@bob")


def test_a_typed_key_stays_hidden_and_is_written(home: Path) -> None:
    with Terminal(home, "--provider", "groq", "--model", "m", "--port", "1") as terminal:
        terminal.answer("Variable that holds the key", "-")
        terminal.answer("Key (it stays hidden)", "gsk_s3cret")
        terminal.answer("Token of a Telegram bot", "")
        assert terminal.end() == 0
        assert "s3cret" not in terminal.screen
    assert loaded(home).model.api_key == Secret("gsk_s3cret")


def test_a_wrong_answer_is_explained_and_asked_again(home: Path) -> None:
    with Terminal(home) as terminal:
        terminal.answer("Provider", "opnai")
        terminal.read_until('there is no provider "opnai"; did you mean openai?')
        terminal.answer("Provider", "custom")
        terminal.answer("Address of its API", "localhost")
        terminal.read_until('found "localhost", but it must be an address that starts with http:// or https://')
        terminal.answer("Address of its API", "http://127.0.0.1:1/v1")
        terminal.answer("Model (Enter for the first that the server has)", "")
        terminal.answer("Variable that holds the key, or - to type the key (Enter for no key)", "my key")
        terminal.read_until("this is not the name of an environment variable")
        terminal.answer("Variable that holds the key", "")
        terminal.answer("Port", "eighty")
        terminal.read_until('found "eighty", but it must be a whole number from 0 to 65535')
        terminal.answer("Port", "80")
        terminal.answer("Token of a Telegram bot", "123:abc")
        terminal.answer("Who may write to it", "bob")
        terminal.read_until('found "bob" in the list, but it must be a list of user ids')
        terminal.answer("Who may write to it", "")
        assert terminal.end() == 0
    settings = loaded(home)
    assert (settings.model.provider, settings.model.base_url) == ("custom", "http://127.0.0.1:1/v1")
    assert not settings.model.api_key
    assert settings.channels.telegram.allow == ()


def test_a_key_pasted_where_a_name_belongs_is_not_taken_for_one(home: Path) -> None:
    with Terminal(home, "--provider", "groq", "--model", "m", "--port", "1") as terminal:
        terminal.answer("Variable that holds the key", "gsk_abc")
        terminal.read_until("this is not the name of an environment variable")
        terminal.answer("Variable that holds the key", "")
        terminal.answer("Token of a Telegram bot", "")
        assert terminal.end() == 0
    assert "gsk_abc" not in (home / "holdfast.toml").read_text()


def test_ctrl_c_leaves_no_file(home: Path) -> None:
    with Terminal(home) as terminal:
        terminal.answer("Provider", "openai")
        terminal.read_until("Model [")
        terminal.type("\x03")
        assert terminal.end() != 0
        assert "Traceback" not in terminal.screen
    assert not home.exists()


def test_ctrl_c_leaves_the_old_file_as_it_was(home: Path) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("# mine\n")
    with Terminal(home, "--force", "--provider", "demo", "--port", "1") as terminal:
        terminal.read_until("Token of a Telegram bot")
        terminal.read_until(": ")
        terminal.type("\x03")
        assert terminal.end() != 0
        assert "Traceback" not in terminal.screen
    assert (home / "holdfast.toml").read_text() == "# mine\n"


# ── in scripts ──────────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_it_asks_for_yes(home: Path) -> None:
    ran = run_init(home)
    assert ran.returncode == 1
    assert ran.stderr.strip() == (
        "there is no terminal to ask on; use --yes, and options for what should not be the default"
    )
    assert not home.exists()


def test_a_file_that_is_there_is_replaced_only_by_force(home: Path) -> None:
    assert run_init(home, "--yes", "--port", "1").returncode == 0
    refused = run_init(home, "--yes", "--port", "2")
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"{home}/holdfast.toml is already there; --force replaces it"
    assert loaded(home).server.port == 1
    assert run_init(home, "--yes", "--port", "2", "--force").returncode == 0
    assert loaded(home).server.port == 2


def test_force_follows_a_link_and_closes_the_file_to_others(home: Path) -> None:
    home.mkdir()
    (home / "link-target").write_text("")
    (home / "link-target").chmod(0o644)
    (home / "holdfast.toml").symlink_to("link-target")
    assert run_init(home, "--yes", "--force", "--port", "3").returncode == 0
    assert (home / "holdfast.toml").is_symlink()
    assert loaded(home).server.port == 3
    assert stat.S_IMODE((home / "link-target").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "--port: found 99999, but it must be a whole number from 0 to 65535"),
        (["--port", "x"], '--port: found "x", but it must be a whole number from 0 to 65535'),
        (["--provider", "opnai"], '--provider: there is no provider "opnai"; did you mean openai?'),
        (["--provider", CUSTOM], "--base-url is needed, too"),
        (["--base-url", "h"], '--base-url: found "h", but it must be an address that starts with http:// or https://'),
        (["--api-key-env", "sk-s3cret"], "--api-key-env: this is not the name of an environment variable"),
        (["--api-key-env", "-"], "--api-key-env: this is not the name of an environment variable"),
        (["--model", "a\nb"], '--model: found "a\\nb", but it must be a line of text'),
    ],
)
def test_a_wrong_option_gets_one_line_and_writes_nothing(home: Path, arguments: list[str], message: str) -> None:
    command = typer.Typer()
    command.command()(init)
    ran = CliRunner().invoke(command, ["--yes", *arguments], env={"HOLDFAST_HOME": str(home)})
    assert (ran.exit_code, ran.stdout, ran.stderr) == (1, "", message + "\n")
    assert not home.exists()


def test_a_folder_that_cannot_be_made_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run_init(tmp_path / "file", "--yes")
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"can't write {tmp_path}/file/holdfast.toml: ")
    assert len(ran.stderr.splitlines()) == 1


def test_the_options_end_up_in_the_file(home: Path) -> None:
    arguments = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--api-key-env", "K", "--port", "5"]
    assert run_init(home, "--yes", *arguments).returncode == 0
    settings = loaded(home, K="key")
    assert (settings.model.provider, settings.model.base_url, settings.model.name, settings.server.port) == (
        "custom",
        "http://127.0.0.1:1/v1",
        "m",
        5,
    )
    assert settings.model.api_key == Secret("key")


# ── the file ────────────────────────────────────────────────────────────────────────────────────


def test_the_file_holds_every_setting_and_its_comments_are_the_defaults() -> None:
    text = settings_text({})
    assert [setting.name for setting in SETTINGS if f"\n# {setting.name} = " not in text] == []
    assert max(map(len, text.splitlines())) <= 102
    assert load(text, "holdfast.toml", {}) == Settings()
    names = {setting.name for setting in SETTINGS}
    lines = [line.removeprefix("# ") if line[2:].partition(" = ")[0] in names else line for line in text.splitlines()]
    uncommented = "\n".join(lines)
    assert sum(" = " in line and not line.startswith("#") for line in lines) == len(SETTINGS)
    assert load(uncommented, "holdfast.toml", {}) == Settings()


EXAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]).filter(str.isprintable)),
    "seconds": st.floats(0.001, 1e10) | st.integers(1, 10**10),
    "bytes": st.integers(1, 2**62),
    "list": st.lists(st.from_regex(r"(@[a-z0-9_]+|[0-9]+)", fullmatch=True)),
    "secret": st.text(st.characters(min_codepoint=33, max_codepoint=126)),
}
SPECIAL = {
    "host": st.sampled_from(["localhost", "::1", "0.0.0.0"]),
    "base_url": st.sampled_from(["", "http://127.0.0.1:1/v1", "https://x/\"'?#[]"]),
    "api_base": st.sampled_from(["http://127.0.0.1:1", "https://x"]),
    "modules": st.sampled_from([[], ["a", "b.c"]]),
    "toolsets": st.lists(st.text("abc-", min_size=1)),
    "port": st.integers(0, 65535),
    "durability": st.sampled_from(["normal", "full"]),
    "level": st.sampled_from(["debug", "info", "warning", "error"]),
    "format": st.sampled_from(["auto", "console", "json"]),
    "file_size": st.integers(4096, 2**62),
    "policy": st.sampled_from(["none", "idle 12 h", "daily 4:00 force"]),
    "rules": st.lists(st.sampled_from(["telegram none", "web:x idle 12 h daily 4:00 Europe/Berlin"])),
    "mail": st.integers(60, 10**10),
}


def example_of(setting: Setting) -> st.SearchStrategy[Any]:
    return SPECIAL.get(setting.name, EXAMPLES.get(setting.kind, st.integers(1, 10**9)))


@given(st.fixed_dictionaries({}, optional={setting.key: example_of(setting) for setting in SETTINGS}))
def test_a_written_file_loads_with_the_values_that_were_put_in(values: dict[tuple[str, ...], Any]) -> None:
    settings = load(settings_text(values), "holdfast.toml", {})
    for setting in SETTINGS:
        found: Any = settings
        for name in setting.key:
            found = getattr(found, name)
        expected = setting.check(values[setting.key]) if setting.key in values else setting.default
        assert found == expected


COMBINATIONS = list(
    itertools.product(
        ["", *PRESETS, CUSTOM],
        ["", "some/model:7b"],
        ["", "http://127.0.0.1:1/v1"],
        ["", "sk-'\"\\#", {"env": "A_KEY"}],
        [0, 8420],
        [[], ["42", "@bob"]],
    )
)


def test_every_combination_of_answers_makes_a_file_that_loads() -> None:
    for provider, name, base_url, key, port, allow in COMBINATIONS:
        values = {
            ("model", "provider"): provider,
            ("model", "name"): name,
            ("model", "base_url"): base_url,
            ("model", "api_key"): key,
            ("server", "port"): port,
            ("channels", "telegram", "allow"): allow,
        }
        settings = load(settings_text(values), "holdfast.toml", {"A_KEY": "from-variable"})
        assert (settings.model.provider, settings.model.name, settings.model.base_url) == (provider, name, base_url)
        assert settings.model.api_key.reveal() == (key if isinstance(key, str) else "from-variable")
        assert (settings.server.port, list(settings.channels.telegram.allow)) == (port, allow)
