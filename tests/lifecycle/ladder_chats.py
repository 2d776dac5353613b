"""What the model of the ladder knows of chats: plain data, and what follows from it."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.core.keys import ChatKey
from holdfast.core.messages import Answer, AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.core.protocols import Controls, MessageRow
from holdfast.gateway.turns import INTERRUPTED

MODEL = "scripted"


@dataclass(eq=False)
class Sent:
    """A message, from the moment when someone sends it."""

    id: str
    chat: "Chat"
    text: str
    history: tuple[Message, ...] | None = None
    fingerprint: str = ""
    times: int = 0
    """How often it was sent."""
    taken: int = 0
    """Its place in the order of acceptance; 0: not accepted."""
    hung_up: bool = False
    """Its sender did not wait to hear that it was accepted."""
    answer: Answer | None = None
    expected: str | None = None
    """What a command has to answer, if that is certain."""
    effect: bool = False
    """A command has done what it is for."""
    failures: int = 0
    """How often something had failed when it was accepted."""

    @property
    def command(self) -> str:
        return self.text[1:].split()[0] if self.text.startswith("/") and self.history is None else ""

    @property
    def rest(self) -> str:
        return self.text.partition(" ")[2]


@dataclass(eq=False)
class Row:
    seq: int
    message: Message
    mail: str
    undone: bool = False


@dataclass(eq=False)
class Talk:
    """A conversation, as stored, and what it owns in this process."""

    chat: "Chat"
    id: str = ""
    """Empty until it is stored."""
    title: str = ""
    rows: list[Row] = field(default_factory=list)
    controls: Controls = field(default_factory=Controls)
    last_used: float = 0.0
    last_turn: float = 0.0
    ended: float | None = None
    reason: str = ""
    told: bool = False
    """Its people know that it has expired."""
    concluded: bool = False
    """What is to happen at its end has happened."""
    prefix: tuple[bytes, bytes] | None = None
    owned: dict[str, int] = field(default_factory=dict)
    """The numbers of the things that it has opened, by name."""
    overdue: float | None = None
    """Since when it should have expired."""

    @property
    def said(self) -> list[Message]:
        return [row.message for row in self.rows if not row.undone]

    @property
    def asked(self) -> list[Row]:
        return [row for row in self.rows if not row.undone and isinstance(row.message, UserMessage)]

    @property
    def model(self) -> str:
        return self.controls.model or MODEL

    def put(self, row: MessageRow) -> None:
        if row.seq not in {known.seq for known in self.rows}:
            self.rows.append(Row(row.seq, row.message, row.mail))
            self.rows.sort(key=lambda known: known.seq)


@dataclass(eq=False)
class Turn:
    sent: Sent
    talk: Talk
    started: float
    last_event: float
    base: list[Message]
    """What had been said before it."""
    context: list[Message] = field(default_factory=list)
    """What it added, in the order in which that was said."""
    model: str = MODEL
    effort: str = ""
    notes_given: int = 0
    words: str = ""
    steps: int = 0
    tries: int = 0
    end: tuple[str, str, str] | None = None
    """Text, outcome and error, once its model has said its last word."""
    stopped: bool = False
    """Someone was told that it is."""
    unstored: bool = False
    """A step of it could not be stored."""

    @property
    def open_calls(self) -> list[Message]:
        """Results for the calls that have none."""
        calls: dict[str, Any] = {}
        for message in self.base + self.context:
            if isinstance(message, AssistantMessage):
                calls.update({call.id: call for call in message.tool_calls})
            elif isinstance(message, ToolMessage):
                calls.pop(message.call_id, None)
        return [ToolMessage(call.id, call.name, INTERRUPTED, failed=True) for call in calls.values()]


@dataclass(eq=False)
class Chat:
    key: ChatKey
    ephemeral: bool = False
    talks: list[Talk] = field(default_factory=list)
    queue: list[Sent] = field(default_factory=list)
    """What was accepted and has no answer, in the order of acceptance."""
    turn: Turn | None = None
    operators_ends: list[str] = field(default_factory=list)
    """The conversations that an operator is about to end."""
    used: float = 0.0
    """When there was last something to do for its agent."""
    pushed: list[str] = field(default_factory=list)
    """The mails whose answers are to be delivered here, in order."""

    @property
    def open(self) -> Talk | None:
        return next((talk for talk in self.talks if talk.ended is None), None)

    @property
    def waiting(self) -> list[Sent]:
        """What is neither answered nor being answered."""
        return [sent for sent in self.queue if not sent.command and not (self.turn and sent is self.turn.sent)]

    def under_way(self, *commands: str) -> list[Sent]:
        return [sent for sent in self.queue if sent.command in commands]

    def may_be_dropped(self, sent: Sent) -> bool:
        """Someone wants a new conversation, and came later than this, as far as anyone waited to hear who was first."""
        later = [command for command in self.under_way("new") if command.taken > sent.taken or command.hung_up]
        return bool(later or self.operators_ends or (sent.hung_up and self.under_way("new")))

    @property
    def last_ended(self) -> Talk | None:
        ended = [talk for talk in self.talks if talk.ended is not None]
        return max(ended, key=lambda talk: talk.ended or 0.0, default=None)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a new conversation tells its people first."""
        untold = [talk for talk in self.talks if talk.reason == "expired" and not talk.told]
        if not untold:
            return ()
        title = max(untold, key=lambda talk: talk.ended or 0.0).title
        name = f" “{title}”" if title else ""
        return (
            f"(The earlier conversation{name} ended by itself after a time without messages; /resume brings it back.)",
        )
