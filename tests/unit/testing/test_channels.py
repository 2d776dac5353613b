"""The contract suite for channels lets a sound one pass, and no other."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from holdfast.core.errors import HoldfastError, StoreError, TryLater
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Answer, Incoming
from holdfast.core.protocols import Accept, Channel
from holdfast.testing import channels
from holdfast.testing.channels import check_channel

pytestmark = pytest.mark.anyio


class Pigeons:
    """A messenger in memory. `fault` is what its channels do wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.letters: list[tuple[int, str]] = []
        self.arrived: list[str] = []
        self.is_down = False
        self.is_gone = False
        self.written = 0
        self.offered = 0

    @asynccontextmanager
    async def _opened(self, allow: bool) -> AsyncIterator[Channel]:
        yield Loft(self, allow)

    def open_channel(self, *, allow: bool) -> AbstractAsyncContextManager[Channel]:
        return self._opened(allow)

    def say(self, text: str) -> None:
        self.written += 1
        self.letters.append((self.written, text))

    def heard(self) -> list[str]:
        return self.arrived

    def unacknowledged(self) -> int:
        return len(self.letters)

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.is_down = True
        yield
        self.is_down = False

    @asynccontextmanager
    async def gone(self) -> AsyncIterator[None]:
        self.is_gone = True
        yield
        self.is_gone = False


class Loft:
    """A channel that does everything as it should, but for its messenger's fault."""

    name = "pigeons"

    def __init__(self, pigeons: Pigeons, allow: bool) -> None:
        self._pigeons = pigeons
        self._fault = pigeons.fault
        self._allow = allow or self._fault == "lets everyone in"

    async def receive(self, accept: Accept) -> None:
        while True:
            await anyio.sleep(0.001)
            if self._pigeons.is_down:
                if self._fault == "gives up in an outage":
                    return
            elif self._pigeons.letters:
                await self._take(accept)

    async def _take(self, accept: Accept) -> None:
        letters = self._pigeons.letters
        letter = letters[-1] if self._fault == "takes the last first" else letters[0]
        if self._fault == "acknowledges too early":
            letters.remove(letter)
        if self._allow:
            try:
                await accept(self._incoming(*letter))
            except StoreError:
                if self._fault != "loses what can't be stored":
                    return
            except TryLater as reason:
                if self._fault != "is silent when there is too much":
                    self._pigeons.arrived.append(str(reason))
        if letter in letters and self._fault != "never acknowledges":
            letters.remove(letter)

    def _incoming(self, number: int, text: str) -> Incoming:
        self._pigeons.offered += 1
        number = self._pigeons.offered if self._fault == "makes up new ids" else number
        channel = "doves" if self._fault == "has two names" else self.name
        return Incoming(MailId(f"pigeon:{number}"), ChatKey(channel, "1"), text, 1.0, "Anna")

    async def send(self, answer: Answer) -> None:
        pigeons = self._pigeons
        if pigeons.is_down:
            if self._fault == "repeats what it kept in an outage":
                pigeons.arrived.append(answer.text)
            if self._fault == "drops answers in an outage":
                return
            raise TryLater("no pigeon flies")
        if pigeons.is_gone:
            raise TryLater("nobody there") if self._fault == "insists for ever" else HoldfastError("nobody there")
        lines = answer.text.split("\n")  # no pigeon carries more than one
        pigeons.arrived += lines[:1] if self._fault == "cuts long answers off" else lines


async def test_a_sound_channel_passes() -> None:
    await check_channel(Pigeons())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("has two names", "begins with the channel's name"),
        ("takes the last first", "in the order in which they were sent"),
        ("acknowledges too early", "not be acknowledged before it is stored"),
        ("never acknowledges", "not as many taken"),
        ("makes up new ids", "must have the same id"),
        ("loses what can't be stored", "must be offered again"),
        ("is silent when there is too much", "must be told"),
        ("lets everyone in", "must let nobody in"),
        ("gives up in an outage", "until it is cancelled"),
        ("cuts long answers off", "must arrive whole"),
        ("drops answers in an outage", "must raise TryLater"),
        ("repeats what it kept in an outage", "must arrive, once"),
        ("insists for ever", "must not raise TryLater"),
    ],
)
async def test_a_channel_with_a_fault_is_told_which(fault: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PATIENCE", 0.3)
    with pytest.raises(AssertionError, match=told):
        await check_channel(Pigeons(fault))
