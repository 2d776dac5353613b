"""The real gateway with the real store, on a scripted model: for tests of what lies in between."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.core.clock import Clock, Ids, SystemClock
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, Incoming, Message
from holdfast.core.protocols import Channel, Store, Tool
from holdfast.core.settings import Settings
from holdfast.gateway import Gateway, open_gateway
from holdfast.gateway.endings import AtEnd
from holdfast.gateway.mail import Mail
from holdfast.storage import open_store
from holdfast.testing.scripted import Script, ScriptedModel
from holdfast.tools.catalogue import Catalogue
from holdfast.tools.files import TOOLS

CHAT = ChatKey("test", "chat")


class Bench:
    """A gateway on a workbench, and short ways to talk to it."""

    def __init__(self, gateway: Gateway, store: Store, model: ScriptedModel, ids: Ids, clock: Clock) -> None:
        self.gateway = gateway
        self.store = store
        self.model = model
        self.ids = ids
        self.clock = clock

    def incoming(
        self, text: str, chat: ChatKey = CHAT, *, id: str = "", history: Sequence[Message] | None = None
    ) -> Incoming:
        mail = MailId(id or self.ids.new())
        return Incoming(mail, chat, text, self.clock.now(), history=None if history is None else tuple(history))

    async def send(self, text: str, chat: ChatKey = CHAT, *, id: str = "", watched: bool = False) -> Mail:
        """Send a message; returns when it is accepted."""
        return await self.gateway.accept(self.incoming(text, chat, id=id), watched=watched)

    async def say(self, text: str, chat: ChatKey = CHAT) -> Answer:
        """Send a message and wait for its answer."""
        return await (await self.send(text, chat)).answered()

    async def said(self, chat: ChatKey = CHAT) -> list[Message]:
        """The open conversation of a chat, as stored."""
        woken = await self.store.wake(chat)
        return [row.message for row in woken.history] if woken else []


@asynccontextmanager
async def open_bench(
    folder: Path,
    script: Script,
    *,
    settings: Settings | None = None,
    channels: Mapping[str, Channel] | None = None,
    tools: Sequence[Tool] = TOOLS,
    clock: Clock | None = None,
    at_end: Sequence[AtEnd] = (),
    seed: int = 0,
    inline: bool = True,
) -> AsyncIterator[Bench]:
    """Leaving the block takes the gateway down as a crash does, but for closing what it opened.

    `inline` is the store's: without it, its threads work as they do in earnest, and time is real.
    """
    clock = clock or SystemClock()
    chance = random.Random(seed)
    model = ScriptedModel(script)
    async with (
        open_store(folder / "holdfast.db", ledger=Ledger(), clock=clock, inline=inline) as store,
        open_gateway(
            settings=settings or Settings(),
            store=store,
            model=model.config(),
            catalogue=Catalogue(tools),
            channels=channels or {},
            sessions_folder=folder / "sessions",
            clock=clock,
            chance=chance,
            at_end=at_end,
        ) as gateway,
    ):
        yield Bench(gateway, store, model, Ids(clock, chance), clock)
