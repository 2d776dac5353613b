"""A turn: one message's way to its stored answer, whatever happens in between."""

import random
from collections.abc import Callable

import msgspec
import structlog
from anyio import CancelScope

from holdfast.agent.agent import Agent
from holdfast.agent.loop import Asking, run
from holdfast.core.clock import Clock, Ids
from holdfast.core.errors import ModelError, StoreError
from holdfast.core.events import AgentEvent, Said, Started, Text
from holdfast.core.keys import MailId
from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Incoming,
    Message,
    Outcome,
    ToolMessage,
    Usage,
    UserMessage,
)
from holdfast.core.protocols import Commit, Controls, MessageRow, ModelAnswer, Store, ToolContext
from holdfast.core.settings import Settings
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.mail import Mail
from holdfast.gateway.patience import insist
from holdfast.gateway.sessions import Session, Turn
from holdfast.gateway.tally import Tally

log = structlog.get_logger(__name__)

STOPPED = {
    "stop": "(Stopped.)",
    "new": "(Stopped: the conversation was ended.)",
    "stall": "(Stopped: nothing happened for too long. Please try again.)",
    "resume": "(Stopped: another conversation was resumed.)",
}
DISPLACED = ("new", "resume")
INTERRUPTED = (
    "This call was interrupted before its result was known: it may have run or not. "
    "Check before repeating anything that changes something."
)
BROKE = "Something went wrong inside the gateway; the operator's log has the details. Please try again."
EMPTY = "The model gave an empty answer; please ask again or rephrase."
UNSTORED = "The gateway can't store anything right now; its operator has to free or repair its disk."

Where = Callable[[Session], ToolContext]


class Turns:
    """Runs turns. Holds what they all need and nothing of any one of them."""

    def __init__(
        self,
        *,
        store: Store,
        settings: Callable[[], Settings],
        clock: Clock,
        ids: Ids,
        chance: random.Random,
        where: Where,
        tally: Tally,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._chance = chance
        self._where = where
        self._tally = tally

    async def run(self, chat: AwakeChat, session: Session, agent: Agent, mail: Mail, *, push: bool) -> None:
        """Answer one message. However it ends, the turn's state is gone before its mail is settled.

        Cancelled from outside (the gateway leaves), it stores nothing: the message is still in the inbox.
        """
        unsaved: list[MessageRow] = []
        try:
            with CancelScope() as scope:
                session.last_used = self._clock.now()
                chat.turn = turn = Turn(mail, scope, session.last_used)
                answer = await self._try(turn, session, agent, unsaved)
            if scope.cancelled_caught:
                answer = self._answer(mail.incoming, _stopped(turn), "stopped", session)
            push = push and turn.stop_reason not in DISPLACED  # what it has said is kept, and told to nobody
            answer = await self._finish(session, agent, answer, unsaved, mail, push=push)
        finally:
            chat.turn = None
        self._tally.count(answer, mail.incoming.received)
        mail.settle(answer)
        if push:
            chat.outgoing.put(answer)

    async def _try(self, turn: Turn, session: Session, agent: Agent, unsaved: list[MessageRow]) -> Answer:
        incoming = turn.mail.incoming
        try:
            said = await self._converse(turn, session, agent, unsaved)
        except ModelError as error:
            log.warning("the model did not answer", session=session.id, code=error.code, detail=error.detail)
            return self._answer(incoming, str(error), "failed", session, error=error.code)
        except StoreError as error:
            log.error("a step can't be stored", session=session.id, cause=str(error))
            return self._answer(incoming, UNSTORED, "failed", session, error="store_error")
        except Exception:  # the edge of a turn: its session and its neighbours go on
            log.exception("a turn broke", session=session.id, mail=incoming.id)
            return self._answer(incoming, BROKE, "failed", session, error="internal_error")
        if not said.message.text.strip():
            return self._answer(incoming, EMPTY, "failed", session, error="empty_answer", usage=said.usage)
        error_code = "length" if said.truncated else ""
        return self._answer(incoming, said.message.text, "ok", session, error=error_code, usage=said.usage)

    async def _converse(self, turn: Turn, session: Session, agent: Agent, unsaved: list[MessageRow]) -> ModelAnswer:
        mail = turn.mail
        mail.publish(Started(session.id))
        for notice in session.controls.notices:
            mail.publish(Text(f"{notice}\n\n"))
        self._open_with(mail.incoming, session, agent, unsaved)

        async def emit(event: AgentEvent) -> None:
            if isinstance(event, Said):
                turn.words.clear()
                unsaved.append(self._row(session, event.message, mail.incoming.id))
                await self._save(session, unsaved)
            else:
                turn.show(event)

        settings = self._settings()
        asking = Asking(
            sampling=mail.incoming.sampling,
            stream=mail.watched,
            reasoning=session.controls.reasoning,
            max_steps=settings.turn.max_steps,
            attempts=settings.model.attempts,
            chance=self._chance,
            show=turn.show,
        )
        return await run(agent.context, agent.tools, agent.model, self._where(session), asking, emit)

    def _open_with(self, incoming: Incoming, session: Session, agent: Agent, unsaved: list[MessageRow]) -> None:
        """Put the user's message into the context, after results for calls that were cut off before.

        A turn that a crash cut short finds its message there already, and goes on from its last step.
        """
        self._answer_open_calls(incoming, session, agent, unsaved)
        if session.last_mail != incoming.id:
            notes = session.controls.notes
            session.last_mail, session.notes_given = incoming.id, len(notes)
            message = UserMessage(incoming.text, notes)
            agent.context.add(message)
            unsaved.append(self._row(session, message, incoming.id))

    def _answer_open_calls(self, incoming: Incoming, session: Session, agent: Agent, unsaved: list[MessageRow]) -> None:
        """Give each call that was cut off a result: providers reject a history in which one has none."""
        for call in agent.context.unanswered:
            result = ToolMessage(call.id, call.name, INTERRUPTED, failed=True)
            agent.context.add(result)
            unsaved.append(self._row(session, result, incoming.id))

    async def _save(self, session: Session, unsaved: list[MessageRow]) -> None:
        """Make a step durable before the next one is taken."""
        if session.ephemeral:
            unsaved.clear()
            return
        rows = list(unsaved)  # a tool that runs beside this one may add its own while we wait
        commits = [] if session.begun else [self._store.begin(session.row)]
        commits += [self._store.append(session.id, row) for row in rows]
        for commit in commits:
            await commit
        session.begun = True
        unsaved[:] = [row for row in unsaved if row not in rows]

    async def _finish(
        self, session: Session, agent: Agent, answer: Answer, unsaved: list[MessageRow], mail: Mail, *, push: bool
    ) -> Answer:
        """Store the answer, with what people should be told besides, and return it.

        A store that fails holds up this session alone, until it works again.
        """
        self._answer_open_calls(mail.incoming, session, agent, unsaved)
        message = AssistantMessage(answer.text)
        agent.context.add(message)
        rows = [] if session.ephemeral else [*unsaved, self._row(session, message, answer.mail)]
        before, row = session.controls, session.row
        session.controls = _used_up(session)
        if before.notices:
            answer = msgspec.structs.replace(answer, text="\n\n".join((*before.notices, answer.text)))

        def write() -> Commit[None]:
            if not session.begun and not session.ephemeral:
                self._store.begin(row)  # with all its controls: what was used up goes with the answer
            controls = None if session.controls is before else session.controls
            return self._store.finish(
                answer, None if session.ephemeral else session.id, rows, push=push, controls=controls
            )

        def failed(error: StoreError) -> None:
            log.error("an answer can't be stored; trying again", session=session.id, cause=str(error))
            mail.fail(error)

        await insist(write, failed)
        session.begun = True
        return answer

    def _row(self, session: Session, message: Message, mail: MailId) -> MessageRow:
        return session.numbered(lambda seq: MessageRow(seq, message, self._clock.now(), mail))

    def _answer(
        self,
        incoming: Incoming,
        text: str,
        outcome: Outcome,
        session: Session,
        *,
        error: str = "",
        usage: Usage = Usage(),  # noqa: B008 - frozen
    ) -> Answer:
        now = self._clock.now()
        sid = "" if session.ephemeral else session.id
        return Answer(self._ids.new(), incoming.id, incoming.chat, text, now, outcome, error, sid, usage, incoming.memo)


def _used_up(session: Session) -> Controls:
    """The controls without what the turn has given to the model and to the people."""
    controls = session.controls
    if not controls.notes and not controls.notices:
        return controls
    return msgspec.structs.replace(controls, notes=controls.notes[session.notes_given :], notices=())


def _stopped(turn: Turn) -> str:
    so_far = "".join(turn.words).rstrip()
    return f"{so_far}\n\n{STOPPED[turn.stop_reason]}" if so_far else STOPPED[turn.stop_reason]
