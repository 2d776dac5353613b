"""The gateway's front door: a message is stored before it is taken, and then finds its chat's task."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio import create_task_group
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast.agent.agent import ModelConfig
from holdfast.core.clock import Clock, Ids
from holdfast.core.errors import DuplicateMail, HoldfastError, NotFound, Stopping, StoreError, TryLater
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import Incoming
from holdfast.core.protocols import Accepted, Channel, Commit, SessionRow, Store, ToolContext
from holdfast.core.scopes import Keeper, plain_errors
from holdfast.core.settings import Settings
from holdfast.gateway import commands
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.conversations import Conversations
from holdfast.gateway.delivery import Delivery
from holdfast.gateway.endings import AtEnd, Endings
from holdfast.gateway.expiry import Policies
from holdfast.gateway.hosting import LEAVING, Hosting
from holdfast.gateway.mail import Mail
from holdfast.gateway.residents import Residents
from holdfast.gateway.sessions import Session
from holdfast.gateway.tally import Tally
from holdfast.gateway.turns import BROKE, STOPPED, Turns
from holdfast.gateway.upkeep import expire_regularly, forget_regularly
from holdfast.gateway.watch import watch
from holdfast.tools.catalogue import Catalogue

log = structlog.get_logger(__name__)

CLOSE_GRACE = 5.0


class Gateway:
    """Accepts messages and hosts chats. `awake` is the one directory of what is in memory."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        model: ModelConfig,
        residents: Residents,
        tally: Tally,
        endings: Endings,
        hosting: Hosting,
        hosts: TaskGroup,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.policies = Policies(settings.expiry)
        self.store = store
        self.model = model
        self.residents = residents
        self.tally = tally
        self.awake: dict[ChatKey, AwakeChat] = {}
        self.clock = clock
        self.leaving = False
        self.unanswered = 0
        """Messages that were taken, or are being stored, and have no answer yet."""
        self.busy = 0
        """Chats that have such messages."""
        self._accepted = 0
        self.conversations = Conversations(store, hosting, clock)
        self._endings = endings
        self._hosting = hosting
        self._hosts = hosts

    def __repr__(self) -> str:
        return f"<Gateway: {len(self.awake)} awake, {self.unanswered} unanswered, {self.residents!r}>"

    async def accept(self, incoming: Incoming, *, watched: bool = False) -> Mail:
        """Store a message and set it on its way; when this returns, it is durable.

        The same id again gives the same mail or its stored answer, never a second turn. Raises
        `TryLater` when there is too much, `DuplicateMail` when the id belongs to another message,
        and `StoreError` when it can't be stored: in each case it was not taken.
        """
        if self.leaving:
            raise Stopping
        command = _command_in(incoming) is not None
        limits, awake = self.settings.limits, self.awake.get(incoming.chat)
        if self.unanswered >= limits.inbox:
            raise TryLater("The gateway has too much to do; try again in a while.", after=30)
        if self.busy >= limits.turns and not command and not (awake and awake.unanswered):
            raise TryLater("The gateway answers as many chats at once as it may; try again in a moment.", after=5)
        wakes = incoming.chat not in self.awake and incoming.history is None
        chat = self._wake(incoming.chat, ephemeral=incoming.history is not None)
        with chat.held() if command else chat.place(limits.mailbox):  # a command has a lane of its own
            storing = self.store.accept(incoming, wake=wakes)
            self._count(chat)
            chat.waking = chat.waking or wakes
            try:
                return await self._take(chat, incoming, storing, wakes=wakes, watched=watched)
            except asyncio.CancelledError:
                # The sender hung up, but the message is on its way into the inbox: see to it without them.
                if not self._has_left:
                    chat.hold()
                    self._hosts.start_soon(self._take_alone, chat, incoming, storing, wakes)
                raise

    async def _take(
        self, chat: AwakeChat, incoming: Incoming, storing: Commit[Accepted], *, wakes: bool, watched: bool = False
    ) -> Mail:
        try:
            accepted = await storing
        except Exception:
            chat.waking = chat.waking and not wakes
            self._answered(chat)
            raise
        if wakes:
            chat.waking, chat.woken = False, accepted
        if accepted.fresh:
            return self._deliver(chat, incoming, watched=watched)
        self._answered(chat)
        return await self._seen_before(chat, incoming, accepted)

    async def _take_alone(self, chat: AwakeChat, incoming: Incoming, storing: Commit[Accepted], wakes: bool) -> None:
        try:
            await self._take(chat, incoming, storing, wakes=wakes)
        except HoldfastError as error:
            log.warning("a message whose sender hung up was not taken", chat=str(chat.key), cause=str(error))
        finally:
            chat.release()

    def attach(self, key: ChatKey) -> Mail | None:
        """The mail whose turn runs in a chat right now, for someone who comes late."""
        chat = self.awake.get(key)
        return chat.turn.mail if chat and chat.turn else None

    def stop(self, key: ChatKey) -> bool:
        """Stop the turn that runs in a chat; in one made for a single request, also before it runs."""
        chat = self.awake.get(key)
        if chat and chat.turn:
            chat.turn.stop("stop")
        elif chat and chat.ephemeral and chat.mailbox:
            for mail in chat.mailbox.drain():
                chat.hold()
                self._hosts.start_soon(self._settle_stopped, chat, mail)
        else:
            return False
        return True

    async def _settle_stopped(self, chat: AwakeChat, mail: Mail) -> None:
        try:
            await self._hosting.settle(chat, mail, STOPPED["stop"], "stopped")
        finally:
            chat.release()

    async def end(self, session: SessionId) -> None:
        """End a conversation, awake or dormant, as its own /new would."""
        chat = self._hosting_session(session)
        if chat is None:
            row = await self.store.session(session)
            if row is None or row.ended is not None:
                raise NotFound("There is no open conversation with this id.")
            chat = self._wake(row.chat, ephemeral=False)
        with chat.held():
            await self.conversations.begin_anew(chat, before=self._accepted + 1, session=session)

    async def expire(self, row: SessionRow, cutoff: float, *, force: bool) -> bool:
        """End a conversation that was last used before `cutoff`, unless it has something to do or, without
        `force`, owns something that still runs."""
        chat = self.awake.get(row.chat)
        if chat is None:
            return await self._endings.end(row, "expired", idle_since=cutoff)
        session = chat.session
        if session is None or session.id != row.id or chat.unanswered or session.last_used >= cutoff:
            return False
        if session.owns and not force:
            return False
        with chat.held():
            return await chat.end("expired", row.id)

    def change(self, settings: Settings) -> None:
        """Other settings from now on, as far as they can change while the gateway runs."""
        self.policies = Policies(settings.expiry)  # first: it is the only one that may refuse
        self.settings = replace(
            self.settings,
            residents=settings.residents,
            turn=settings.turn,
            limits=settings.limits,
            expiry=settings.expiry,
            retention=settings.retention,
        )
        self.residents.change(settings.residents.limit, settings.residents.idle_ttl)
        self._hosting.change(settings.limits.turns)

    @property
    def _has_left(self) -> bool:
        """All hosts are gone, or about to be."""
        return self._hosts.cancel_scope.cancel_called

    def _hosting_session(self, session: SessionId) -> AwakeChat | None:
        return next((chat for chat in self.awake.values() if chat.session and chat.session.id == session), None)

    def _wake(self, key: ChatKey, *, ephemeral: bool) -> AwakeChat:
        chat = self.awake.get(key)
        if chat is None:
            chat = AwakeChat(key, ephemeral=ephemeral)
            self.awake[key] = chat
            chat.hold()  # until its host has had a first look
            self._hosts.start_soon(self._host, chat)
        return chat

    async def _host(self, chat: AwakeChat) -> None:
        chat.release()
        try:
            await self._hosting.host(chat, lambda: self._forget(chat))
        except Exception:  # the edge of a chat: the others go on
            log.exception("hosting a chat broke", chat=str(chat.key))
        finally:
            self._forget(chat)

    def _forget(self, chat: AwakeChat) -> None:
        if self.awake.get(chat.key) is chat:  # the chat may have woken again while the old host closed
            del self.awake[chat.key]

    def _deliver(self, chat: AwakeChat, incoming: Incoming, *, watched: bool = False) -> Mail:
        self._accepted += 1
        mail = Mail(incoming, number=self._accepted, watched=watched, on_done=partial(self._answered, chat))
        if self._has_left:  # nobody hosts it any more; it stays in the inbox
            mail.fail(Stopping(LEAVING))
        elif call := _command_in(incoming):
            chat.hold()
            chat.commands.append(mail)
            self._hosts.start_soon(self._command, chat, mail, replace(call, number=mail.number))
        else:
            chat.mailbox.put(mail)
        return mail

    def _count(self, chat: AwakeChat) -> None:
        self.unanswered += 1
        self.busy += not chat.unanswered
        chat.unanswered += 1

    def _answered(self, chat: AwakeChat) -> None:
        self.unanswered -= 1
        chat.unanswered -= 1
        self.busy -= not chat.unanswered

    async def _command(self, chat: AwakeChat, mail: Mail, call: commands.Call) -> None:
        try:
            try:
                async with chat.lane:
                    text = await commands.execute(self, chat, call)
                await self._hosting.settle(chat, mail, text, "ok")
            except Exception:  # the edge of a command: nobody else's business
                log.exception("a command broke", chat=str(chat.key), command=call.name)
                await self._hosting.settle(chat, mail, BROKE, "failed", "internal_error")
        finally:
            chat.commands.remove(mail)
            if not mail.done:  # the gateway leaves; the command stays in the inbox
                mail.fail(Stopping(LEAVING))
            chat.release()

    async def _seen_before(self, chat: AwakeChat, incoming: Incoming, accepted: Accepted) -> Mail:
        if accepted.fingerprint != incoming.fingerprint:
            raise DuplicateMail("This id was used before for another message; use a new one.")
        if found := chat.find(incoming.id):
            return found
        answer = accepted.answer or await self.store.answer_to(incoming.id)
        if answer is None:
            raise TryLater("This message is still being answered; ask again in a moment.", after=1)
        mail = Mail(incoming)
        mail.settle(answer)
        return mail

    async def recover(self) -> None:
        """Take up what an earlier process left: answer what waits, send what was not sent, see to what ended."""
        await self._endings.recover()
        answers = [answer for answer in await self.store.unsent() if self._hosting.pushes(answer.chat)]
        for answer in answers:
            self._wake(answer.chat, ephemeral=False).outgoing.put(answer)
        waiting = await self.store.waiting()
        for incoming in waiting:
            ephemeral = incoming.history is not None
            chat = self._wake(incoming.chat, ephemeral=ephemeral)
            if ephemeral and not incoming.fingerprint:
                # The connection that asked is gone and left no key to come back with: don't pay a model for it.
                await self._hosting.settle(chat, Mail(incoming), "The request ended with a restart.", "stopped")
            else:
                self._count(chat)
                self._deliver(chat, incoming)
        if waiting or answers:
            log.info("taking up what was left", unanswered=len(waiting), unsent=len(answers))

    async def drain(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        """Accept nothing more, and let running turns come to their end and their answers arrive,
        unless someone is in a hurry."""
        self.leaving = self._hosting.leaving = True
        with anyio.move_on_after(seconds):
            while any(chat.is_busy for chat in self.awake.values()):
                if hurry and hurry.is_set():
                    return
                await anyio.sleep(0.02)


@asynccontextmanager
async def open_gateway(
    *,
    settings: Settings,
    store: Store,
    model: ModelConfig,
    catalogue: Catalogue,
    channels: Mapping[str, Channel],
    sessions_folder: Path,
    clock: Clock,
    chance: random.Random,
    at_end: Sequence[AtEnd] = (),
) -> AsyncIterator[Gateway]:  # PROCESS
    ids = Ids(clock, chance)
    residents = Residents(settings.residents.limit, settings.residents.idle_ttl)

    def where(session: Session) -> ToolContext:
        return ToolContext(session.id, session.row.chat, sessions_folder / session.id, session.own)

    tally = Tally()
    turns = Turns(
        store=store,
        settings=lambda: gateway.settings,
        clock=clock,
        ids=ids,
        chance=chance,
        where=where,
        tally=tally,
    )
    with plain_errors():
        # What is kept outlives the sessions, and waits for the last close.
        async with create_task_group() as kept, create_task_group() as hosts:
            endings = Endings(store, at_end, clock, hosts)
            hosting = Hosting(
                store=store,
                turns=turns,
                residents=residents,
                keeper=Keeper(kept, CLOSE_GRACE),
                endings=endings,
                model=model,
                catalogue=catalogue,
                toolsets=settings.tools.toolsets,
                deliveries={name: Delivery(channel, store, clock) for name, channel in channels.items()},
                most_turns=settings.limits.turns,
                clock=clock,
                ids=ids,
            )
            gateway = Gateway(
                settings=settings,
                store=store,
                model=model,
                residents=residents,
                tally=tally,
                endings=endings,
                hosting=hosting,
                hosts=hosts,
                clock=clock,
            )
            await gateway.recover()
            hosts.start_soon(watch, gateway)
            hosts.start_soon(expire_regularly, gateway)
            hosts.start_soon(forget_regularly, gateway, sessions_folder)
            for channel in channels.values():
                hosts.start_soon(_receive, channel, gateway)
            try:
                yield gateway
            finally:
                gateway.leaving = hosting.leaving = True
                hosts.cancel_scope.cancel()


def _command_in(incoming: Incoming) -> commands.Call | None:
    """A request that carries its own history has no chat for a command to act on."""
    return commands.parse(incoming.text) if incoming.history is None else None


async def _receive(channel: Channel, gateway: Gateway) -> None:
    """Keep a channel receiving: whatever breaks it, it starts again after a while."""
    wait = 1.0
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await channel.receive(gateway.accept)
        except StoreError as error:
            log.error("can't take messages in", channel=channel.name, cause=str(error))
        except Exception:  # the edge of a channel
            log.exception("a channel broke", channel=channel.name)
        if asyncio.get_running_loop().time() - started > 60:
            wait = 1.0
        await anyio.sleep(wait)
        wait = min(wait * 2, 60.0)
