"""A warm agent: what answers in a session while it is resident."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from holdfast.agent.context import Context
from holdfast.core.messages import Message
from holdfast.core.protocols import Model
from holdfast.tools.catalogue import ToolSet


class ModelConfig(msgspec.Struct, frozen=True):
    """The model that agents use: how to open it, and what tells two of them apart."""

    provider: str
    name: str
    base_url: str
    wire: str
    credential_digest: str
    """A hash of the whole credential; the credential itself never comes here."""
    open: Callable[[], AbstractAsyncContextManager[Model]]


class Agent:
    """Holds a model lease, the message buffer, the tool set and the frozen prompt, and no other thing."""

    def __init__(self, model: Model, tools: ToolSet, context: Context, signature: str) -> None:
        self.model = model
        self.tools = tools
        self.context = context
        self.signature = signature

    def __repr__(self) -> str:
        return f"<Agent {self.signature[:12]} on {self.model.name}: {self.context!r}>"


@asynccontextmanager
async def open_agent(
    config: ModelConfig, tools: ToolSet, prompt: str, history: Iterable[Message]
) -> AsyncIterator[Agent]:
    async with config.open() as model:
        yield Agent(model, tools, Context(model, prompt, tools, history), signature(config, tools, prompt))


def signature(config: ModelConfig, tools: ToolSet, prompt: str) -> str:
    """Same configuration, same signature: what makes a warm agent reusable."""
    parts = (config.provider, config.name, config.base_url, config.wire, config.credential_digest)
    digest = hashlib.sha256(msgspec.json.encode((*parts, tools.fingerprint, prompt)))
    return digest.hexdigest()


def credential_digest(credential: str) -> str:
    return hashlib.sha256(b"holdfast credential\0" + credential.encode()).hexdigest()
