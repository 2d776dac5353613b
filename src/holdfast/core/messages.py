"""What a conversation is made of. Frozen: a message that was said is never changed."""

from typing import Literal, TypeAlias

import msgspec

from holdfast.core.keys import ChatKey, MailId


class ToolCall(msgspec.Struct, frozen=True):
    """A model's wish to use a tool. The arguments are the model's own JSON text, valid or not."""

    id: str
    name: str
    arguments: str


class SystemMessage(msgspec.Struct, frozen=True, tag="system"):
    """Instructions that an API client put into its own history."""

    text: str


class UserMessage(msgspec.Struct, frozen=True, tag="user", omit_defaults=True):
    text: str
    notes: tuple[str, ...] = ()
    """What the model should know besides, and the user did not write."""

    @property
    def told(self) -> str:
        """What the model reads."""
        return "\n\n".join((*(f"[{note}]" for note in self.notes), self.text))


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", omit_defaults=True):
    text: str
    tool_calls: tuple[ToolCall, ...] = ()


class ToolMessage(msgspec.Struct, frozen=True, tag="tool", omit_defaults=True):
    """What came of one tool call."""

    call_id: str
    name: str
    text: str
    failed: bool = False


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens, as the provider counted them (zero where it did not)."""

    input: int = 0
    output: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input + other.input, self.output + other.output)


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a caller may ask of the model for one turn."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Incoming(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message on its way in, as the inbox stores it."""

    id: MailId
    chat: ChatKey
    text: str
    received: float
    sender: str = ""
    fingerprint: str = ""
    """Tells whether a repeated id repeats the same request or is a mistake."""
    history: tuple[Message, ...] | None = None
    """Set for a request that carries its own history: its conversation lasts as long as the request."""
    sampling: Sampling = Sampling()
    memo: str = ""
    """The channel's own note, stored with the answer and returned with it; nobody else reads it."""


Outcome: TypeAlias = Literal["ok", "stopped", "failed"]


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one accepted message came to, as the outbox stores it. Each message has exactly one."""

    id: str
    mail: MailId
    chat: ChatKey
    text: str
    created: float
    outcome: Outcome = "ok"
    error: str = ""
    """For `failed`: a short code for programs; the text is for people."""
    session: str = ""
    usage: Usage = Usage()
    memo: str = ""
