"""More than there is room for, and turns in which nothing happens: both are answered, and nobody else suffers."""

import resource
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core.events import Text
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, ToolMessage
from holdfast.core.protocols import ToolContext
from holdfast.core.settings import LimitSettings, ServerSettings, Settings, TurnSettings
from holdfast.testing.processes import GatewayProcess
from holdfast.testing.scripted import Emit, Gate, calls, echo, until
from holdfast.tools.function import tool

from .events import agent_of, awake, open_small
from .web import asking, open_served

pytestmark = pytest.mark.anyio

STALL = 1800.0
PATH = "/v1/chat/completions"


# ── the one past a limit ────────────────────────────────────────────────────────────────────────

FULL = {
    "mailbox": (LimitSettings(mailbox=2), ["a", "a", "a"], "a"),
    "inbox": (LimitSettings(inbox=3), ["a", "b", "b"], "c"),
    "turns": (LimitSettings(turns=2), ["a", "b"], "c"),
}
"""With these limits, messages in these chats fill it; and the next one is of this chat."""


@pytest.mark.proves("invariant 20")
@pytest.mark.parametrize("limit", FULL)
async def test_past_a_limit_the_answer_is_429_at_once_and_nothing_is_kept(tmp_path: Path, limit: str) -> None:
    limits, filling, late = FULL[limit]
    gate = Gate()
    async with open_served(tmp_path, gate, Settings(limits=limits)) as served, served.client() as client:

        async def ask(chat: str) -> None:
            async with client.post(PATH, **asking("hello", chat)) as response:
                assert response.status == 200

        async with anyio.create_task_group() as group:
            for number, chat in enumerate(filling, 1):
                group.start_soon(ask, chat)
                await gate.has(waiting=len(set(filling[:number])))
            await until(lambda: served.bench.gateway.unanswered == len(filling))
            waiting, awake = await served.bench.store.waiting(), set(served.bench.gateway.awake)
            for _ in range(50):
                with anyio.fail_after(1):
                    async with client.post(PATH, **asking("too much", late)) as response:
                        assert (response.status, (await response.json())["error"]["type"]) == (429, "rate_limit_error")
                        assert int(response.headers["Retry-After"]) > 0
            assert await served.bench.store.waiting() == waiting
            assert set(served.bench.gateway.awake) == awake
            gate.open()
        await ask(late)  # there is room again


@pytest.mark.proves("invariant 20")
async def test_past_the_limit_of_connections_the_answer_is_503_at_once_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    settings = Settings(server=ServerSettings(connections=2))
    async with open_served(tmp_path, echo, settings) as served, served.client() as first, served.client() as second:
        for client in (first, second):
            async with client.get("/api/status") as response:
                assert response.status == 200
        for _ in range(20):
            async with served.client() as third, third.get("/api/status") as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) > 0
                assert response.headers["Connection"] == "close"
        for client in (first, second):
            async with client.post(PATH, **asking("hello")) as response:
                assert response.status == 200
    assert served.bench.gateway.tally.outcomes == {"ok": 2}


@pytest.mark.virtual
@pytest.mark.proves("invariant 20")
async def test_what_an_earlier_process_left_does_not_exceed_the_limit_of_turns(tmp_path: Path) -> None:
    chats = [ChatKey("test", str(number)) for number in range(9)]
    async with open_small(tmp_path, Gate()) as bench:
        for chat in chats:
            await bench.send("hello", chat)
    await anyio.sleep(1)
    gate = Gate()
    async with open_small(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=3))) as bench:
        await gate.has(waiting=3)
        await anyio.sleep(60)
        assert (gate.inside, len(await bench.store.waiting())) == (3, 9)
        gate.open()
        await until(lambda: not bench.gateway.unanswered)
        assert (gate.asked, gate.most_inside) == (9, 3)


@pytest.mark.proves("invariant 20")
def test_the_soft_limit_of_descriptors_is_raised_at_the_start(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gateway = GatewayProcess(tmp_path)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            gateway.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        (line,) = (line for line in Path(f"/proc/{gateway.pid}/limits").read_text().splitlines() if "files" in line)
        assert line.split()[3:5] == [str(hard), str(hard)]
        assert hard > 256
    finally:
        gateway.kill()


@pytest.mark.virtual
@pytest.mark.proves("case 65")
async def test_twenty_four_turns_at_once_on_a_slow_model_take_as_long_as_one(tmp_path: Path) -> None:
    async def slow(messages: Sequence[Message], emit: Emit) -> str:
        await anyio.sleep(10)
        return await echo(messages, emit)

    async with open_small(tmp_path, slow) as bench:
        began = anyio.current_time()
        mails = [await bench.send("hello", ChatKey("test", str(number))) for number in range(24)]
        assert {(await mail.answered()).outcome for mail in mails} == {"ok"}
        assert anyio.current_time() - began == pytest.approx(10, abs=0.01)


# ── turns in which nothing happens ──────────────────────────────────────────────────────────────


@tool(toolset="test")
async def hang(context: ToolContext) -> str:
    """Never come back."""
    await anyio.sleep_forever()
    return ""


async def stuck(messages: Sequence[Message], emit: Emit) -> AssistantMessage | str:
    last = messages[-1]
    if last.text == "hang in a tool":
        return calls(("hang", "{}"))
    if last.text == "hang":
        await anyio.sleep_forever()
    return "what now?" if isinstance(last, ToolMessage) else await echo(messages, emit)


@pytest.mark.virtual
@pytest.mark.proves("invariant 19")
@pytest.mark.parametrize("text", ["hang", "hang in a tool"])
async def test_a_turn_without_any_event_is_ended_and_its_session_answers_again(tmp_path: Path, text: str) -> None:
    assert TurnSettings().stall == STALL
    settings = Settings(limits=LimitSettings(turns=1))
    async with open_small(tmp_path, stuck, settings=settings, tools=[hang]) as bench:
        mail = await bench.send(text, watched=True)
        after = await bench.send("are you there?")
        await anyio.sleep(STALL - 1)
        before = agent_of(bench)
        assert not mail.done
        with capture_logs() as logs, anyio.fail_after(10):
            answer = await mail.answered()
        assert answer.outcome == "stopped"
        assert "nothing happened for too long" in answer.text  # they are told
        assert [line["log_level"] for line in logs] == ["error"]
        chat = awake(bench)
        assert chat
        assert chat.turn is None or chat.turn.mail is after
        with anyio.fail_after(1):
            assert (await after.answered()).text == "you said are you there?"
        assert agent_of(bench) is before
        assert chat.turn is None
        assert (await bench.say("hello", ChatKey("test", "another"))).outcome == "ok"  # its slot is free as well


@pytest.mark.virtual
@pytest.mark.proves("invariant 19")
async def test_a_turn_in_which_something_happens_may_last(tmp_path: Path) -> None:
    async def talkative(messages: Sequence[Message], emit: Emit) -> str:
        for number in range(10):
            await anyio.sleep(STALL - 60)
            emit(Text(f"{number} "))
        return "done"

    async with open_small(tmp_path, talkative) as bench:
        began = anyio.current_time()
        assert (await (await bench.send("go on", watched=True)).answered()).text == "done"
        assert anyio.current_time() - began > 9 * STALL


@pytest.mark.virtual
@pytest.mark.proves("invariant 19")
async def test_another_stall_holds_for_turns_that_run(tmp_path: Path) -> None:
    async with open_small(tmp_path, stuck) as bench:
        mail = await bench.send("hang")
        await anyio.sleep(100)
        bench.gateway.change(Settings(turn=TurnSettings(stall=60)))
        await anyio.sleep(6)
        assert mail.done  # at the watcher's next look
        assert (await bench.say("and now?")).outcome == "ok"
