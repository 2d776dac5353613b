"""When conversations end by themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core.errors import SettingsError
from holdfast.core.keys import ChatKey
from holdfast.core.protocols import SessionRow, ToolContext
from holdfast.core.settings import ExpirySettings, Settings
from holdfast.gateway.expiry import NEVER, Policies, Policy, expire, parse
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import Gate, calls, echo, until
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.files import TOOLS
from holdfast.tools.function import FunctionTool

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "cutoff"),
    [
        ("none", NEVER),
        ("idle 90s", at("2026-03-10T11:58:30Z")),
        ("idle 12h", at("2026-03-10T00:00:00Z")),
        ("idle 2d", at("2026-03-08T12:00:00Z")),
        ("daily 4:00", at("2026-03-10T04:00:00+01:00")),
        ("daily 13:00", at("2026-03-10T13:00:00+01:00")),
        ("daily 13:01", at("2026-03-09T13:01:00+01:00")),
        ("idle 1h daily 4:00", at("2026-03-10T11:00:00Z")),
        ("idle 2d daily 4:00 force", at("2026-03-10T04:00:00+01:00")),
    ],
)
def test_a_policy_says_who_has_expired_by_now(text: str, cutoff: float) -> None:
    assert parse(text, BERLIN).cutoff(at("2026-03-10T12:00:00Z")) == cutoff


@pytest.mark.parametrize(
    ("now", "cutoff"),
    [
        ("2026-03-29T00:59:00Z", "2026-03-28T02:30:00+01:00"),
        ("2026-03-29T01:31:00Z", "2026-03-29T02:30:00+01:00"),  # the clocks skip this hour
        ("2026-10-25T02:00:00Z", "2026-10-25T02:30:00+02:00"),  # and pass this one twice
    ],
)
def test_a_day_on_which_the_clocks_change_ends_once(now: str, cutoff: str) -> None:
    assert parse("daily 2:30", BERLIN).cutoff(at(now)) == at(cutoff)


def test_the_machines_own_zone_is_used_where_none_is_named() -> None:
    now = at("2026-03-10T12:00:00Z")
    last = datetime.fromtimestamp(parse("daily 4:00").cutoff(now), UTC).astimezone()
    assert (last.hour, last.minute) == (4, 0)
    assert 0 <= now - last.timestamp() < 86400


def test_a_chats_rule_beats_its_channels_and_that_everyones() -> None:
    rules = ("telegram idle 12h", "telegram:4711 daily 4:00 Europe/Berlin", "api:a%20b none")
    policies = Policies(ExpirySettings(policy="idle 7d", rules=rules, zone="UTC"))
    assert policies.everyone == policies.of_channel("web") == Policy(idle=7 * 86400, zone=UTC)
    assert policies.of_channel("telegram") == Policy(idle=43200, zone=UTC)
    own = policies.of_chats[ChatKey("telegram", "4711")]
    assert (own.daily and own.daily.hour, own.zone) == (4, BERLIN)
    assert policies.of_chats[ChatKey("api", "a b")].cutoff(1e9) == NEVER


def test_an_unknown_zone_is_told_in_one_line() -> None:
    with pytest.raises(SettingsError, match=r"^\[expiry\].*\"Europe/Atlantis\".*Europe/Berlin"):
        Policies(ExpirySettings(zone="Europe/Atlantis"))


# ── the watcher ─────────────────────────────────────────────────────────────────────────────────

virtual = [pytest.mark.anyio, pytest.mark.virtual]


@asynccontextmanager
async def expiring(
    folder: Path, script: object, policy: str = "idle 1h", *rules: str, **more: object
) -> AsyncIterator[Bench]:
    settings = Settings(expiry=ExpirySettings(policy=policy, rules=rules))
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bench(folder, script, settings=settings, clock=clock, **more) as bench:  # type: ignore[arg-type]
        yield bench


def pass_time(bench: Bench, seconds: float) -> None:
    assert isinstance(bench.clock, VirtualClock)
    bench.clock.jump(seconds)


async def reason(bench: Bench) -> str:
    (row,) = await bench.store.sessions()
    return row.end_reason


@pytest.mark.anyio
@pytest.mark.virtual
@pytest.mark.parametrize("dormant", [False, True])
async def test_an_idle_conversation_ends_and_the_next_message_is_told(tmp_path: Path, dormant: bool) -> None:
    async with expiring(tmp_path, echo) as bench:
        await bench.say("first")
        if dormant:
            bench.gateway.residents.evict(next(iter(bench.gateway.residents)).session)
            await until(lambda: not bench.gateway.awake)
        pass_time(bench, 3599)
        assert await expire(bench.gateway) == 0
        pass_time(bench, 2)
        assert await expire(bench.gateway) == 1
        await until(lambda: not bench.gateway.awake)
        answer = await bench.say("second")
        assert "first" in answer.text
        assert "/resume" in answer.text
        assert answer.text.endswith("you said second")
        assert [m.text for m in await bench.said()] == ["second", "you said second"]
        assert (await bench.say("third")).text == "you said third"
        await bench.say("/resume")
        assert [m.text for m in await bench.said()] == ["first", "you said first"]


@pytest.mark.anyio
@pytest.mark.virtual
async def test_the_notice_survives_a_crash_before_the_answer(tmp_path: Path) -> None:
    async with expiring(tmp_path, echo) as bench:
        await bench.say("first")
        pass_time(bench, 3601)
        await expire(bench.gateway)
    gate = Gate()
    async with expiring(tmp_path, gate) as bench:
        await bench.send("second", id="m")
        await gate.has(waiting=1)
    async with expiring(tmp_path, echo) as bench:
        await until(lambda: not bench.gateway.unanswered)
        answer = await bench.store.answer_to("m")  # type: ignore[arg-type]
        assert answer
        assert "/resume" in answer.text
        assert (await bench.say("third")).text == "you said third"


@pytest.mark.anyio
@pytest.mark.virtual
async def test_nothing_expires_by_default(tmp_path: Path) -> None:
    async with expiring(tmp_path, echo, Settings().expiry.policy) as bench:
        await bench.say("first")
        pass_time(bench, 10 * 365 * 86400)
        assert await expire(bench.gateway) == 0


@pytest.mark.anyio
@pytest.mark.virtual
async def test_a_running_turn_and_waiting_mail_keep_a_conversation(tmp_path: Path) -> None:
    gate = Gate()
    async with expiring(tmp_path, gate) as bench:
        mails = [await bench.send("first"), await bench.send("second")]
        await gate.has(waiting=1)
        pass_time(bench, 7200)
        assert await expire(bench.gateway) == 0
        gate.open()
        for mail in mails:
            assert (await mail.answered()).outcome == "ok"
        assert await reason(bench) == ""


@pytest.mark.anyio
@pytest.mark.virtual
@pytest.mark.parametrize(("policy", "ends"), [("idle 1h", 0), ("idle 1h force", 1)])
async def test_what_still_runs_keeps_a_conversation_unless_the_policy_says_otherwise(
    tmp_path: Path, policy: str, ends: int
) -> None:
    running = 0

    @asynccontextmanager
    async def job() -> AsyncIterator[str]:
        nonlocal running
        running += 1
        try:
            yield "job"
        finally:
            running -= 1

    async def begin(context: ToolContext) -> str:
        """Begin something that goes on."""
        return str(await context.own("job", job))

    async def script(messages: object, emit: object) -> object:
        return calls(("begin", "{}")) if len(messages) == 1 else "begun"  # type: ignore[arg-type]

    tools = [*TOOLS, FunctionTool(begin, toolset="test", concurrent=False)]
    async with expiring(tmp_path, script, policy, tools=tools) as bench:
        await bench.say("begin")
        await anyio.sleep(3600)  # the agent leaves
        pass_time(bench, 7200)
        assert await expire(bench.gateway) == ends
        await until(lambda: running == 1 - ends)


@pytest.mark.anyio
@pytest.mark.virtual
async def test_each_channel_and_chat_has_its_own_time(tmp_path: Path) -> None:
    async with expiring(tmp_path, echo, "none", "test idle 1h", "test:patient idle 2h", "test:calm none") as bench:
        for chat in (CHAT, ChatKey("test", "patient"), ChatKey("test", "calm"), ChatKey("web", "x")):
            await bench.say("hello", chat)
        ended = []
        for _ in range(3):
            pass_time(bench, 3601)
            await expire(bench.gateway)
            ended.append({row.chat.chat for row in await bench.store.sessions() if row.ended})
        assert ended == [{"chat"}, {"chat", "patient"}, {"chat", "patient"}]


@pytest.mark.anyio
@pytest.mark.virtual
async def test_the_watcher_comes_round_by_itself_and_many_are_ended_page_by_page(tmp_path: Path) -> None:
    async with expiring(tmp_path, echo) as bench:
        for number in range(250):
            row = SessionRow(f"s{number}", ChatKey("test", str(number)), 1.0, 1.0 + number % 7, title="t")  # type: ignore[arg-type]
            await bench.store.begin(row)
        with capture_logs() as logs:
            await anyio.sleep(61)
        assert sum(entry["event"] == "a conversation ended" for entry in logs) == 250
