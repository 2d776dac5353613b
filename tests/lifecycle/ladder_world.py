"""The real gateway beside the model of the ladder: whatever happens to the one is told to the other."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from holdfast.agent.agent import ModelConfig
from holdfast.core import failpoints
from holdfast.core.errors import AskUser, DuplicateMail, FallBack, GiveUp, RetryModel, StoreError, ToolFailed, TryLater
from holdfast.core.events import Text
from holdfast.core.keys import MailId
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, AssistantMessage, Incoming, Message, ToolCall, ToolMessage, UserMessage
from holdfast.core.protocols import ModelAnswer, ModelRequest, SessionRow, Store, ToolContext
from holdfast.core.settings import Settings
from holdfast.gateway import Gateway, open_gateway
from holdfast.gateway.mail import Mail
from holdfast.storage import open_store
from holdfast.testing.scripted import Emit, ScriptedModel
from holdfast.testing.virtual import VirtualClock
from holdfast.tools.catalogue import Catalogue
from holdfast.tools.function import FunctionTool

from .ladder_chats import MODEL, Chat, Sent
from .ladder_model import ATTEMPTS, Ladder

WRITES = {"accept", "begin", "control", "append", "finish", "undo", "end", "resume", "conclude", "sent"}
LOST = {"giveup": GiveUp, "ask": AskUser, "fallback": FallBack, "down": RetryModel, "snapped": GiveUp}
"""How the language model fails for good."""
BUG = "use broke unexpectedly; the operator's log has the details. Try another way."

_decode = msgspec.json.Decoder(Message).decode


class World:
    """What outlives a process: its files, its people, the language model, the clock on the wall."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self.folder = folder
        self.settings = settings
        self.clock = VirtualClock(loop)
        self.ladder = Ladder(self.clock.now, loop.time, settings.residents.limit)
        self.wrong: list[BaseException] = []
        """What was not as the model says."""
        self.starts = 0
        self.gateway: Gateway
        self.db: sqlite3.Connection
        self.failures_before = 0
        """How often something had failed when this process began."""
        self.closed_gates: dict[Chat, asyncio.Event] = {}
        """Chats whose language model does not come to its end, and what they wait for."""
        self.broken: set[str] = set()
        """The writes that fail for now."""
        self.store_takes = 0.0
        self.store_used = 0.0
        """When it was last asked for something, by whomever."""
        self.lease_takes = 0.0
        self.lease_fails = False
        self.extra_tool = True
        self.leases = 0
        self.things: dict[int, Chat] = {}
        """What tools have opened and nobody has closed."""
        self.opened = 0
        self.posted: list[str] = []
        """The mails whose answers were delivered, in order."""
        self.senders: dict[Sent, int] = {}
        """Who still waits for an answer."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def see(self, what: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Tell the model; its objection is raised later, where no gateway catches it."""
        try:
            what(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - kept
            self.wrong.append(error)

    # ── a process ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def open_process(self) -> AsyncIterator[Gateway]:
        """Leaving it is a crash, but for what has to be closed in the test's own process."""
        self.starts += 1
        self.failures_before = self.ladder.failures
        config = ModelConfig("scripted", MODEL, "", "scripted", "", self._lease)
        tools = [
            FunctionTool(self._use_tool(), toolset="test", concurrent=True),
            FunctionTool(_extra, toolset="test", concurrent=True, available=lambda: self.extra_tool),
        ]
        path = self.folder / "holdfast.db"
        async with (
            anyio.create_task_group() as self.people,
            open_store(path, ledger=Ledger(), clock=self.clock, inline=True) as store,
            open_gateway(
                settings=self.settings,
                store=ObservedStore(store, self),  # type: ignore[arg-type]
                model=config,
                catalogue=Catalogue(tools),
                channels={"post": Post(self)},
                sessions_folder=self.folder / "sessions",
                clock=self.clock,
                chance=random.Random(self.starts),
                at_end=[self._conclude],
            ) as self.gateway,
        ):
            with closing(sqlite3.connect(path)) as self.db:
                yield self.gateway
            self.ladder.leaving = True
        self.ladder.restart()

    async def _conclude(self, row: SessionRow) -> None:
        def concluding() -> None:
            talk = self.ladder.talk(row.id)
            assert talk
            assert not talk.concluded, f"{talk.title!r} was concluded twice"

        self.see(concluding)

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def say(self, sent: Sent, *, watched: bool = False, fingerprint: str | None = None) -> anyio.CancelScope:
        """Send a message, for the first time or again; cancelling the scope is hanging up."""
        scope = anyio.CancelScope()
        sent.times += 1
        self.ladder.sent_by_id[sent.id] = sent
        mail = Incoming(
            MailId(sent.id),
            sent.chat.key,
            sent.text,
            self.clock.now(),
            fingerprint=sent.fingerprint if fingerprint is None else fingerprint,
            history=sent.history,
        )
        self.people.start_soon(self._send, sent, mail, watched, scope)
        return scope

    async def _send(self, sent: Sent, incoming: Incoming, watched: bool, scope: anyio.CancelScope) -> None:
        with scope:
            before, calm, fails = sent.taken, self.ladder.calm, self._refuses(sent)
            try:
                mail = await self.gateway.accept(incoming, watched=watched)
            except (TryLater, DuplicateMail, StoreError) as error:
                self.see(self._refused, sent, incoming, error, before, calm and not fails)
                return
            self.see(self._taken, sent, incoming, mail, calm and fails)
            self.senders[sent] = self.senders.get(sent, 0) + 1
            try:
                answer = await mail.answered()
                self.see(self._heard, sent, answer)
            except (TryLater, StoreError):
                pass  # it is still in the inbox
            finally:
                self.senders[sent] -= 1

    def _refuses(self, sent: Sent) -> bool:
        """Whether there is too much for this one."""
        chat, limits = sent.chat, self.settings.limits
        busy = sum(bool(other.queue) for other in self.ladder.chats.values())
        if sent.command:
            return False
        return len(chat.waiting) >= limits.mailbox or (busy >= limits.turns and not chat.queue)

    def _refused(self, sent: Sent, mail: Incoming, error: Exception, before: int, surprising: bool) -> None:
        if isinstance(error, DuplicateMail):
            assert mail.fingerprint != sent.fingerprint
            return
        assert sent.taken == before or sent.times > 1, f"{sent.text!r} was taken and refused: {error}"
        if isinstance(error, StoreError):
            assert self.ladder.failures, f"{sent.text!r} was refused without a failure: {error}"
        else:
            assert not surprising or self.ladder.leaving, f"{sent.text!r} was refused: {error}"

    def _taken(self, sent: Sent, mail: Incoming, found: Mail, surprising: bool) -> None:
        assert sent.taken, f"{sent.text!r} was taken and never stored"
        assert found.incoming.id == sent.id
        assert mail.fingerprint == sent.fingerprint, "one id stands for two messages"
        assert not surprising or found.answer, f"{sent.text!r} was taken, and there was too much already"
        if found.answer:
            self._heard(sent, found.answer)

    def _heard(self, sent: Sent, answer: Answer) -> None:
        assert answer == sent.answer, f"heard {answer}, stored was {sent.answer}"

    # ── the language model ──────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _lease(self, name: str) -> AsyncIterator["Lease"]:
        await anyio.sleep(self.lease_takes)
        if self.lease_fails:
            self.ladder.failed()
            raise GiveUp("There is no lease to be had.")
        self.leases += 1
        try:
            yield Lease(self, name)
            await anyio.sleep(self.lease_takes)
        finally:
            self.leases -= 1

    def asked(self, lease: "Lease", request: ModelRequest) -> tuple[Sent, int]:
        """Who asks, and how many calls the model has made for that message."""
        messages = [_decode(message) for message in request.messages]
        last = max(number for number, message in enumerate(messages) if isinstance(message, UserMessage))
        sent = self.ladder.sent_by_id[messages[last].text.split()[0]]
        prefix = (request.system, request.tools)
        self.see(self.ladder.asked, sent.chat, messages, prefix, lease.name, request.reasoning)
        return sent, sum(isinstance(message, AssistantMessage) for message in messages[last:])

    async def think(self, sent: Sent, done: int, emit: Emit) -> AssistantMessage:
        """Say what the message itself wants to be told: a word for each call, and one for the end."""
        *calls, end = sent.text.split()[1:]
        try:
            reply = _call(sent, done, calls[done]) if done < len(calls) else await self._end(sent, end, emit)
        except Exception as error:
            self.see(self.ladder.broke, sent.chat, error)
            raise
        self.see(self.ladder.replied, sent.chat, reply)
        return reply

    async def _end(self, sent: Sent, end: str, emit: Emit) -> AssistantMessage:
        turn = sent.chat.turn
        tries = turn.tries if turn else 0
        if end in ("words", "snap", "snapped"):
            emit(Text("well … "))
            self.see(self.ladder.said_words, sent.chat, "well … ")
        await self.pass_gate(sent.chat)
        if end in LOST:
            raise LOST[end](f"{sent.id} is lost.")
        if end == "oops":
            raise ZeroDivisionError
        if (end == "retry" and tries < ATTEMPTS - 1) or (end == "snap" and not tries):
            raise RetryModel("Not now.")
        return AssistantMessage("" if end == "empty" else f"This answers {sent.id}.")

    async def pass_gate(self, chat: Chat) -> None:
        while gate := self.closed_gates.get(chat):
            await gate.wait()

    # ── tools ───────────────────────────────────────────────────────────────────────────────────

    def _use_tool(self) -> Callable[..., Awaitable[str]]:
        async def use(context: ToolContext, call: str, what: str) -> str:
            """Use something."""
            chat = self.ladder.chats[context.chat]
            try:
                text = await self._use(context, chat, what)
            except Exception as error:
                text = str(error) if isinstance(error, ToolFailed) else BUG
                self.see(self.ladder.used, chat, ToolMessage(call, "use", text, failed=True))
                raise
            self.see(self.ladder.used, chat, ToolMessage(call, "use", text))
            return text

        return use

    async def _use(self, context: ToolContext, chat: Chat, what: str) -> str:
        if what == "wait":
            await self.pass_gate(chat)
        elif what == "refuse":
            raise ToolFailed("It can't be used.")
        elif what == "bug":
            raise ZeroDivisionError
        elif what.startswith("own"):
            number = await context.own(what, partial(self._open_thing, chat, what))
            self.see(self._owns, chat, what, number)
            return f"{what} is number {number}"
        return "done"

    @asynccontextmanager
    async def _open_thing(self, chat: Chat, what: str) -> AsyncIterator[int]:
        if what == "own:slow":
            await anyio.sleep(0.2)
        self.opened += 1
        number = self.opened
        self.things[number] = chat
        try:
            yield number
        finally:
            del self.things[number]
            self.see(self.ladder.closed, chat, number)
            if what == "own:hanging":
                await anyio.sleep_forever()
            if what == "own:failing":
                raise OSError("It can't be closed.")

    def _owns(self, chat: Chat, what: str, number: int) -> None:
        assert chat.turn
        known = chat.turn.talk.owned.setdefault(what, number)
        assert known == number, f"{what} was opened twice"
        assert number in self.things


async def _extra(context: ToolContext) -> str:
    """Come and go: only to be told to the model, or not."""
    return ""


def _call(sent: Sent, done: int, what: str) -> AssistantMessage:
    wanted = ["own:a", "plain"] if what == "both" else [what]
    ids = [f"{sent.id}.{done}.{number}" for number in range(len(wanted))]
    calls = [ToolCall(id, "use", f'{{"call": "{id}", "what": "{what}"}}') for id, what in zip(ids, wanted, strict=True)]
    return AssistantMessage("", tuple(calls))


class Lease:
    """The language model, under the name by which one agent has it."""

    wire = "scripted"
    encode_system = ScriptedModel.encode_system
    encode_message = ScriptedModel.encode_message
    encode_tools = ScriptedModel.encode_tools

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelAnswer:
        sent, done = self._world.asked(self, request)
        return ModelAnswer(await self._world.think(sent, done, emit))


class Post:
    """A channel that pushes."""

    name = "post"

    def __init__(self, world: World) -> None:
        self._world = world

    async def receive(self, accept: Any) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        self._world.posted.append(answer.mail)


class ObservedStore:
    """The real store. Each write is told to the model of the ladder; it may take its time, and fail for a while."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._last_known = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._write if name in WRITES else self._read, name)

    def _write(self, name: str, *args: Any, **kwargs: Any) -> "Late":
        world = self._world
        world.store_used = world.time()
        if name in world.broken:
            failpoints.arm(f"store.{name}.before=fail")
        pending = getattr(self._store, name)(*args, **kwargs)  # by now it has run
        if pending.error is None:
            world.see(getattr(world.ladder, name), pending.result, *args, **kwargs)
        else:
            talk = world.ladder.talk(args[0]) if name == "append" else None
            world.ladder.failed(talk.chat.key if talk else args[0].chat if name == "begin" else None)
        self._last_known = max(world.time() + world.store_takes, self._last_known + 1e-5) if world.store_takes else 0.0
        return Late(pending, self._last_known)

    async def _read(self, name: str, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self._world.store_takes / 2)
        found = await getattr(self._store, name)(*args, **kwargs)
        self._world.store_used = self._world.time()
        await asyncio.sleep(self._world.store_takes / 2)
        return found


class Late:
    """A write of which is known some time later how it went."""

    def __init__(self, pending: Any, known: float) -> None:
        self._pending = pending
        self._known = known

    def __await__(self) -> Generator[Any, None, Any]:
        if (left := self._known - asyncio.get_running_loop().time()) > 0:
            yield from asyncio.sleep(left).__await__()
        return (yield from self._pending.__await__())
