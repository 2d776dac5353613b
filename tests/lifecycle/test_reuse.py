"""Same configuration, same agent; another one, a new agent. What may change in place does so."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.agent.agent import ModelConfig, signature
from holdfast.agent.prompt import build_prompt
from holdfast.app import _model_config
from holdfast.core.events import Answered, Started, Text
from holdfast.core.ledger import Ledger
from holdfast.core.settings import ModelSettings, Secret, ToolSettings
from holdfast.models.home import open_home
from holdfast.models.providers import choose_model
from holdfast.models.transports import open_transports
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.scripted import echo
from holdfast.tools.catalogue import Catalogue
from holdfast.tools.files import TOOLS

from .events import EVICTIONS, SETTINGS, agent_of, evict, open_small
from .lamps import Lamps

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

KEY = "sk-12345678-the-first-of-two"
MODEL = ModelSettings(provider="openai", name="a-model", api_key=Secret(KEY))


async def configured(settings: ModelSettings) -> ModelConfig:
    """What a gateway with these settings leases its models by."""

    async def probe(base_url: str, api_key: Secret) -> list[str]:
        raise AssertionError("the settings say it all")

    async with open_transports(Ledger()) as transports, open_home() as home:
        return _model_config(await choose_model(settings, {}, probe), transports, home)


async def signed(settings: ModelSettings, prompt: str = "") -> str:
    tools = Catalogue(TOOLS).choose()
    return signature(await configured(settings), tools, prompt or build_prompt(CHAT, tools))


@pytest.mark.proves("case 1", "invariant 10")
async def test_the_same_settings_have_the_same_signature() -> None:
    again = ModelSettings(provider="openai", name="a-model", api_key=Secret(KEY))
    assert await signed(MODEL) == await signed(again)


@pytest.mark.proves("case 2", "case 3", "case 4", "invariant 10")
@pytest.mark.parametrize(
    "other",
    [
        {"name": "another-model"},
        {"provider": "mistral"},
        {"base_url": "http://127.0.0.1:9/v1"},
        {"api_key": Secret("sk-12345678-the-other-one")},
        {"api_key": Secret(KEY + "x")},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_each_part_of_the_models_settings_counts(other: dict[str, Any]) -> None:
    assert await signed(replace(MODEL, **other)) != await signed(MODEL)


@pytest.mark.proves("invariant 10")
@pytest.mark.parametrize("part", ["provider", "name", "base_url", "wire", "credential_digest"])
async def test_each_part_of_what_tells_models_apart_counts_by_itself(part: str) -> None:
    config, tools = await configured(MODEL), Catalogue(TOOLS).choose()
    ours = signature(config, tools, "prompt")
    assert signature(replace(config, **{part: "another"}), tools, "prompt") != ours
    assert signature(config, tools, "another prompt") != ours
    assert signature(replace(config, reasons=not config.reasons), tools, "prompt") == ours


@pytest.mark.proves("invariant 10")
async def test_nothing_of_the_credential_is_to_be_seen() -> None:
    config = await configured(MODEL)
    for part in (KEY, KEY[:6], KEY[-6:]):
        assert part not in f"{await signed(MODEL)} {config!r} {config.identity}"


@pytest.mark.proves("case 5", "case 1", "invariant 10")
async def test_other_toolsets_differ_and_the_same_ones_do_not(tmp_path: Path) -> None:
    signatures: dict[str, str] = {}
    for name, toolsets in {"all": (), "all again": (), "lamps": ("lamps",), "files": ("files",)}.items():
        folder = tmp_path / name
        folder.mkdir()
        settings = replace(SETTINGS, tools=ToolSettings(toolsets=toolsets))
        async with open_small(folder, echo, settings=settings, tools=[*TOOLS, *Lamps("red").tools]) as bench:
            await bench.say("hello")
            agent = agent_of(bench)
            assert agent
            signatures[name] = agent.signature
    assert signatures["all"] == signatures["all again"]
    assert len(set(signatures.values())) == 3


async def answered_by(bench: Bench, text: str) -> "weakref.ref[Any]":
    """The agent that answered."""
    assert (await bench.say(text)).text == f"you said {text}"
    agent = agent_of(bench)
    assert agent
    return weakref.ref(agent)


@pytest.mark.proves("case 6", "case 7", "case 8", "case 11", "invariant 10")
async def test_the_same_agent_answers_until_the_model_is_another(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        first = await answered_by(bench, "one")
        signature_before = first().signature
        assert await answered_by(bench, "two") is first
        await bench.say("/reasoning high")
        assert await answered_by(bench, "three") is first
        assert first().signature == signature_before
        assert bench.model.efforts == ["", "", "high"]
        await bench.say("/model other")
        second = await answered_by(bench, "four")
        gc.collect()
        assert first() is None
        assert second().signature != signature_before
        await bench.say("/model scripted")
        third = await answered_by(bench, "five")
        assert third().signature == signature_before  # the same configuration again
        assert bench.model.leased == ["scripted", "other", "scripted"]


@pytest.mark.proves("case 13", "invariant 10")
async def test_sinks_are_replaced_with_each_message_and_the_agent_stays(tmp_path: Path) -> None:
    async with open_small(tmp_path, echo) as bench:
        first = await answered_by(bench, "zero")
        mails = [await bench.send(f"{number}", watched=number % 2 == 0) for number in range(4)]
        for number, mail in enumerate(mails):
            await mail.answered()
            started, *words, answered = await mail.after(0)
            assert isinstance(started, Started)
            assert words == ([Text(f"you said {number}")] if number % 2 == 0 else [])
            assert isinstance(answered, Answered)
            assert answered.text == f"you said {number}"
        assert agent_of(bench) is first()
        assert bench.model.leased == ["scripted"]


@pytest.mark.proves("case 30")
@pytest.mark.parametrize("route", EVICTIONS)
async def test_an_evicted_sessions_next_turn_gets_a_fresh_agent_that_works(tmp_path: Path, route: str) -> None:
    async with open_small(tmp_path, echo) as bench:
        first = await answered_by(bench, "one")
        before = first().signature
        await evict(bench, route)
        gc.collect()
        assert first() is None
        second = await answered_by(bench, "two")
        assert second().signature == before
        assert len(bench.model.requests[-1][2]) == 3  # with all that was said
        assert await answered_by(bench, "three") is second
