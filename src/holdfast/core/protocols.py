"""The extension points. Each says how long what it opens may live.

Openers are async context managers; leaving the block is how things end, and there is no other way.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.core.events import Reasoning, Text
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import Answer, AssistantMessage, Incoming, Message, Sampling, Usage

T_co = TypeVar("T_co", covariant=True)


# ── models ──────────────────────────────────────────────────────────────────────────────────────


class ModelRequest(msgspec.Struct, frozen=True):
    """One question to a model, in pieces that were each encoded once by that model's `encode_*`."""

    system: bytes
    messages: Sequence[bytes]
    tools: bytes
    """The tool set's JSON, or empty for none."""
    sampling: Sampling = Sampling()
    stream: bool = True
    """False when nobody looks on: the answer comes in one piece, which is cheaper."""
    reasoning: str = ""
    """How hard to think, in the provider's words; empty: as it likes. Never part of the prefix."""


class ModelAnswer(msgspec.Struct, frozen=True):
    message: AssistantMessage
    usage: Usage = Usage()
    truncated: bool = False
    """The model stopped because it had reached its limit of output."""


class Model(Protocol):
    """A model that can be asked. Leased for a residency, over a transport shared by the process."""

    @property
    def name(self) -> str: ...

    @property
    def wire(self) -> str:
        """The format's name; two models with the same wire encode alike."""
        ...

    def encode_system(self, prompt: str) -> bytes: ...

    def encode_message(self, message: Message) -> bytes: ...

    def encode_tools(self, tools: "Sequence[ToolSpec]") -> bytes: ...

    async def answer(self, request: ModelRequest, emit: Callable[[Text | Reasoning], None]) -> ModelAnswer:
        """Ask once, without retrying. Cancelling closes the connection at once.

        Raises a `ModelError` whose class says what to do about it.
        """
        ...


# ── tools ───────────────────────────────────────────────────────────────────────────────────────


class ToolSpec(msgspec.Struct, frozen=True):
    """What a model is told about a tool. `parameters` is a JSON schema, already encoded."""

    name: str
    description: str
    parameters: msgspec.Raw


Opener = Callable[[], AbstractAsyncContextManager[Any]]
Own = Callable[[str, Opener], Awaitable[Any]]


class ToolContext(msgspec.Struct, frozen=True):
    """What a tool may know of where it runs. Lives for one turn."""

    session: SessionId
    chat: ChatKey
    folder: Path
    """The session's own folder; it comes into being with its first file."""
    own: "Own"
    """Opens something once under a name, for as long as the session lasts; again it gives the same thing."""


class Tool(Protocol):
    """Something a model can use. Immutable and shared by all sessions; state belongs to the session."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def toolset(self) -> str: ...

    @property
    def concurrent(self) -> bool:
        """Whether it may run beside other calls of the same answer."""
        ...

    def available(self) -> bool:
        """Whether it can work here and now; asked when a conversation begins. Quick, and never waits."""
        ...

    async def run(self, context: ToolContext, arguments: str) -> str:
        """The result for the model. Raises `ToolFailed` with a sentence the model can act on."""
        ...


# ── channels ────────────────────────────────────────────────────────────────────────────────────

Accept = Callable[[Incoming], Awaitable[Any]]
"""Stores a message durably and returns; only then may the channel acknowledge it. May raise `TryLater`."""


class Channel(Protocol):
    """A way to reach people that Holdfast pushes answers to. Lives as long as the process."""

    @property
    def name(self) -> str: ...

    async def receive(self, accept: Accept) -> None:
        """Take messages in until cancelled; reconnects by itself."""
        ...

    async def send(self, answer: Answer) -> None:
        """Deliver one answer, once. Raises `TryLater` when it may be tried again, else `HoldfastError`."""
        ...


OpenChannel = Callable[..., AbstractAsyncContextManager[Channel]]


# ── the store ───────────────────────────────────────────────────────────────────────────────────


class Commit(Protocol[T_co]):
    """A write that is on its way, in order. Await it to know that it is durable, or let it ride along."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


class Controls(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was set for one conversation. It outlives every agent of it, and ends with it."""

    model: str = ""
    """The model that answers here; empty: the gateway's own. Never with a key in it."""
    reasoning: str = ""
    """How hard the model is to think; empty: as it likes."""
    notes: tuple[str, ...] = ()
    """For the model, with the next message, once."""
    notices: tuple[str, ...] = ()
    """For the people, with the next answer, once."""


class SessionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One conversation, as stored."""

    id: SessionId
    chat: ChatKey
    created: float
    last_used: float
    title: str = ""
    prompt: str = ""
    """The system prompt, frozen at the conversation's start."""
    tools: tuple[str, ...] | None = None
    """The names of its tools, frozen likewise; None: not chosen yet."""
    controls: Controls = Controls()
    ended: float | None = None
    end_reason: str = ""
    messages: int = 0
    """How many messages it has, where a query counts them."""
    snippet: str = ""
    """Where a search found it."""


class MessageRow(msgspec.Struct, frozen=True):
    """One message of a conversation. `seq` orders them; the mail's id ties the user's to the inbox."""

    seq: int
    message: Message
    created: float
    mail: MailId


class Woken(msgspec.Struct, frozen=True):
    """A chat's open conversation with its history, read in one go."""

    session: SessionRow
    history: list[MessageRow]
    next_seq: int
    """The number of the message to come; those that were undone keep theirs."""


class Accepted(msgspec.Struct, frozen=True):
    """What the inbox says of a message: new, or seen before with this fingerprint and maybe this answer."""

    fresh: bool
    fingerprint: str = ""
    answer: Answer | None = None
    woken: Woken | None = None
    """The chat's open conversation, if it was asked for and there is one."""
    asleep: bool = True
    """Nothing is known of the conversation yet: it was not asked for, or is too long to be read on the way."""
    expired: SessionRow | None = None
    """Where there is no open conversation: the one that expired, if nobody in the chat was told yet."""


class Store(Protocol):
    """Durable memory. Writes happen in the order in which they are called; reads see what was awaited.

    Every write method returns a `Commit` and is a pair of failpoints: `store.<method>.before` and
    `.after` its commit.
    """

    # writes
    def accept(self, mail: Incoming, *, wake: bool = False) -> Commit[Accepted]:
        """Put a message into the inbox, once; with `wake`, read the chat's conversation on the way."""
        ...

    def begin(self, session: SessionRow) -> Commit[None]:
        """A conversation starts. That an earlier one in its chat had expired counts as told with it.

        One that is there already gets its title, if it had none.
        """
        ...

    def control(self, session: SessionId, controls: Controls) -> Commit[None]:
        """Set what is set for an open conversation."""
        ...

    def append(self, session: SessionId, row: MessageRow) -> Commit[None]:
        """Idempotent by (session, seq): a replay after a crash writes nothing twice."""
        ...

    def finish(
        self,
        answer: Answer,
        session: SessionId | None,
        rows: Sequence[MessageRow],
        *,
        push: bool,
        controls: Controls | None = None,
    ) -> Commit[None]:
        """In one step: the last messages, the answer into the outbox, the mail out of the inbox, and the
        controls if they changed.

        With `push` the answer waits in the outbox until `sent`; otherwise it is there to be collected.
        """
        ...

    def sent(self, answer_id: str, when: float) -> Commit[None]: ...

    def undo(self, session: SessionId, from_seq: int, when: float) -> Commit[None]:
        """Mark the messages from `from_seq` on as undone: they stay stored, and belong to no history."""
        ...

    def end(
        self, session: SessionId, when: float, reason: str, *, idle_since: float | None = None, hooks: bool = False
    ) -> Commit[bool]:
        """End a conversation; whether it was this call that ended it. Its controls go with it.

        With `idle_since`, only if it was not used after that and no mail waits in its chat. With `hooks`, it
        is among `unconcluded()` until `conclude` is called.
        """
        ...

    def conclude(self, session: SessionId, when: float) -> Commit[None]:
        """All that was to happen at a conversation's end has happened."""
        ...

    def resume(self, session: SessionId, when: float) -> Commit[bool]:
        """Open an ended conversation again, and end the one that is open in its chat; false if it is not there."""
        ...

    # upkeep: each call is a small step, so that nobody waits long behind it
    def prune_mail(self, before: float, *, after: int = 0) -> Commit[int | None]:
        """Forget a page of mail and answers that were settled and sent before a time.

        Returns the number to go on after, or None when there is nothing older.
        """
        ...

    def prune_session(self, session: SessionId) -> Commit[bool]:
        """Delete some of an ended conversation's messages; true when nothing of it is left, or it is open.

        The first step deletes nothing: from then on it can't be resumed.
        """
        ...

    def shrink(self) -> Commit[bool]:
        """Give some of the file's free pages back; false when there are few."""
        ...

    # reads
    async def wake(self, chat: ChatKey) -> Woken | None: ...

    async def open_session(self, chat: ChatKey) -> SessionRow | None:
        """The chat's open conversation, without its history."""
        ...

    async def expired(self, chat: ChatKey) -> SessionRow | None:
        """The conversation that expired in a chat, if nobody there was told yet."""
        ...

    async def last_ended(self, chat: ChatKey) -> SessionRow | None:
        """The conversation of a chat that ended last."""
        ...

    async def channels(self) -> list[str]:
        """The channels that have open conversations."""
        ...

    async def idle(
        self, channel: str, before: float, *, after: tuple[float, str] = (-inf, ""), limit: int = 100
    ) -> list[SessionRow]:
        """A page of a channel's open conversations last used before a time, the longest idle first.

        The next page comes after the last row's `(last_used, id)`.
        """
        ...

    async def ended(
        self, before: float, *, after: tuple[float, str] = (-inf, ""), limit: int = 100
    ) -> list[SessionRow]:
        """A page of the conversations that ended before a time, the first ended first.

        The next page comes after the last row's `(ended, id)`.
        """
        ...

    async def unconcluded(self, *, limit: int = 100) -> list[SessionRow]:
        """Ended conversations whose end has not been seen to."""
        ...

    async def history(self, session: SessionId) -> list[MessageRow]: ...

    async def waiting(self) -> list[Incoming]:
        """The inbox: accepted, not yet answered, in the order of acceptance."""
        ...

    async def unsent(self) -> list[Answer]:
        """The outbox: answered, not yet sent, in order."""
        ...

    async def answer_to(self, mail: MailId) -> Answer | None: ...

    async def answer(self, answer_id: str) -> Answer | None: ...

    async def sessions(
        self, *, channel: str = "", search: str = "", before: float | None = None, limit: int = 50
    ) -> list[SessionRow]:
        """Newest first; with `search`, those whose messages match, best first, with a snippet."""
        ...

    async def session(self, session: SessionId) -> SessionRow | None: ...

    async def messages(self, session: SessionId, *, before: int | None = None, limit: int = 200) -> list[MessageRow]:
        """A page of history, oldest first, ending before `before`."""
        ...
