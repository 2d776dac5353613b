"""`holdfast init`: a few questions, and a commented settings file with every setting in it."""

import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from holdfast.core.errors import SettingsError
from holdfast.core.setting import Setting, nearest
from holdfast.core.settings import SECTIONS, SETTINGS, paths
from holdfast.core.toml import written

Values = dict[tuple[str, ...], Any]
"""What the file is to say, by the settings' keys, as TOML has it."""

AUTO = "auto"
_TYPE_IT = "-"
_HEAD = """\
Holdfast's settings. What is commented out shows its default.

Each setting can also be given as an environment variable, which beats this file: HOLDFAST_SERVER__PORT for
[server] port, and so on. Times are seconds or text such as "30 min", sizes are bytes or text such as "512 MiB".
A secret is text, { env = "NAME" } for what a variable holds, or { file = "path" } for what a file holds."""


def init(
    provider: Annotated[str | None, typer.Option(help="Who runs the model, such as openai, ollama or demo.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Where the model's API is, if not at the provider's.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The environment variable that holds the key.")] = None,
    port: Annotated[str | None, typer.Option(help="The port of the web chat and the API.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing and take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a settings file that is already there.")] = False,
) -> None:
    """Ask a few questions and write a settings file with comments."""
    file = paths(os.environ).config_file
    if file.exists() and not force:
        _refuse(f"{file} is already there; --force replaces it")
    if not yes and not sys.stdin.isatty():
        _refuse("there is no terminal to ask on; use --yes, and options for what should not be the default")
    questions = _Questions(asked=not yes)
    questions.say(f"A few questions, then {file} is written. Enter takes the answer in brackets.\n")
    try:
        values = _model_answers(questions, provider, model, base_url, api_key_env)
        values |= _server_answers(questions, port)
        values |= _telegram_answers(questions)
    except SettingsError as error:
        _refuse(str(error))
    try:
        _write_private(file, settings_text(values))
    except OSError as error:
        _refuse(f"can't write {file}: {error.strerror}")
    typer.echo(f"Wrote {file}, which only you can read.")
    key = values.get(("model", "api_key"))
    if isinstance(key, dict) and not os.environ.get(key["env"]):
        typer.echo(f"Set {key['env']} before the gateway starts; it is not set here.")
    if values.get(("channels", "telegram", "token")):
        typer.echo("Telegram needs one more package: scripts/setup telegram, or pip install 'holdfast[telegram]'.")
    typer.echo("The gateway reads it when it starts: holdfast serve, or scripts/serve in a clone.")


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


# ── the questions ───────────────────────────────────────────────────────────────────────────────


class _Questions:
    """Asks, unless it was told not to or an option gave the answer; the answer is checked either way."""

    def __init__(self, *, asked: bool) -> None:
        self.asked = asked

    def say(self, text: str) -> None:
        if self.asked:
            typer.echo(text)

    def answer(
        self,
        question: str,
        check: Callable[[str], Any],
        *,
        default: str | None = None,
        given: str | None = None,
        option: str = "",
        hidden: bool = False,
    ) -> str:
        """The first answer that `check` does not refuse; without a default there must be one."""
        if given is not None or not self.asked:
            answer = default if given is None else given.strip()
            if answer is None:
                raise SettingsError(f"{option} is needed, too")
            try:
                check(answer)
            except SettingsError as error:
                raise SettingsError(f"{option}: {error}") from None
            return answer

        def checked(text: str) -> str:
            try:
                check(text.strip())
            except SettingsError as error:
                raise typer.BadParameter(str(error)) from None
            return text.strip()

        answered = typer.prompt(
            question, default=default, show_default=bool(default), hide_input=hidden, value_proc=checked
        )
        return str(answered)


def _model_answers(
    questions: _Questions, provider: str | None, model: str | None, base_url: str | None, variable: str | None
) -> Values:
    from holdfast.models.providers import CUSTOM, PRESETS, Preset  # heavy, and only this command needs it

    titles = {
        AUTO: "the first of these whose key is set, else a server on this machine, else the demo model",
        **{name: preset.title for name, preset in PRESETS.items()},
        CUSTOM: "any other server that speaks OpenAI's format",
    }
    if provider is None and base_url:
        provider = CUSTOM
    if provider is None:
        questions.say("Who runs the model?\n" + "\n".join(f"  {name:<11} {titles[name]}" for name in titles))
    provider = questions.answer(
        "Provider", lambda text: _one_of(text, titles), default=AUTO, given=provider, option="--provider"
    )
    preset = PRESETS.get(provider, Preset("", ""))
    values: Values = {("model", "provider"): "" if provider == AUTO else provider}
    if base_url or provider == CUSTOM:
        question = "Address of its API, such as http://127.0.0.1:8000/v1"
        values[("model", "base_url")] = questions.answer(
            question, _setting("model", "base_url").parse, given=base_url or None, option="--base-url"
        )
    if model is not None or provider not in (AUTO, "demo"):
        question = "Model" if preset.model else "Model (Enter for the first that the server has)"
        check = _setting("model", "name").parse
        name = questions.answer(question, check, default=preset.model, given=model, option="--model")
        values[("model", "name")] = "" if name == preset.model else name
    if variable is not None or preset.key_variable or provider == CUSTOM:
        values[("model", "api_key")] = _key_answer(questions, preset.key_variable, preset.key_prefix, variable)
    return values


def _key_answer(questions: _Questions, usual: str, prefix: str, given: str | None) -> str | dict[str, str]:
    """The key itself, or the variable that holds it."""

    def check(name: str) -> None:
        is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and not (prefix and name.startswith(prefix))
        if not is_name and name not in ("", _TYPE_IT if questions.asked else ""):
            raise SettingsError("this is not the name of an environment variable")  # but a key, maybe: not shown

    if given is None:
        questions.say("A key is safest in an environment variable: then the file holds no more than its name.")
    question = f"Variable that holds the key, or {_TYPE_IT} to type the key" + ("" if usual else " (Enter for no key)")
    name = questions.answer(question, check, default=usual, given=given, option="--api-key-env")
    if name == _TYPE_IT:
        return questions.answer("Key (it stays hidden)", _setting("model", "api_key").parse, hidden=True)
    return {"env": name} if name else ""


def _server_answers(questions: _Questions, port: str | None) -> Values:
    setting = _setting("server", "port")
    question = "Port of the web chat and the API"
    answer = questions.answer(question, setting.parse, default=str(setting.default), given=port, option="--port")
    return {setting.key: setting.parse(answer)}


def _telegram_answers(questions: _Questions) -> Values:
    token, allow = _setting("channels.telegram", "token"), _setting("channels.telegram", "allow")
    question = "Token of a Telegram bot, from @BotFather (it stays hidden; Enter for no bot)"
    answer = questions.answer(question, token.parse, default="", hidden=True)
    if not answer:
        return {}
    question = "Who may write to it: your Telegram user id or @name (Enter for nobody yet)"
    people = questions.answer(question, allow.parse, default="")
    return {token.key: answer, allow.key: list(allow.parse(people))}


def _setting(section: str, name: str) -> Setting:
    return next(setting for setting in SETTINGS if (setting.section, setting.name) == (section, name))


def _one_of(text: str, names: Mapping[str, str]) -> None:
    if text not in names:
        meant = nearest(text, names)
        hint = f"did you mean {meant}?" if meant else f"it may be {', '.join(names)}"
        raise SettingsError(f"there is no provider {written(text)}; {hint}")


# ── the file ────────────────────────────────────────────────────────────────────────────────────


def settings_text(values: Mapping[tuple[str, ...], Any]) -> str:
    """The settings file: these values, and every other setting commented out with its default."""
    lines = _comment(_HEAD)
    for section, struct in SECTIONS.items():
        settings = [setting for setting in SETTINGS if setting.section == section]
        if settings:
            lines += ["", "", *_comment(struct.__doc__ or ""), f"[{section}]"]
        for setting in settings:
            choices = f" It is {setting.allowed}." if setting.kind == "choice" else ""
            default = setting.shown(setting.default)
            said = written(values[setting.key]) if setting.key in values else default
            lines += ["", *_comment(setting.description + choices)]
            lines += [f"{'# ' if said == default else ''}{setting.name} = {said}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    lines = [line for paragraph in text.split("\n\n") for line in ("", *textwrap.wrap(paragraph, 100))]
    return [f"# {line}".rstrip() for line in lines[1:]]


def _write_private(file: Path, text: str) -> None:
    """All of it or nothing, readable by its owner alone."""
    file = file.resolve()  # a link stays a link
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=".holdfast-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(descriptor)
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink()
        raise
