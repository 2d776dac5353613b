"""What is to happen at a conversation's end happens once, whatever comes in between."""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast.core.protocols import SessionRow
from holdfast.gateway.endings import LONGEST
from holdfast.testing.gateways import open_bench
from holdfast.testing.scripted import echo, until

pytestmark = [pytest.mark.anyio, pytest.mark.virtual]


class Witness:
    """Sees conversations end."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, row: SessionRow) -> None:
        self.seen.append(row.id)


async def test_every_conversation_that_ends_is_seen_to_once(tmp_path: Path) -> None:
    witness = Witness()
    async with open_bench(tmp_path, echo, at_end=[witness]) as bench:
        for text in ("one", "two"):
            await bench.say(text)
            await bench.say("/new")
        await bench.say("/new")  # there is none to end
        ended = {row.id for row in await bench.store.sessions() if row.ended}
        await until(lambda: set(witness.seen) == ended)
        assert await bench.store.unconcluded() == []
    async with open_bench(tmp_path, echo, at_end=[witness]):
        await anyio.sleep(1)
    assert len(witness.seen) == 2


async def test_one_that_was_cut_short_is_seen_to_at_the_next_start(tmp_path: Path) -> None:
    begun = anyio.Event()

    async def slow(row: SessionRow) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with open_bench(tmp_path, echo, at_end=[slow]) as bench:
        await bench.say("one")
        assert (await bench.say("/new")).outcome == "ok"  # nobody waits for it
        await begun.wait()
    witness = Witness()
    async with open_bench(tmp_path, echo, at_end=[witness]) as bench:
        await until(lambda: len(witness.seen) == 1)
        await until(lambda: True)
    async with open_bench(tmp_path, echo, at_end=[witness]):
        await anyio.sleep(1)
    assert len(witness.seen) == 1


async def test_one_that_fails_or_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    async def fails(row: SessionRow) -> None:
        raise ValueError("planted")

    async def hangs(row: SessionRow) -> None:
        await anyio.sleep_forever()

    witness = Witness()
    with capture_logs() as logs:
        async with open_bench(tmp_path, echo, at_end=[fails, hangs, witness]) as bench:
            await bench.say("one")
            await bench.say("/new")
            await anyio.sleep(LONGEST + 1)
            assert len(witness.seen) == 1
            assert await bench.store.unconcluded() == []
    assert sum("conversation's end failed" in entry["event"] for entry in logs) == 2
