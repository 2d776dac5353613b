"""Random people, commands, evictions, failures and clocks, against a model of the ladder, on virtual time.

CI takes the same steps every time. To go further, `LADDER_EXAMPLES=2000 scripts/test tests/lifecycle/test_ladder.py`
takes as many walks, other ones each time, and prints the shortest that goes wrong.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.core import failpoints
from holdfast.core.errors import NotFound, StoreError
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, UserMessage
from holdfast.core.settings import (
    ExpirySettings,
    LimitSettings,
    ModelSettings,
    ResidentSettings,
    RetentionSettings,
    Settings,
    TurnSettings,
)
from holdfast.gateway.watch import relieve
from holdfast.testing.leaks import nothing_left
from holdfast.testing.virtual import run_virtual

from .ladder_chats import Chat, Sent
from .ladder_checks import check_anytime, check_quiet
from .ladder_model import ATTEMPTS, MAX_STEPS, STALL
from .ladder_world import LOST, WRITES, World

KEYS = [ChatKey("test", "a"), ChatKey("test", "b"), ChatKey("post", "c"), ChatKey("test", "d"), ChatKey("test", "e")]
SETTINGS = Settings(
    model=ModelSettings(attempts=ATTEMPTS),
    residents=ResidentSettings(limit=2, idle_ttl=600),
    turn=TurnSettings(max_steps=MAX_STEPS, stall=STALL),
    limits=LimitSettings(mailbox=3, turns=4),
    expiry=ExpirySettings(policy="idle 1d"),
    retention=RetentionSettings(mail=10**9),
)
UNTIL_QUIET = 8.0
"""How many seconds later nothing is under way any more, unless the store is broken."""
UNTIL_MENDED = 70.0
"""Likewise after it was."""


# ── steps ───────────────────────────────────────────────────────────────────────────────────────


class Say(NamedTuple):
    chat: int
    plan: str
    """What the language model does about it: words for tools, and one for the end."""
    watched: bool = False
    hang_up_after: int | None = None
    """The sender leaves after so many turns of the loop."""

    async def on(self, walk: "Walk") -> None:
        chat = walk.chats[self.chat]
        sent = Sent(walk.new_id(), chat, "")
        sent.text = f"{sent.id} {self.plan}"
        await walk.send(sent, watched=self.watched, hang_up_after=self.hang_up_after)


class Request(NamedTuple):
    """By a program, with its own history."""

    plan: str
    keyed: bool = False

    async def on(self, walk: "Walk") -> None:
        id = walk.new_id()
        chat = Chat(ChatKey("api", id), ephemeral=True)
        walk.world.ladder.chats[chat.key] = chat
        history = (UserMessage("earlier"), AssistantMessage("said"))
        await walk.send(Sent(id, chat, f"{id} {self.plan}", history, "key" if self.keyed else ""))


class Again(NamedTuple):
    """The same id once more, for the same message or another."""

    back: int
    other: bool = False

    async def on(self, walk: "Walk") -> None:
        known = list(walk.world.ladder.sent_by_id.values())
        if self.back < len(known):
            walk.world.say(known[-1 - self.back], fingerprint="another" if self.other else None)


class Command(NamedTuple):
    chat: int
    text: str
    hang_up_after: int | None = None

    async def on(self, walk: "Walk") -> None:
        sent = Sent(walk.new_id(), walk.chats[self.chat], self.text)
        await walk.send(sent, hang_up_after=self.hang_up_after)


class Gate(NamedTuple):
    """The language model takes its time in a chat, or comes to its end."""

    chat: int
    open: bool

    async def on(self, walk: "Walk") -> None:
        walk.set_gate(walk.chats[self.chat], open=self.open)


class Evict(NamedTuple):
    """An operator asks an agent to leave."""

    chat: int

    async def on(self, walk: "Walk") -> None:
        world, chat = walk.world, walk.chats[self.chat]
        awake = world.gateway.awake.get(chat.key)
        asked = bool(awake and awake.session and world.gateway.residents.evict(awake.session.id))
        assert not asked or not chat.turn, "an agent was evicted in the middle of a turn"
        if world.ladder.calm:
            assert asked == (chat in world.ladder.warm and not chat.turn)
            if asked:
                world.ladder.cool(chat)


class Pressure(NamedTuple):
    """Memory is short, by little or by much."""

    much: bool

    async def on(self, walk: "Walk") -> None:
        world = walk.world
        idle = {walk.chat_of(seat.session): seat.agent.context.size for seat in world.gateway.residents if seat.idle}
        asked = relieve(world.gateway, budget=1) if self.much else world.gateway.residents.relieve(1)
        assert asked == (len(idle) if self.much else min(1, len(idle)))
        if world.ladder.calm and idle:
            await asyncio.sleep(0.01)
            left = [chat for chat in idle if not walk.is_warm(chat)]
            assert len(left) == asked
            assert self.much or idle[left[0]] == max(idle.values()), "not the largest left"
            for chat in left:
                world.ladder.cool(chat)


class OperatorEnds(NamedTuple):
    chat: int

    async def on(self, walk: "Walk") -> None:
        world, chat = walk.world, walk.chats[self.chat]
        if talk := chat.open:
            world.people.start_soon(walk.end, chat, talk.id)


class OperatorStops(NamedTuple):
    back: int

    async def on(self, walk: "Walk") -> None:
        chats = [*walk.chats, *(chat for chat in walk.world.ladder.chats.values() if chat.ephemeral and chat.queue)]
        chat = chats[self.back % len(chats)]
        if chat.turn:
            chat.turn.stopped = True
        assert walk.world.gateway.stop(chat.key) == bool(chat.turn) or chat.ephemeral or not walk.world.ladder.calm


class Breaks(NamedTuple):
    """From now on, or just once, something can't be stored; or, without a name, no agent gets a lease."""

    write: str
    once_after: int | None = None

    async def on(self, walk: "Walk") -> None:
        walk.broken = True
        if not self.write:
            walk.world.lease_fails = True
        elif self.once_after is None:
            walk.world.broken.add(self.write)
        else:
            failpoints.arm(f"store.{self.write}.before=fail:{self.once_after}")


class Mended(NamedTuple):
    async def on(self, walk: "Walk") -> None:
        await walk.mend()


class Pace(NamedTuple):
    """How long the store and a lease take."""

    store: float
    lease: float

    async def on(self, walk: "Walk") -> None:
        walk.world.store_takes, walk.world.lease_takes = self.store, self.lease


class Change(NamedTuple):
    """Of settings."""

    limit: int
    idle_ttl: float
    turns: int

    async def on(self, walk: "Walk") -> None:
        world = walk.world
        residents = replace(world.settings.residents, limit=self.limit, idle_ttl=self.idle_ttl)
        limits = replace(world.settings.limits, turns=self.turns)
        world.settings = replace(world.settings, residents=residents, limits=limits)
        world.ladder.seats = self.limit
        world.gateway.change(world.settings)


class ExtraTool(NamedTuple):
    there: bool

    async def on(self, walk: "Walk") -> None:
        walk.world.extra_tool = self.there


class Wait(NamedTuple):
    seconds: float

    async def on(self, walk: "Walk") -> None:
        await anyio.sleep(self.seconds)


class Jump(NamedTuple):
    """The clock on the wall is set forward or back."""

    seconds: float

    async def on(self, walk: "Walk") -> None:
        walk.world.clock.jump(self.seconds)


class Restart(NamedTuple):
    drain: bool
    """A shutdown; else a crash."""
    open_gates: bool = False
    """What runs comes to its end meanwhile."""

    async def on(self, walk: "Walk") -> None:
        if self.drain:
            draining = asyncio.ensure_future(walk.world.gateway.drain(20))
            await anyio.sleep(1)
            for chat in list(walk.world.closed_gates) if self.open_gates else ():
                walk.set_gate(chat, open=True)
            await draining
            cut = [chat.turn.sent.text for chat in walk.world.ladder.chats.values() if chat.turn]
            assert not cut or walk.broken or walk.world.closed_gates, f"{cut} were cut off by a shutdown"


Action = (
    Say | Request | Again | Command | Gate | Evict | Pressure | OperatorEnds | OperatorStops
    | Breaks | Mended | Pace | Change | ExtraTool | Wait | Jump | Restart
)  # fmt: skip


class Step(NamedTuple):
    do: Action
    then: float | None = None
    """How many seconds later the next one follows; none: once all is quiet."""


# ── walks ───────────────────────────────────────────────────────────────────────────────────────


class Walk:
    """Takes steps, and looks after each whether all is as it should be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chats = [Chat(key) for key in KEYS]
        world.ladder.chats.update({chat.key: chat for chat in self.chats})
        self.broken = False
        self.quiet = False
        self._ids = 0

    async def take(self, steps: Sequence[Step]) -> None:
        left, ended = deque(steps), False
        while not ended:
            self.quiet = False
            async with self.world.open_process():
                await self._settle()
                while left:
                    step = left.popleft()
                    await self._step(step)
                    if isinstance(step.do, Restart):
                        break
                else:
                    await self._come_to_an_end()
                    ended = True
            self._check_nothing_is_open()
        async with self.world.open_process():
            await self._settle()
            assert not any(chat.queue for chat in self.world.ladder.chats.values())
            assert not self.world.gateway.awake
        self._check_nothing_is_open()

    async def _step(self, step: Step) -> None:
        ladder = self.world.ladder
        ladder.calm = self.quiet and not self.broken
        if not ladder.calm:
            ladder.disturb()
        self.quiet = False
        await step.do.on(self)
        if isinstance(step.do, Restart):
            await self.mend(wait=False)
        elif step.then is None:
            await self._settle()
        else:
            await anyio.sleep(step.then)
            check_anytime(self.world)

    async def _settle(self) -> None:
        await anyio.sleep(UNTIL_QUIET)
        if self.broken:
            check_anytime(self.world)
            return
        # Someone looks now and then for what has expired.
        while self.world.time() - self.world.store_used < 1:  # noqa: ASYNC110 - nobody rings a bell when it is over
            await anyio.sleep(0.5)
        check_quiet(self.world, exact=self.world.ladder.calm)
        self.quiet = True

    async def _come_to_an_end(self) -> None:
        self.world.ladder.disturb()
        await self.mend()
        for chat in list(self.world.closed_gates):
            self.set_gate(chat, open=True)
        await anyio.sleep(UNTIL_MENDED)
        await self._settle()
        assert not any(chat.queue for chat in self.world.ladder.chats.values())

    def _check_nothing_is_open(self) -> None:
        if self.world.wrong:
            raise self.world.wrong[0]
        assert not self.world.things
        assert not self.world.leases
        assert not any(self.world.senders.values())

    def new_id(self) -> str:
        self._ids += 1
        return f"m{self._ids}"

    async def send(self, sent: Sent, *, watched: bool = False, hang_up_after: int | None = None) -> None:
        scope = self.world.say(sent, watched=watched)
        if hang_up_after is not None:
            sent.hung_up = True
            for _ in range(hang_up_after):
                await asyncio.sleep(0)
            scope.cancel()

    def set_gate(self, chat: Chat, *, open: bool) -> None:
        if not open:
            self.world.closed_gates.setdefault(chat, asyncio.Event())
        elif gate := self.world.closed_gates.pop(chat, None):
            gate.set()

    async def end(self, chat: Chat, session: str) -> None:
        """As an operator does."""
        chat.operators_ends.append(session)
        try:
            await self.world.gateway.end(session)
        except NotFound:
            assert not self.world.ladder.calm
        except StoreError:
            assert self.broken
        finally:
            chat.operators_ends.remove(session)

    async def mend(self, *, wait: bool = True) -> None:
        failpoints.disarm()
        self.world.broken.clear()
        self.world.lease_fails = False
        if self.broken and wait:
            await anyio.sleep(UNTIL_MENDED)
        self.broken = False

    def chat_of(self, session: str) -> Chat:
        found = [
            awake.key for awake in self.world.gateway.awake.values() if awake.session and awake.session.id == session
        ]
        return self.world.ladder.chats[found[0]]

    def is_warm(self, chat: Chat) -> bool:
        awake = self.world.gateway.awake.get(chat.key)
        return bool(awake and awake.session and awake.session.agent)


# ── what is drawn ───────────────────────────────────────────────────────────────────────────────

MOVES = ["own:a", "own:a", "own:b", "own:slow", "own:failing", "own:hanging", "both", "plain", "wait", "refuse", "bug"]
ENDS = ["say", "words", "snap", "retry", "empty", "oops", *LOST]
COMMANDS = [
    *("/new", "/new", "/stop", "/stop", "/undo", "/undo 2", "/resume", "/resume", "/status"),
    *("/model other", "/model third", "/model scripted", "/reasoning high", "/reasoning default"),
]

whom = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, 3, 4])
plans = st.one_of(
    st.just("say"),
    st.sampled_from(ENDS),
    st.builds(
        lambda moves, end: " ".join([*moves, end]),
        st.lists(st.sampled_from(MOVES), min_size=1, max_size=MAX_STEPS),
        st.sampled_from(["say", *ENDS]),
    ),
)
ticks = st.integers(0, 8)
some_time = st.sampled_from([None, None, None, None, 0.0, 0.0, 0.02, 0.3])
writes = st.sampled_from(sorted(WRITES | {""}))

nobody = st.none()
says = st.builds(Say, whom, plans, st.booleans(), nobody)
commands = st.builds(Command, whom, st.sampled_from(COMMANDS), nobody)
gates = st.builds(Gate, whom, st.booleans())
others = st.one_of(
    st.builds(Say, whom, plans, st.booleans(), ticks),
    st.builds(Command, whom, st.sampled_from(COMMANDS), ticks),
    st.builds(Request, plans, st.booleans()),
    st.builds(Again, st.integers(0, 6), st.sampled_from([False, False, True])),
    st.builds(Evict, whom),
    st.builds(Pressure, st.booleans()),
    st.builds(OperatorEnds, whom),
    st.builds(OperatorStops, st.integers(0, 6)),
    st.builds(Breaks, writes, nobody),
    st.builds(Breaks, writes, st.integers(1, 3)),
    st.just(Mended()),
    st.builds(Pace, st.sampled_from([0.0, 0.0, 0.05]), st.sampled_from([0.0, 0.0, 0.5])),
    st.builds(Change, st.integers(1, 3), st.sampled_from([60.0, 600.0, 3600.0]), st.integers(2, 6)),
    st.builds(ExtraTool, st.booleans()),
    st.builds(Wait, st.sampled_from([61.0, 700.0, 2000.0])),
    st.builds(Jump, st.sampled_from([90_000.0, 90_000.0, 3600.0, -3600.0, -90_000.0])),
    st.builds(Restart, st.booleans(), st.booleans()),
)
steps = st.builds(
    Step, st.sampled_from([*[says] * 4, *[commands] * 3, gates, *[others] * 4]).flatmap(lambda s: s), some_time
)
walks = st.lists(st.sampled_from([st.none(), *[steps] * 12]).flatmap(lambda s: s), min_size=40, max_size=60)
"""What is not there shows how to make a walk shorter."""

EXAMPLES = int(os.environ.get("LADDER_EXAMPLES", "0"))
EXPECTED_ONLY_AFTER_A_FAILURE = {"a conversation broke", "a command broke"}
NEVER_EXPECTED = {"hosting a chat broke", "a channel broke", "a channel broke while sending"}


def walk(steps: list[Step]) -> None:
    async def take() -> int:
        with TemporaryDirectory() as folder:
            world = World(Path(folder), SETTINGS)
            await Walk(world).take(steps)
            return world.ladder.failures

    with capture_logs() as logs, nothing_left():
        try:
            failures = run_virtual(take)
        finally:
            failpoints.disarm()
    told = {entry["event"] for entry in logs}
    assert not told & NEVER_EXPECTED
    assert failures or not told & EXPECTED_ONLY_AFTER_A_FAILURE


@pytest.mark.timeout(0 if EXAMPLES else 120)
@pytest.mark.proves("invariant 5", "invariant 12")
def test_whatever_happens_in_whatever_order_the_ladder_holds() -> None:
    taken = 0

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        # Looking for the shortest way takes minutes: that is for those who went further, not for CI.
        phases=list(Phase) if EXAMPLES else [Phase.explicit, Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(walks)
    def takes(steps: list[Step | None]) -> None:
        nonlocal taken
        way = [step for step in steps if step]
        taken += len(way)
        note("\n".join(map(repr, way)))
        walk(way)

    takes()
    assert taken >= 2000
