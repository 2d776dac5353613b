"""Hosting a chat: one task, in which the conversation, its agent and each turn are nested blocks."""

from collections.abc import Callable, Mapping, Sequence

import anyio
import msgspec
import structlog

from holdfast.agent.agent import Agent, ModelConfig, open_agent
from holdfast.agent.prompt import build_prompt
from holdfast.core.clock import Clock, Ids
from holdfast.core.errors import ModelError, Stopping, StoreError
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import Answer, Message, Outcome
from holdfast.core.protocols import MessageRow, SessionRow, Store
from holdfast.core.scopes import Keeper
from holdfast.gateway.delivery import Delivery
from holdfast.gateway.mail import Mail
from holdfast.gateway.residents import Residents
from holdfast.gateway.sessions import AwakeChat, Session, open_session
from holdfast.gateway.slots import Slots
from holdfast.gateway.turns import BROKE, UNSTORED, Turns
from holdfast.tools.catalogue import ToolSet

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
        model: ModelConfig,
        tools: ToolSet,
        deliveries: Mapping[str, Delivery],
        most_turns: int,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._turns = turns
        self._residents = residents
        self._keeper = keeper
        self._model = model
        self._tools = tools
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
                chat.settle_end(error if isinstance(error, StoreError) else False)
                if chat.mailbox:
                    await self.settle(chat, chat.mailbox.take(), _sentence(error), "failed", "internal_error")
                else:
                    await anyio.sleep(1)  # a command is under way: don't spin while the store is broken

    async def _converse(self, chat: AwakeChat) -> None:  # SESSION
        row, history = await self._load(chat)
        async with open_session(row, history or [], self._keeper) as session:
            session.begun = history is not None
            session.ephemeral = chat.ephemeral
            chat.session = session
            try:
                await self._host_session(chat, session, history or [])
            finally:
                chat.session = None
        if chat.end_reason:
            ends = session.begun and chat.ends_only in (None, session.id)
            if ends:
                await self._store.end(session.id, self._clock.now(), chat.end_reason)
            chat.settle_end(ends)

    async def _load(self, chat: AwakeChat) -> tuple[SessionRow, list[MessageRow] | None]:
        """The chat's open conversation and its history; or a new one, of which the store learns with its
        first message, and no history."""
        while chat.waking:
            await chat.mailbox.arrival()
        brought, chat.woken = chat.woken, None
        woken = None
        if brought and not brought.asleep:
            woken = brought.woken
        elif not chat.ephemeral:
            woken = await self._store.wake(chat.key)
        if woken:
            return woken.session, woken.history
        now = self._clock.now()
        prompt = build_prompt(chat.key, self._tools)
        return SessionRow(SessionId(self._ids.new()), chat.key, now, now, prompt=prompt), None

    async def _host_session(self, chat: AwakeChat, session: Session, history: list[MessageRow] | None) -> None:
        while not chat.end_reason:
            if self.leaving:
                await anyio.sleep_forever()  # until the gateway is gone; what waits stays in the inbox
            elif chat.mailbox:
                await self._reside(chat, session, history)
                history = None  # the next agent reads it anew
            elif chat.expects_mail or session.owns:
                await chat.mailbox.arrival()
            else:
                return  # dormant: rows in the store, nothing in memory

    async def _reside(  # RESIDENCY
        self, chat: AwakeChat, session: Session, history: list[MessageRow] | None
    ) -> None:
        messages = await self._messages(chat, session, history)
        async with open_agent(self._model, self._tools, session.row.prompt, messages) as session.agent:
            del messages  # the agent holds them in its own form
            try:
                if chat.ephemeral:
                    await self._turn(chat, session, session.agent)
                else:
                    async with self._residents.take(session.id, session.agent, chat.mailbox) as seat:
                        while not (chat.end_reason or self.leaving) and await self._residents.stays(seat):
                            if chat.mailbox:
                                await self._turn(chat, session, session.agent)
            finally:
                session.agent = None

    async def _messages(self, chat: AwakeChat, session: Session, history: list[MessageRow] | None) -> Sequence[Message]:
        if chat.ephemeral:
            return chat.mailbox.peek().incoming.history or ()
        if history is None:
            history = await self._store.history(session.id) if session.begun else []
        return [row.message for row in history]

    async def _turn(self, chat: AwakeChat, session: Session, agent: Agent) -> None:  # TURN
        if not await self._slots.take(chat):
            return
        try:
            if chat.end_reason or self.leaving or not chat.mailbox:
                return
            mail = chat.mailbox.take()
            if not session.begun:
                session.row = msgspec.structs.replace(session.row, title=_title(mail.incoming.text))
            try:
                await self._turns.run(chat, session, agent, mail, push=self.pushes(chat.key))
            finally:
                if not mail.done:  # the gateway leaves; the message stays in the inbox
                    mail.fail(Stopping(LEAVING))
        finally:
            self._slots.give_back()

    async def settle(self, chat: AwakeChat, mail: Mail, text: str, outcome: Outcome, error: str = "") -> None:
        """Answer a message outside of any turn."""
        incoming = mail.incoming
        answer = Answer(
            self._ids.new(), incoming.id, incoming.chat, text, self._clock.now(), outcome, error, memo=incoming.memo
        )
        push = self.pushes(chat.key)
        wait = 0.5
        while True:
            try:
                await self._store.finish(answer, None, [], push=push)
                break
            except StoreError as failure:
                log.error("an answer can't be stored; trying again", mail=incoming.id, cause=str(failure), wait=wait)
                mail.fail(failure)
                await anyio.sleep(wait)
                wait = min(wait * 2, 30)
        mail.settle(answer)
        if push:
            chat.outgoing.put(answer)


def _title(text: str) -> str:
    """A conversation's name until someone gives it another: the beginning of its first line."""
    line = text.strip().partition("\n")[0].strip()
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


def _sentence(error: Exception) -> str:
    if isinstance(error, StoreError):
        return UNSTORED
    return str(error) if isinstance(error, ModelError) else BROKE
