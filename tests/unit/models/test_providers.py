"""Which model answers when nobody, or somebody, has said so."""

import time
from collections.abc import Mapping, Sequence

import anyio
import msgspec
import pytest
from yarl import URL

from holdfast.core.errors import SettingsError
from holdfast.core.settings import ModelSettings, Secret
from holdfast.models.providers import LOCAL, PRESETS, Dialect, ModelChoice, Probe, ask_for_models, choose_model
from holdfast.testing.models import open_model_server
from holdfast.testing.replies import Reply, fails

pytestmark = pytest.mark.anyio


def wanted(**settings: str) -> ModelSettings:
    key = Secret(settings.pop("api_key", ""))
    return ModelSettings(**settings, api_key=key)


async def nobody_there(base_url: str, key: Secret) -> Sequence[str]:
    return ()


async def chosen(environ: Mapping[str, str] | None = None, probe: Probe = nobody_there, **settings: str) -> ModelChoice:
    return await choose_model(wanted(**settings), environ or {}, probe)


async def test_without_anything_it_is_the_demo_model() -> None:
    choice = await chosen()
    assert (choice.provider, choice.name, choice.wire) == ("demo", "demo", "demo")
    assert choice.why == "no key is set and no model server runs on this machine"


async def test_the_first_key_in_the_environment_decides() -> None:
    every = {preset.key_variable: f"key-{name}" for name, preset in PRESETS.items() if preset.key_variable}
    seen = []
    while every:
        choice = await chosen(every)
        seen.append(choice.provider)
        assert choice.api_key.reveal() == f"key-{choice.provider}"
        assert choice.name
        assert choice.why == f"{choice.key_variable} is set"
        del every[choice.key_variable]
    assert seen[:3] == ["openai", "anthropic", "openrouter"]
    assert len(seen) == len(set(seen)) == 10


async def test_a_blank_key_is_none() -> None:
    assert (await chosen({"OPENAI_API_KEY": "  ", "GROQ_API_KEY": " k "})).provider == "groq"


async def test_another_address_for_openais_key_is_respected() -> None:
    choice = await chosen({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"})
    assert choice.base_url == "http://127.0.0.1:4000/v1"
    assert choice.why == "OPENAI_API_KEY and OPENAI_BASE_URL are set"


async def test_settings_beat_the_environment() -> None:
    environ = {"OPENAI_API_KEY": "k", "XAI_API_KEY": "x"}
    choice = await chosen(environ, provider="xai", name="grok-x")
    assert (choice.provider, choice.name, choice.api_key) == ("xai", "grok-x", Secret("x"))
    assert (await chosen(environ, provider="demo")).wire == "demo"
    assert (await chosen(environ, provider="xai", api_key="mine")).api_key == Secret("mine")
    assert (await chosen(environ, name="gpt-other")).name == "gpt-other"


async def test_an_address_alone_is_enough() -> None:
    async with open_model_server(models=["text-embedding-x", "llama-x", "other"]) as server:
        choice = await chosen(probe=ask_for_models, base_url=server.base_url + "/")
        assert (choice.provider, choice.name, choice.base_url) == ("custom", "llama-x", server.base_url)
        assert choice.why == "the settings give its address"
    choice = await chosen(probe=ask_for_models, base_url=server.base_url, api_key="k", provider="custom")
    assert (choice.name, choice.api_key) == ("default", Secret("k"))


async def test_the_address_of_a_known_provider_is_recognised_and_a_full_one_shortened() -> None:
    choice = await chosen({"OPENAI_API_KEY": "k"}, base_url="https://api.openai.com/v1/chat/completions")
    assert (choice.provider, choice.api_key) == ("openai", Secret("k"))
    assert choice.base_url == "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("key", "provider"),
    [
        ("sk-proj-x", "openai"),
        ("sk-ant-x", "anthropic"),
        ("sk-or-v1-x", "openrouter"),
        ("gsk_x", "groq"),
        ("xai-x", "xai"),
    ],
)
async def test_a_key_that_shows_whose_it_is_needs_no_provider(key: str, provider: str) -> None:
    choice = await chosen(api_key=key)
    assert (choice.provider, choice.api_key) == (provider, Secret(key))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"provider": "opena"}, '[model] provider is "opena", which is unknown: did you mean openai?'),
        ({"provider": "Open-Router"}, '[model] provider is "Open-Router", which is unknown: did you mean openrouter?'),
        ({"provider": "LM Studio"}, '[model] provider is "LM Studio", which is unknown: did you mean lmstudio?'),
        ({"provider": "zzz"}, '[model] provider is "zzz", which is unknown: it may be one of openai, anthropic,'),
        ({"provider": "custom"}, '[model] provider is "custom", but there is no address: set [model] base_url'),
        ({"provider": "mistral"}, "there is no key for it: set MISTRAL_API_KEY or [model] api_key"),
        ({"provider": "ollama"}, "no server with a model answers at http://127.0.0.1:11434/v1: start it"),
        ({"api_key": "mystery"}, "[model] api_key is set, but not whose it is: set [model] provider or base_url too"),
        ({"name": "gpt-x"}, '[model] name is "gpt-x", but there is no key and no local server for it'),
        ({"base_url": "127.0.0.1:80"}, "[model] base_url is not an address: it should look like http://127.0.0.1:8000"),
        ({"base_url": "http:///v1"}, "[model] base_url is not an address"),
    ],
)
async def test_a_mistake_is_told_in_one_line(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        await chosen(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "mystery" not in str(caught.value)


# ── servers on this machine ─────────────────────────────────────────────────────────────────────


def moved(**to: str) -> Probe:
    """The real probe, with the usual ports moved to where the test's servers listen."""
    moves = {PRESETS[provider].base_url: address for provider, address in to.items()}

    async def probe(base_url: str, key: Secret) -> Sequence[str]:
        return await ask_for_models(moves[base_url], key)

    return probe


async def free_address() -> str:
    async with open_model_server() as gone:
        return gone.base_url


async def test_a_server_on_this_machine_is_found_and_its_first_model_taken() -> None:
    nowhere = await free_address()
    async with open_model_server(models=["nomic-embed-text", "qwen-x", "b"]) as server:
        choice = await chosen(probe=moved(ollama=nowhere, lmstudio=server.base_url))
        assert (choice.provider, choice.name) == ("lmstudio", "qwen-x")
        assert choice.why == "LM Studio runs on this machine"
        assert choice.base_url == PRESETS["lmstudio"].base_url
        both = await chosen(probe=moved(ollama=server.base_url, lmstudio=server.base_url))
        assert both.provider == "ollama"
        named = await chosen(probe=moved(ollama=nowhere, lmstudio=server.base_url), name="b")
        assert (named.provider, named.name) == ("lmstudio", "b")


async def test_a_server_without_models_is_none() -> None:
    async with open_model_server(models=[]) as server:
        assert (await chosen(probe=moved(ollama=server.base_url, lmstudio=server.base_url))).provider == "demo"


async def test_a_port_that_does_not_answer_delays_the_start_by_a_blink_only() -> None:
    async def silent(base_url: str, key: Secret) -> Sequence[str]:
        await anyio.sleep_forever()
        return ()

    started = time.monotonic()
    assert (await chosen(probe=silent)).provider == "demo"
    assert 0.2 < time.monotonic() - started < 1.0


async def test_a_server_that_wants_another_key_lists_nothing() -> None:
    async with open_model_server(models=fails(401)) as server:
        assert list(await ask_for_models(server.base_url, Secret())) == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data":null}', b'{"data":[{"name":"x"}]}'])
async def test_what_is_no_model_server_is_taken_for_none(body: bytes) -> None:
    async with open_model_server(models=Reply(body=body)) as server:
        assert list(await ask_for_models(server.base_url, Secret())) == []


async def test_the_probe_sends_the_key_and_leaves_nothing_open() -> None:
    async with open_model_server() as server:
        assert list(await ask_for_models(server.base_url, Secret("k"))) == ["scripted"]
        assert server.requests[0].headers["authorization"] == "Bearer k"
        await server.until(lambda server: server.connections == 0)


# ── presets ─────────────────────────────────────────────────────────────────────────────────────


def test_a_key_never_shows() -> None:
    choice = ModelChoice(provider="openai", name="m", api_key=Secret("sk-very-secret"))
    assert "very-secret" not in f"{choice!r} {choice}"


def test_presets_are_complete() -> None:
    for name, preset in PRESETS.items():
        assert preset.title
        assert name == name.lower()
        if name in LOCAL:
            assert URL(preset.base_url).host == "127.0.0.1"
        elif name != "demo":
            assert URL(preset.base_url).scheme == "https"
            assert preset.key_variable.endswith("_API_KEY")
            assert preset.model
        for members in (preset.dialect.with_tools, preset.dialect.on_calls):
            msgspec.json.decode(f"{{{members}}}")


@pytest.mark.parametrize(
    ("provider", "name", "with_tools"),
    [
        ("openai", "gpt-6.1-terra", True),
        ("openai", "gpt-5.6-luna", True),
        ("openai", "gpt-10", True),
        ("openai", "gpt-5.4", False),
        ("openai", "gpt-4.1", False),
        ("deepseek", "deepseek-flash", True),
        ("moonshot", "kimi-k2.6", True),
        ("moonshot", "kimi-k3", False),
        ("groq", "openai/gpt-oss-120b", False),
    ],
)
async def test_only_models_that_need_it_are_told_not_to_think_with_tools(
    provider: str, name: str, with_tools: bool
) -> None:
    choice = await chosen(provider=provider, name=name, api_key="k")
    assert bool(choice.dialect.with_tools) == with_tools


async def test_each_provider_gets_its_own_dialect() -> None:
    assert (await chosen(provider="openai", api_key="k")).dialect.limit == "max_completion_tokens"
    assert "thought_signature" in (await chosen(provider="gemini", api_key="k")).dialect.on_calls
    assert (await chosen(provider="groq", api_key="k")).dialect == Dialect()
