"""Hosting a chat: one task, in which the conversation, its agent and each turn are nested blocks."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import msgspec
import structlog

from holdfast.agent.agent import Agent, ModelConfig, open_agent
from holdfast.agent.prompt import build_prompt
from holdfast.core.clock import Clock, Ids
from holdfast.core.errors import ModelError, Stopping, StoreError
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import Answer, Message, Outcome
from holdfast.core.protocols import Controls, SessionRow, Store, Woken
from holdfast.core.scopes import Keeper
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.delivery import Delivery
from holdfast.gateway.endings import Endings
from holdfast.gateway.mail import Mail
from holdfast.gateway.patience import insist
from holdfast.gateway.residents import Residents
from holdfast.gateway.sessions import Session, open_session
from holdfast.gateway.slots import Slots
from holdfast.gateway.turns import BROKE, UNSTORED, Turns
from holdfast.tools.catalogue import Catalogue

log = structlog.get_logger(__name__)

TITLE_LENGTH = 60
LEAVING = "The gateway is stopping; what was accepted is answered after its next start."


class Hosting:
    """Hosts awake chats. Holds what they share and nothing of any one of them."""

    def __init__(
        self,
        *,
        store: Store,
        turns: Turns,
        residents: Residents,
        keeper: Keeper,
        endings: Endings,
        model: ModelConfig,
        catalogue: Catalogue,
        toolsets: Sequence[str],
        deliveries: Mapping[str, Delivery],
        most_turns: int,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._turns = turns
        self._residents = residents
        self._keeper = keeper
        self._endings = endings
        self.model = model
        self._catalogue = catalogue
        self._toolsets = toolsets
        self._deliveries = deliveries
        self._slots = Slots(most_turns)
        self.leaving = False
        """Running turns come to their end, and no new one begins."""
        self._clock = clock
        self._ids = ids

    async def host(self, chat: AwakeChat, forget: Callable[[], None]) -> None:
        """Keep a chat awake for as long as there is something to do or to own."""
        try:
            if delivery := self._deliveries.get(chat.key.channel):
                async with anyio.create_task_group() as lane:
                    lane.start_soon(delivery.run, chat)
                    await self._attend(chat)
                    forget()  # no await since the last look at the mailbox: nothing slips between
                    lane.cancel_scope.cancel()
            else:
                await self._attend(chat)
                forget()
        finally:
            for mail in chat.mailbox.drain():  # only when the gateway leaves; they stay in the inbox
                mail.fail(Stopping(LEAVING))

    def change(self, most_turns: int) -> None:
        self._slots.change(most_turns)

    def pushes(self, key: ChatKey) -> bool:
        """Whether answers are sent to this chat, rather than collected there."""
        return key.channel in self._deliveries

    async def _attend(self, chat: AwakeChat) -> None:
        while chat.expects_mail or chat.outgoing:
            if not chat.expects_mail:
                await chat.mailbox.arrival()
                continue
            try:
                await self._converse(chat)
            except Exception as error:  # the edge of a conversation: the chat and its neighbours go on
                log.exception("a conversation broke", chat=str(chat.key))
                chat.disappoint(error if isinstance(error, StoreError) else StoreError(BROKE))
                if chat.mailbox:
                    await self.settle(chat, chat.mailbox.take(), _sentence(error), "failed", "internal_error")
                else:
                    await anyio.sleep(1)  # a command is under way: don't spin while the store is broken

    async def _converse(self, chat: AwakeChat) -> None:  # SESSION
        async with open_session(*await self._load(chat), self._keeper) as session:
            session.ephemeral = chat.ephemeral
            with chat.hosting(session):
                await self._host_session(chat, session)
        if ending := chat.ending:
            ended = ending.concerns(session) and session.begun and await self._endings.end(session.row, ending.reason)
            if ending.then:
                await ending.then()
            chat.settle_end(ended)

    async def _load(self, chat: AwakeChat) -> tuple[SessionRow, Woken | None]:
        """The chat's open conversation with its history; or a new one, of which the store learns with its
        first message."""
        while chat.waking:
            await chat.mailbox.arrival()
        brought, chat.woken = chat.woken, None
        if brought and not brought.asleep:
            woken, expired = brought.woken, brought.expired
        elif chat.ephemeral:
            woken = expired = None
        else:
            woken = await self._store.wake(chat.key)
            expired = None if woken else await self._store.expired(chat.key)
        if woken:
            return woken.session, woken
        now = self._clock.now()
        tools = self._catalogue.choose(self._toolsets)
        return SessionRow(
            SessionId(self._ids.new()),
            chat.key,
            now,
            now,
            prompt=build_prompt(chat.key, tools),
            tools=tools.names,
            controls=Controls(notices=(_expired(expired),)) if expired else Controls(),
        ), None

    async def _host_session(self, chat: AwakeChat, session: Session) -> None:
        while not chat.ending:
            if self.leaving:
                await anyio.sleep_forever()  # until the gateway is gone; what waits stays in the inbox
            elif chat.errands:
                session.history = None  # it may not be the same afterwards
                await chat.run_errand(session)
            elif chat.mailbox:
                await self._try_to_reside(chat, session)
            elif chat.expects_mail or (session.owns and not chat.ephemeral):
                await chat.mailbox.arrival()
            else:
                return  # dormant: rows in the store, nothing in memory

    async def _try_to_reside(self, chat: AwakeChat, session: Session) -> None:
        try:
            await self._reside(chat, session)
        except Exception as error:  # the edge of a residency: its session goes on, with all that it owns
            log.exception("an agent broke", session=session.id, chat=str(chat.key))
            if chat.mailbox:
                await self.settle(chat, chat.mailbox.take(), _sentence(error), "failed", "internal_error")

    async def _reside(self, chat: AwakeChat, session: Session) -> None:  # RESIDENCY
        async with self._open_agent(chat, session) as agent:
            if agent is None or chat.ephemeral:
                if agent:
                    await self._turn(chat, session, agent)
                return
            async with self._residents.take(session.id, agent, chat.mailbox) as seat:
                while not self._leaves(chat, session, agent) and await self._residents.stays(seat):
                    if chat.mailbox and not self._leaves(chat, session, agent):
                        await self._turn(chat, session, agent)

    def _leaves(self, chat: AwakeChat, session: Session, agent: Agent) -> bool:
        return self.leaving or chat.is_called_away or not agent.suits(self.model_for(session))

    def model_for(self, session: Session) -> ModelConfig:
        return self.model.named(session.controls.model)

    @asynccontextmanager
    async def _open_agent(self, chat: AwakeChat, session: Session) -> AsyncIterator[Agent | None]:
        """The session's agent, or None when the host was called away while it was being built."""
        async with AsyncExitStack() as stack:
            with anyio.CancelScope() as chat.building:
                try:
                    names = session.row.tools
                    if names is None:
                        names = self._catalogue.choose(self._toolsets).names
                    tools = self._catalogue.named(names)
                    opening = open_agent(
                        self.model_for(session),
                        tools,
                        session.row.prompt,
                        await self._messages(chat, session),
                        self._keeper,
                    )
                    session.agent = await stack.enter_async_context(opening)
                finally:
                    chat.building = None
            try:
                yield session.agent
            finally:
                session.agent = None

    async def _messages(self, chat: AwakeChat, session: Session) -> Iterable[Message]:
        if chat.ephemeral:
            return chat.mailbox.peek().incoming.history or ()
        if not session.begun:
            return ()
        history, session.history = session.history, None  # the agent holds it in its own form
        if history is None:
            history = await self._store.history(session.id)
        return (row.message for row in history)

    async def _turn(self, chat: AwakeChat, session: Session, agent: Agent) -> None:  # TURN
        if not await self._slots.take(chat):
            return
        try:
            if self._leaves(chat, session, agent) or not chat.mailbox:
                return
            mail = chat.mailbox.take()
            if not session.row.title:
                session.begun = False  # with its first message the store learns its title, maybe of more
                session.row = msgspec.structs.replace(session.row, title=_title(mail.incoming.text))
            try:
                await self._turns.run(chat, session, agent, mail, push=self.pushes(chat.key))
            finally:
                if not mail.done:  # the gateway leaves; the message stays in the inbox
                    mail.fail(Stopping(LEAVING))
        finally:
            self._slots.give_back()

    def put_back(self, chat: AwakeChat, mails: Sequence[Mail]) -> None:
        """Let mail that was drained from a chat's mailbox wait again, as long as there is someone to see it there."""
        if self.leaving:
            for mail in mails:
                mail.fail(Stopping(LEAVING))
        else:
            chat.mailbox.put_back(mails)

    async def settle(self, chat: AwakeChat, mail: Mail, text: str, outcome: Outcome, error: str = "") -> None:
        """Answer a message outside of any turn."""
        incoming = mail.incoming
        answer = Answer(
            self._ids.new(), incoming.id, incoming.chat, text, self._clock.now(), outcome, error, memo=incoming.memo
        )
        push = self.pushes(chat.key)

        def failed(failure: StoreError) -> None:
            log.error("an answer can't be stored; trying again", mail=incoming.id, cause=str(failure))
            mail.fail(failure)

        try:
            await insist(lambda: self._store.finish(answer, None, [], push=push), failed)
            mail.settle(answer)
        finally:
            if not mail.done:  # the gateway leaves; the message stays in the inbox
                mail.fail(Stopping(LEAVING))
        if push:
            chat.outgoing.put(answer)


def _title(text: str) -> str:
    """A conversation's name until someone gives it another: the beginning of its first line."""
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


def _expired(row: SessionRow) -> str:
    name = f" “{row.title}”" if row.title else ""
    return f"(The earlier conversation{name} ended by itself after a time without messages; /resume brings it back.)"


def _sentence(error: Exception) -> str:
    if isinstance(error, StoreError):
        return UNSTORED
    return str(error) if isinstance(error, ModelError) else BROKE
