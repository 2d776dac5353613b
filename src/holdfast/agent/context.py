"""What a model is sent: the frozen prefix and the messages since, each encoded once."""

from collections.abc import Iterable

from holdfast.core.messages import AssistantMessage, Message, Sampling, ToolCall, ToolMessage
from holdfast.core.protocols import Model, ModelRequest
from holdfast.tools.catalogue import ToolSet


class Context:
    """A conversation as one model's wire format has it. Only ever grows."""

    def __init__(self, model: Model, prompt: str, tools: ToolSet, messages: Iterable[Message] = ()) -> None:
        self._model = model
        self._system = model.encode_system(prompt)
        self._tools = tools.encoded(model) if tools else b""
        self._messages: list[bytes] = []
        self.size = len(self._system)
        """In bytes, but for the tools, which all agents share."""
        self._unanswered: dict[str, ToolCall] = {}
        for message in messages:
            self.add(message)

    def __repr__(self) -> str:
        return f"<Context: {len(self._messages)} messages, {self.size} bytes>"

    @property
    def unanswered(self) -> list[ToolCall]:
        """Tool calls that have no result: a stop or a crash came between. Providers reject such a history."""
        return list(self._unanswered.values())

    def add(self, message: Message) -> None:
        encoded = self._model.encode_message(message)
        self._messages.append(encoded)
        self.size += len(encoded)
        if isinstance(message, AssistantMessage):
            self._unanswered.update({call.id: call for call in message.tool_calls})
        elif isinstance(message, ToolMessage):
            self._unanswered.pop(message.call_id, None)

    def request(self, sampling: Sampling, *, stream: bool, reasoning: str = "") -> ModelRequest:
        return ModelRequest(self._system, self._messages, self._tools, sampling, stream, reasoning)
