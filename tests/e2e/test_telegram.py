"""The real gateway process with a Telegram bot: messages in, answers out, each once, whatever dies in between."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.testing.processes import GatewayProcess
from holdfast.testing.telegram import ANNA, BEN, BotApi, bad_gateway, open_bot_api

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(anyio_backend: object) -> AsyncIterator[BotApi]:
    async with open_bot_api() as api:
        yield api


@pytest.fixture
def gateway(api: BotApi, tmp_path: Path) -> Iterator[GatewayProcess]:
    """Not started yet. `launch` does not wait: that Telegram is asked for messages says that it is up."""
    process = GatewayProcess(
        tmp_path,
        {
            "HOLDFAST_MODEL__PROVIDER": "demo",
            "HOLDFAST_CHANNELS__TELEGRAM__TOKEN": api.token,
            "HOLDFAST_CHANNELS__TELEGRAM__API_BASE": api.url,
            "HOLDFAST_CHANNELS__TELEGRAM__ALLOW": f"{ANNA.id}, @Somebody_Else",
        },
    )
    yield process
    process.kill()


async def test_a_message_gets_its_answer(api: BotApi, gateway: GatewayProcess) -> None:
    gateway.launch()
    api.say("/start")
    await api.until(lambda: len(api.heard()) == 1)
    api.say("say hello")
    api.say("say good bye")
    await api.until(lambda: len(api.heard()) == 3 and not api.unconfirmed)
    greeting, hello, good_bye = api.heard()
    assert "/help" in greeting
    assert "hello" in hello
    assert "good bye" in good_bye
    assert gateway.terminate() == 0
    assert len(api.heard()) == 3
    assert "Traceback" not in gateway.output
    assert api.token not in gateway.output


async def test_strangers_are_told_so_and_not_answered(api: BotApi, gateway: GatewayProcess) -> None:
    gateway.launch()
    api.say("say hello", BEN)
    await api.until(lambda: bool(api.heard(BEN)) and not api.unconfirmed)
    (told,) = api.heard(BEN)
    assert str(BEN.id) in told
    assert gateway.terminate() == 0
    assert f'"user": {BEN.id}' in gateway.output


@pytest.mark.parametrize(
    "point",
    [
        "store.accept.before",
        "store.accept.after",
        "store.finish.before",
        "store.finish.after",
        "channel.telegram.send.before",
    ],
)
@pytest.mark.proves("invariant 12")
async def test_killed_in_the_middle_it_answers_once_after_a_restart(
    api: BotApi, gateway: GatewayProcess, point: str
) -> None:
    gateway.launch(HOLDFAST_FAILPOINT=f"{point}=kill")
    api.say("say one")
    await api.until(lambda: not gateway.alive)
    assert gateway.wait() == -9
    assert api.heard() == []
    gateway.launch()
    await api.until(lambda: len(api.heard()) == 1)
    api.say("say two")
    await api.until(lambda: len(api.heard()) == 2 and not api.unconfirmed)
    one, two = api.heard()
    assert "one" in one
    assert "two" in two


@pytest.mark.proves("invariant 12")
async def test_killed_right_after_a_send_it_repeats_that_answer_at_most_once(
    api: BotApi, gateway: GatewayProcess
) -> None:
    """Telegram takes no key by which it could know a message again, so this is the one place for a second copy."""
    gateway.launch(HOLDFAST_FAILPOINT="channel.telegram.send.after=kill")
    api.say("say one")
    await api.until(lambda: not gateway.alive)
    assert len(api.heard()) == 1
    gateway.wait()
    gateway.launch()
    api.say("say two")
    await api.until(lambda: any("two" in text for text in api.heard()))
    ones = [text for text in api.heard() if "one" in text]
    assert 1 <= len(ones) <= 2
    assert len(set(ones)) == 1


WAITS = """
import anyio
from pathlib import Path
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

@tool(toolset="test")
async def ponder(context: ToolContext) -> str:
    "Think until it is time to answer."
    Path("pondering").touch()
    while not Path("time to answer").exists():
        await anyio.sleep(0.01)
    return "forty-two"

TOOLS = (ponder,)
"""


@pytest.mark.proves("case 68")
async def test_told_to_stop_in_the_middle_of_a_turn_it_answers_before_it_leaves(
    api: BotApi, gateway: GatewayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools_that_wait.py").write_text(WAITS)
    monkeypatch.chdir(tmp_path)  # where it finds the module
    gateway.launch(HOLDFAST_TOOLS__MODULES="tools_that_wait")
    api.say("use ponder with {}")
    await api.until((tmp_path / "pondering").exists)
    os.kill(gateway.pid, signal.SIGTERM)
    await api.until(lambda: "the same again hurries" in gateway.output)
    assert api.heard() == []
    (tmp_path / "time to answer").touch()
    await api.until(lambda: not gateway.alive)
    assert gateway.wait() == 0
    (answer,) = api.heard()
    assert "forty-two" in answer


async def test_a_messenger_that_is_down_holds_up_nothing_and_loses_nothing(
    api: BotApi, gateway: GatewayProcess
) -> None:
    async with api.refusing():
        api.say("say one")
        gateway.launch()
        await api.until(lambda: gateway.ready and "can't be reached" in gateway.output)
    with api.failing(bad_gateway(), "sendMessage"):
        await api.until(lambda: len(api.made("sendMessage")) >= 2)
    api.say("say two")
    await api.until(lambda: len(api.heard()) == 2)
    one, two = api.heard()
    assert "one" in one
    assert "two" in two
    assert gateway.terminate() == 0
    assert gateway.output.count("Telegram can't be reached; trying again") == 1
