"""What happens in a turn, as one tagged union; the only way from the agent to whoever looks on."""

from typing import TypeAlias

import msgspec

from holdfast.core.messages import AssistantMessage, Outcome, ToolMessage, Usage


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="type"):
    """The turn began, in this session."""

    session: str


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """The answer grew by this much."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    """The model thought aloud. Shown, never stored as part of the answer."""

    text: str


class ToolStarted(msgspec.Struct, frozen=True, tag="tool_started", tag_field="type"):
    call_id: str
    name: str
    arguments: str


class ToolFinished(msgspec.Struct, frozen=True, tag="tool_finished", tag_field="type", omit_defaults=True):
    call_id: str
    name: str
    text: str
    failed: bool = False


class Retrying(msgspec.Struct, frozen=True, tag="retrying", tag_field="type"):
    """The model could not answer yet; it is asked again after `wait` seconds. Text so far is void."""

    reason: str
    wait: float


class Answered(msgspec.Struct, frozen=True, tag="answer", tag_field="type", omit_defaults=True):
    """The turn is over and its answer is stored. Always the last event."""

    id: str
    text: str
    outcome: Outcome
    error: str = ""
    session: str = ""
    usage: Usage = Usage()


class Said(msgspec.Struct, frozen=True, tag="said", tag_field="type"):
    """A message joined the conversation. Whoever receives this stores it before the agent goes on."""

    message: AssistantMessage | ToolMessage


Event: TypeAlias = Started | Text | Reasoning | ToolStarted | ToolFinished | Retrying | Answered
"""What onlookers see."""

AgentEvent: TypeAlias = Text | Reasoning | ToolStarted | ToolFinished | Retrying | Said
"""What the agent's loop emits."""
