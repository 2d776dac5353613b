"""What is over is forgotten, as the settings say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core import failpoints
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.settings import RetentionSettings, Settings
from holdfast.gateway.upkeep import FORGET_EVERY
from holdfast.testing.gateways import CHAT, Bench, open_bench
from holdfast.testing.scripted import Gate, echo
from holdfast.testing.virtual import VirtualClock

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]

DAY = 86400.0


@asynccontextmanager
async def keeping(folder: Path, script: object, **retention: float) -> AsyncIterator[Bench]:
    settings = Settings(retention=RetentionSettings(**retention))
    clock = VirtualClock(asyncio.get_running_loop())
    async with open_bench(folder, script, settings=settings, clock=clock) as bench:  # type: ignore[arg-type]
        yield bench


async def days_later(bench: Bench, days: float) -> None:
    assert isinstance(bench.clock, VirtualClock)
    bench.clock.jump(days * DAY)
    await anyio.sleep(FORGET_EVERY + 60)


async def test_mail_is_remembered_for_its_time_and_then_forgotten(tmp_path: Path) -> None:
    async with keeping(tmp_path, echo, mail=2 * DAY) as bench:
        mail = await bench.send("hello", id="m")
        await mail.answered()
        await days_later(bench, 1)
        assert await bench.store.answer_to(MailId("m"))
        await days_later(bench, 2)
        assert await bench.store.answer_to(MailId("m")) is None
        assert [m.text for m in await bench.said()] == ["hello", "you said hello"]


async def test_mail_that_waits_is_never_forgotten(tmp_path: Path) -> None:
    gate = Gate()
    async with keeping(tmp_path, gate, mail=60) as bench:
        mail = await bench.send("hello", id="m")
        await gate.has(waiting=1)
        await days_later(bench, 9)
        assert [waiting.id for waiting in await bench.store.waiting()] == ["m"]
        gate.open()
        assert (await mail.answered()).outcome in ("ok", "stopped")


async def test_ended_conversations_go_with_their_folders_and_open_ones_stay(tmp_path: Path) -> None:
    async with keeping(tmp_path, echo, conversations=30 * DAY) as bench:
        for chat in (CHAT, ChatKey("test", "other")):
            await bench.say("hello", chat)
        rows = {row.chat: row for row in await bench.store.sessions()}
        for row in rows.values():
            (tmp_path / "sessions" / row.id).mkdir(parents=True)
            (tmp_path / "sessions" / row.id / "notes.txt").write_text("kept?")
        await bench.say("/new")
        await days_later(bench, 29)
        assert len(await bench.store.sessions()) == 2
        await days_later(bench, 2)
        assert [row.chat.chat for row in await bench.store.sessions()] == ["other"]
        assert [path.name for path in (tmp_path / "sessions").iterdir()] == [rows[ChatKey("test", "other")].id]
        assert await bench.store.sessions(search="hello")


async def test_a_folder_can_go_before_its_conversation(tmp_path: Path) -> None:
    async with keeping(tmp_path, echo, outputs=DAY) as bench:
        await bench.say("hello")
        (row,) = await bench.store.sessions()
        folder = tmp_path / "sessions" / row.id
        folder.mkdir(parents=True)
        await bench.say("/new")
        await days_later(bench, 2)
        assert not folder.exists()
        assert len(await bench.store.sessions()) == 1


async def test_nothing_that_people_said_is_forgotten_by_default(tmp_path: Path) -> None:
    async with keeping(tmp_path, echo) as bench:
        await bench.say("hello")
        (row,) = await bench.store.sessions()
        (tmp_path / "sessions" / row.id).mkdir(parents=True)
        await bench.say("/new")
        await days_later(bench, 3650)
        assert len(await bench.store.sessions()) == 1
        assert (tmp_path / "sessions" / row.id).exists()


async def test_a_store_that_fails_is_tried_again_at_the_next_round(tmp_path: Path) -> None:
    async with keeping(tmp_path, echo, mail=60) as bench:
        await (await bench.send("hello", id="m")).answered()
        failpoints.arm("store.prune_mail.before=fail:1")
        try:
            with capture_logs() as logs:
                await days_later(bench, 1)
        finally:
            failpoints.disarm()
        assert any("kept for now" in entry["event"] for entry in logs)
        await days_later(bench, 1)
        assert await bench.store.answer_to(MailId("m")) is None
