"""Who runs models, and which one answers when nobody has said so."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol

import aiohttp
import anyio
import msgspec
import structlog
from yarl import URL

from holdfast.core.errors import SettingsError
from holdfast.core.settings import Secret

log = structlog.get_logger(__name__)

_LOCAL_PROBE = 0.3
_PROBE = 3.0


class Dialect(msgspec.Struct, frozen=True):
    """What one provider does differently in the common wire format."""

    limit: str = "max_tokens"
    """The field that limits the answer's length."""
    with_tools: str = ""
    """JSON members to send whenever tools are sent."""
    on_calls: str = ""
    """JSON members to add to each tool call of the history."""


class Timeouts(msgspec.Struct, frozen=True):
    """In seconds. A streamed answer may take as long as it likes, if it does not fall silent."""

    connect: float = 10.0
    silence: float = 120.0
    whole: float = 600.0
    """For an answer in one piece, during which a server is silent by nature."""


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A model, with all that is needed to ask it."""

    provider: str
    name: str
    base_url: str = ""
    api_key: Secret = Secret()
    why: str = ""
    """How it came to be chosen, for the start screen."""
    title: str = ""
    """The provider's name for people."""
    key_variable: str = ""
    wire: str = "openai"
    """Which opener of the entry point group `holdfast.models` speaks its format."""
    dialect: Dialect = Dialect()
    timeouts: Timeouts = Timeouts()

    @property
    def who(self) -> str:
        """The provider, for use inside a sentence; never with a credential that is part of its address."""
        return self.title or f"the model server at {URL(self.base_url).host}"


class Preset(msgspec.Struct, frozen=True):
    """A provider that is known by name. Without a model it is a server of the user's, which lists its own."""

    title: str
    base_url: str
    key_variable: str = ""
    key_prefix: str = ""
    model: str = ""
    dialect: Dialect = Dialect()
    with_tools_for: str = ""
    """Which models `dialect.with_tools` is for, as a pattern."""
    wire: str = "openai"


# Holdfast does not keep a model's private thoughts. Some models refuse tools while they think, or want
# their thoughts back with a tool's result; those are told not to think, or that there is nothing to check.
_NO_EFFORT = '"reasoning_effort":"none"'
_NO_THINKING = '"thinking":{"type":"disabled"}'
_UNSIGNED = '"extra_content":{"google":{"thought_signature":"skip_thought_signature_validator"}}'

PRESETS: Mapping[str, Preset] = {
    "openai": Preset(
        "OpenAI",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        "sk-proj-",
        "gpt-6.1-terra",
        Dialect(limit="max_completion_tokens", with_tools=_NO_EFFORT),
        r"gpt-(5\.[6-9]|[6-9]|\d\d)",
    ),
    "anthropic": Preset(
        "Anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "sk-ant-", "claude-sonnet-5-5"
    ),
    "openrouter": Preset(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "sk-or-",
        "~anthropic/claude-sonnet-latest",
    ),
    "deepseek": Preset(
        "DeepSeek",
        "https://api.deepseek.com",
        "DEEPSEEK_API_KEY",
        "",
        "deepseek-flash",
        Dialect(with_tools=_NO_THINKING),
    ),
    "gemini": Preset(
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        "AIza",
        "gemini-3.8-flash",
        Dialect(on_calls=_UNSIGNED),
    ),
    "groq": Preset("Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "gsk_", "openai/gpt-oss-120b"),
    "mistral": Preset("Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "", "mistral-medium-latest"),
    "moonshot": Preset(
        "Moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        "",
        "kimi-k2.6",
        Dialect(with_tools=_NO_THINKING),
        r"kimi-k2\.[56]$",
    ),
    "together": Preset("Together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", "tgp_", "openai/gpt-oss-120b"),
    "xai": Preset("xAI", "https://api.x.ai/v1", "XAI_API_KEY", "xai-", "grok-4.5"),
    "ollama": Preset("Ollama", "http://127.0.0.1:11434/v1"),
    "lmstudio": Preset("LM Studio", "http://127.0.0.1:1234/v1"),
    "demo": Preset("the demo model", "", model="demo", wire="demo"),
}

LOCAL = ("ollama", "lmstudio")
CUSTOM = "custom"


class WantedModel(Protocol):
    """What the settings say of the model; each may be empty."""

    @property
    def provider(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> Secret: ...


Probe = Callable[[str, Secret], Awaitable[Sequence[str]]]
"""Asks the server at a base URL which models it has; none when it does not answer."""


async def choose_model(wanted: WantedModel, environ: Mapping[str, str], probe: Probe) -> ModelChoice:
    """What the settings say; else the first key in the environment; else a local server; else the demo model."""
    if wanted.provider:
        return await _named(wanted, environ, probe)
    if wanted.base_url:
        return await _at_address(wanted, environ, probe)
    if wanted.api_key:
        return await _named(wanted, environ, probe, provider=_owner_of(wanted.api_key))
    for provider, preset in PRESETS.items():
        if preset.key_variable and (key := environ.get(preset.key_variable, "").strip()):
            # OpenAI's own variable for another address; ignoring it would send the key to the wrong place.
            elsewhere = environ.get("OPENAI_BASE_URL", "").strip() if provider == "openai" else ""
            why = f"{preset.key_variable} {'and OPENAI_BASE_URL are' if elsewhere else 'is'} set"
            return _choice(provider, wanted.name or preset.model, elsewhere, Secret(key), why)
    if local := await _local(wanted.name, probe):
        return local
    if wanted.name not in ("", "demo"):
        raise SettingsError(
            f'[model] name is "{wanted.name}", but there is no key and no local server for it: '
            "set [model] provider and api_key, or base_url"
        )
    return _choice("demo", "demo", "", Secret(), "no key is set and no model server runs on this machine")


async def ask_for_models(base_url: str, api_key: Secret) -> Sequence[str]:
    """The real probe. It leaves nothing open: what it finds out is needed once, at the start."""
    headers = {"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=_PROBE)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(base_url.rstrip("/") + "/models", allow_redirects=False) as response,
        ):
            if response.status != 200:
                return ()
            listed = msgspec.json.decode(await response.read(), type=_Models)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        log.debug("no model server", at=str(URL(base_url).origin()), error=type(error).__name__)
        return ()
    # Servers list embedding models among the others; nobody can talk to those.
    return [model.id for model in listed.data or () if "embed" not in model.id.lower()]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] | None = None


async def _named(wanted: WantedModel, environ: Mapping[str, str], probe: Probe, *, provider: str = "") -> ModelChoice:
    provider = provider or wanted.provider.strip().lower()
    if provider == CUSTOM and wanted.base_url:
        return await _at_address(wanted, environ, probe)
    preset = PRESETS.get(provider)
    if preset is None:
        raise SettingsError(_unknown(wanted.provider, needs_address=provider == CUSTOM))
    key = wanted.api_key or Secret(environ.get(preset.key_variable, "").strip())
    if preset.key_variable and not key and not wanted.base_url:
        raise SettingsError(
            f'[model] provider is "{provider}", but there is no key for it: '
            f"set {preset.key_variable} or [model] api_key"
        )
    base_url = _checked(wanted.base_url) or preset.base_url
    name = wanted.name or preset.model or next(iter(await probe(base_url, key)), "")
    if not name:
        raise SettingsError(
            f'[model] provider is "{provider}", but no server with a model answers at {base_url}: '
            "start it and load a model, or set [model] name"
        )
    why = "the settings name its provider" if wanted.provider else "the settings hold a key of its provider"
    return _choice(provider, name, base_url, key, why)


async def _at_address(wanted: WantedModel, environ: Mapping[str, str], probe: Probe) -> ModelChoice:
    base_url = _checked(wanted.base_url)
    host = URL(base_url).host
    for provider, preset in PRESETS.items():
        if preset.key_variable and URL(preset.base_url).host == host:
            return await _named(wanted, environ, probe, provider=provider)
    # A server that lists nothing often has one model only and does not mind what it is called.
    name = wanted.name or next(iter(await probe(base_url, wanted.api_key)), "default")
    return _choice(CUSTOM, name, base_url, wanted.api_key, "the settings give its address")


async def _local(name: str, probe: Probe) -> ModelChoice | None:
    """A model server on this machine, looked for at all usual ports at once."""
    found: dict[str, Sequence[str]] = {}

    async def look(provider: str) -> None:
        found[provider] = await probe(PRESETS[provider].base_url, Secret())

    with anyio.move_on_after(_LOCAL_PROBE):
        async with anyio.create_task_group() as group:
            for provider in LOCAL:
                group.start_soon(look, provider)
    for provider in LOCAL:
        models = found.get(provider, ())
        if models and (not name or name in models):
            why = f"{PRESETS[provider].title} runs on this machine"
            return _choice(provider, name or models[0], "", Secret(), why)
    return None


def _choice(provider: str, name: str, base_url: str, key: Secret, why: str) -> ModelChoice:
    preset = PRESETS.get(provider, Preset("", base_url))
    dialect = preset.dialect
    if dialect.with_tools and not re.match(preset.with_tools_for, name):
        dialect = msgspec.structs.replace(dialect, with_tools="")
    return ModelChoice(
        provider=provider,
        name=name,
        base_url=(base_url or preset.base_url).rstrip("/"),
        api_key=key,
        why=why,
        title=preset.title,
        key_variable=preset.key_variable,
        wire=preset.wire,
        dialect=dialect,
    )


def _checked(base_url: str) -> str:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if base_url and (url.scheme not in ("http", "https") or not url.host):
        raise SettingsError("[model] base_url is not an address: it should look like http://127.0.0.1:8000/v1")
    return base_url.removesuffix("/").removesuffix("/chat/completions")


def _owner_of(key: Secret) -> str:
    for provider, preset in PRESETS.items():
        if preset.key_prefix and key.reveal().startswith(preset.key_prefix):
            return provider
    raise SettingsError("[model] api_key is set, but not whose it is: set [model] provider or base_url too")


def _unknown(provider: str, *, needs_address: bool) -> str:
    if needs_address:
        return '[model] provider is "custom", but there is no address: set [model] base_url'
    names = [*PRESETS, CUSTOM]
    near = get_close_matches(re.sub(r"[^a-z0-9]", "", provider.lower()), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it may be one of {', '.join(names)}"
    return f'[model] provider is "{provider}", which is unknown: {hint}'
