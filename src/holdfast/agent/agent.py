"""A warm agent: what answers in a session while it is resident."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from holdfast.agent.context import Context
from holdfast.core.messages import Message
from holdfast.core.protocols import Model
from holdfast.core.scopes import Keeper
from holdfast.tools.catalogue import ToolSet


class ModelConfig(msgspec.Struct, frozen=True):
    """The model that agents use: how to open it, and what tells two of them apart."""

    provider: str
    name: str
    base_url: str
    wire: str
    credential_digest: str
    """A hash of the whole credential; the credential itself never comes here."""
    open: Callable[[str], AbstractAsyncContextManager[Model]]
    """Leases the model of a name from this provider."""
    alone: bool = False
    """The provider has no other model."""
    reasons: bool = True
    """Whether it can be told how hard to think."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.provider, self.name, self.base_url, self.wire, self.credential_digest)

    def named(self, name: str) -> "ModelConfig":
        """Another model of the same provider; without a name, this one."""
        return msgspec.structs.replace(self, name=name) if name else self


class Agent:
    """Holds a model lease, the message buffer, the tool set and the frozen prompt, and no other thing."""

    def __init__(self, config: ModelConfig, model: Model, tools: ToolSet, prompt: str, context: Context) -> None:
        self.config = config
        self.model = model
        self.tools = tools
        self.prompt = prompt
        self.context = context
        self.signature = signature(config, tools, prompt)

    def suits(self, config: ModelConfig) -> bool:
        """Whether it is the agent for this model; its tools and its prompt stay the same in a conversation."""
        return self.config.identity == config.identity

    def __repr__(self) -> str:
        return f"<Agent {self.signature[:12]} on {self.model.name}: {self.context!r}>"


@asynccontextmanager
async def open_agent(
    config: ModelConfig, tools: ToolSet, prompt: str, history: Iterable[Message], keeper: Keeper
) -> AsyncIterator[Agent]:
    """An agent with a lease of its own; nobody waits for a lease that is slow to let go."""
    async with keeper.hold(config.open(config.name)) as model:
        yield Agent(config, model, tools, prompt, Context(model, prompt, tools, history))


def signature(config: ModelConfig, tools: ToolSet, prompt: str) -> str:
    """Same configuration, same signature: what makes a warm agent reusable."""
    digest = hashlib.sha256(msgspec.json.encode((*config.identity, tools.fingerprint, prompt)))
    return digest.hexdigest()


def credential_digest(credential: str) -> str:
    return hashlib.sha256(b"holdfast credential\0" + credential.encode()).hexdigest()
