"""What people and operators can do to a conversation, apart from talking in it."""

from holdfast.agent.agent import ModelConfig
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreError
from holdfast.core.keys import SessionId
from holdfast.core.messages import ToolMessage, UserMessage
from holdfast.core.protocols import Controls, SessionRow, Store
from holdfast.gateway.chats import AwakeChat
from holdfast.gateway.hosting import Hosting
from holdfast.gateway.sessions import Session

DROPPED = "Dropped: a new conversation was started before this was answered."


class Conversations:
    """Acts on the conversations of awake chats. Whoever calls holds the chat awake."""

    def __init__(self, store: Store, hosting: Hosting, clock: Clock) -> None:
        self._store = store
        self._hosting = hosting
        self._clock = clock

    async def begin_anew(self, chat: AwakeChat, *, before: int, session: SessionId | None = None) -> tuple[bool, int]:
        """End a chat's conversation, and drop what was accepted before that and still waits.

        With `session`, only that one is ended. Returns whether there was one, and how many were dropped.
        """
        waiting = chat.mailbox.drain()
        dropped = [mail for mail in waiting if mail.number < before]
        chat.mailbox.put_back([mail for mail in waiting if mail.number >= before])
        try:
            had_one = await chat.end("new", session)
            if session and not had_one:
                chat.mailbox.put_back(dropped)  # it had ended before: they wait for its successor
                return False, 0
            for mail in dropped:
                await self._hosting.settle(chat, mail, DROPPED, "stopped")
        except BaseException:
            self._hosting.put_back(chat, [mail for mail in dropped if not mail.done])
            raise
        return had_one, len(dropped)

    async def resume(self, chat: AwakeChat) -> SessionRow | None:
        """Take up the conversation that ended last in a chat, in place of the one that goes on there."""
        row = await self._store.last_ended(chat.key)
        if row is None:
            return None
        await chat.end("resume", then=lambda: self._store.resume(row.id, self._clock.now()))
        return row

    async def control(self, chat: AwakeChat, session: Session, controls: Controls) -> None:
        """Set something for a conversation. What a warm agent can't take over, its successor has."""
        before, row = session.controls, session.row
        session.controls = controls
        if controls.model != before.model:
            chat.call_away()
        commits = [] if session.begun else [self._store.begin(row)]
        commits.append(self._store.control(session.id, controls))
        try:
            for commit in commits:
                await commit
        except StoreError:
            if session.controls is controls:  # nothing else was set since
                session.controls = before
            raise
        session.begun = session.begun or session.row.title == row.title  # a title that came since is yet to be stored

    async def undo(self, session: Session, count: int) -> tuple[int, bool]:
        """Take back the last messages of the user's and all that followed. Returns how many there were, and
        whether tools were used meanwhile."""
        history = await self._store.history(session.id) if session.begun else []
        asked = [row for row in history if isinstance(row.message, UserMessage)][-count:]
        if asked:
            await self._store.undo(session.id, asked[0].seq, self._clock.now())
            session.last_mail = ""
        undone = [row.message for row in history if asked and row.seq >= asked[0].seq]
        return len(asked), any(isinstance(message, ToolMessage) for message in undone)

    def model_of(self, chat: AwakeChat) -> ModelConfig:
        """The model that answers in a chat, as far as is known."""
        return self._hosting.model_for(chat.session) if chat.session else self._hosting.model

    async def describe(self, chat: AwakeChat) -> str:
        """A few plain lines for the people in a chat."""
        session, turn = await chat.conversation(), chat.turn
        model, effort = self._hosting.model_for(session), session.controls.reasoning
        running = f"running for {self._clock.now() - turn.started:.0f} s" if turn else "nothing runs"
        lines = [
            f"Model: {model.name} ({model.provider}){f', reasoning effort {effort}' if effort else ''}",
            f"Now: {running}, {len(chat.mailbox)} waiting",
        ]
        if session.begun:
            lines.append(f"Conversation: {session.row.title or session.id}, {session.next_seq} messages")
        else:
            lines.append("Conversation: a new one")
        return "\n".join(lines)
