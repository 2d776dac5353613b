"""The ladder in plain Python: what should be true of some chats, whatever is done to them and in whatever order.

The model is told what happens, as it happens: a message was stored, the language model was asked, an answer was stored.
It says what may happen and raises `AssertionError` at anything else, and it keeps what memory and the store should
hold now. When people come one at a time (`calm`), exactly one thing may happen. When many things are under way at
once, more is allowed, but only as much as their order leaves open.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.errors import ModelError, RetryModel
from holdfast.core.keys import ChatKey
from holdfast.core.messages import Answer, AssistantMessage, Incoming, Message, ToolMessage, UserMessage
from holdfast.core.protocols import Accepted, Controls, MessageRow, SessionRow
from holdfast.gateway.conversations import DROPPED
from holdfast.gateway.turns import BROKE, EMPTY, STOPPED, UNSTORED

from .ladder_answers import foretell
from .ladder_chats import MODEL, Chat, Sent, Talk, Turn

EXPIRES_AFTER = 86400.0
STALL = 1800.0
ATTEMPTS = 3
MAX_STEPS = 3
CUT_OFF = "The request ended with a restart."


class Ladder:
    """All chats. A method that is named after a write of the store is told of it once it has succeeded."""

    def __init__(self, now: Callable[[], float], time: Callable[[], float], seats: int) -> None:
        self._now = now
        self._time = time
        self.seats = seats
        """How many agents may stay warm."""
        self.chats: dict[ChatKey, Chat] = {}
        self.sent_by_id: dict[str, Sent] = {}
        self.calm = True
        """All that happens is the work of one who came alone."""
        self.leaving = False
        self.failures = 0
        """How often the store or a lease has failed."""
        self.warm: list[Chat] = []
        """Those with a warm agent, least recently used first."""
        self._taken = 0

    # ── what was stored ─────────────────────────────────────────────────────────────────────────

    def accept(self, accepted: Accepted, mail: Incoming, *, wake: bool = False) -> None:
        sent = self.sent_by_id[mail.id]
        assert accepted.fresh == (not sent.taken), (
            f"{sent.text!r} is {'' if accepted.fresh else 'not '}new to the store"
        )
        self.touch(sent.chat)
        if accepted.fresh:
            self._taken += 1
            sent.taken, sent.failures = self._taken, self.failures
            sent.expected = foretell(sent, self._now()) if self.calm and sent.command else None
            sent.chat.queue.append(sent)

    def begin(self, _: None, row: SessionRow) -> None:
        chat, talk = self.chats[row.chat], self.talk(row.id)
        if talk is None:
            assert chat.open is None, f"{chat.key} has two conversations at once"
            talk = chat.turn.talk if chat.turn else self._new_talk(chat)
            talk.id, talk.last_used = row.id, row.last_used
            for earlier in chat.talks:
                earlier.told = True
            chat.talks.append(talk)
            if row.controls != talk.controls:
                self.control(None, row.id, row.controls)
        if row.title and not talk.title:
            assert chat.turn, "a conversation has a title without a message"
            assert row.title == chat.turn.sent.text
            talk.title = row.title

    def control(self, _: None, session: str, controls: Controls) -> None:
        if self.talk(session) is None:
            return  # it could not be begun
        talk = self._open(session)
        wishes = (sent for sent in talk.chat.under_way("model", "reasoning") if not sent.effect)
        wish = next((sent for sent in wishes if self._changed(talk, talk.controls, sent) == controls), None)
        if wish:
            wish.effect = True
        assert wish or controls == talk.controls, f"nobody wanted {controls} instead of {talk.controls}"
        if controls.model != talk.controls.model and not talk.chat.turn:
            self.cool(talk.chat)
        talk.controls = controls

    def _changed(self, talk: Talk, controls: Controls, sent: Sent) -> Controls:
        """The controls of a conversation after a command."""
        wanted, now = sent.rest, controls.model or MODEL
        if sent.command == "reasoning":
            return replace(controls, reasoning="" if wanted == "default" else wanted)
        notes = controls.notes
        if talk.rows or talk.chat.turn:
            notes += (f"From here on the model is {wanted}; earlier answers were given by {now}.",)
        return replace(controls, model="" if wanted == MODEL else wanted, notes=notes)

    def _may_be_set(self, talk: Talk) -> list[Controls]:
        """What is stored; and what commands have set, who will hear that it could not be stored."""
        found = [talk.controls]
        for sent in talk.chat.under_way("model", "reasoning"):
            if self.failures > sent.failures:
                found += [self._changed(talk, controls, sent) for controls in found]
        return found

    def append(self, _: None, session: str, row: MessageRow) -> None:
        talk = self._open(session)
        turn = talk.chat.turn
        assert turn, f"{row} was written outside of a turn"
        assert turn.talk is talk, f"{row} was written into another conversation"
        assert row.mail == turn.sent.id
        talk.put(row)
        expected = turn.base + turn.context
        assert turn.unstored or talk.said == expected[: len(talk.said)], f"stored {talk.said}, not {expected}"

    def finish(
        self,
        _: None,
        answer: Answer,
        session: str | None,
        rows: Sequence[MessageRow],
        *,
        push: bool,
        controls: Controls | None = None,
    ) -> None:
        sent = self.sent_by_id[answer.mail]
        chat, turn = sent.chat, sent.chat.turn
        assert sent.taken, f"{sent.text!r} was answered and never accepted"
        assert sent.answer is None, f"{sent.text!r} was answered twice"
        if turn and turn.sent is sent:
            self._finish_turn(turn, answer, rows, controls)
        else:
            assert (session, list(rows), controls) == (None, [], None)
            self._finish_alone(sent, answer)
        sent.answer = answer
        chat.queue.remove(sent)
        chat.pushed += [sent.id] if push else []
        self.touch(chat)

    def undo(self, _: None, session: str, from_seq: int, when: float) -> None:
        talk = self._open(session)
        assert not talk.chat.turn, "something was undone in the middle of a turn"
        wishes = (sent for sent in talk.chat.under_way("undo") if not sent.effect)
        wish = next((sent for sent in wishes if talk.asked[-int(sent.rest or 1) :][0].seq == from_seq), None)
        assert wish, f"nobody wanted to undo what was said from {from_seq} on"
        wish.effect = True
        for row in talk.rows:
            row.undone = row.undone or row.seq >= from_seq
        self.cool(talk.chat)

    def end(
        self,
        ended: bool,
        session: str,
        when: float,
        reason: str,
        *,
        idle_since: float | None = None,
        hooks: bool = True,
    ) -> None:
        if not ended:
            return
        talk = self._open(session)
        chat = talk.chat
        assert not (chat.turn and chat.turn.talk is talk), "a conversation ended under its turn"
        if reason == "expired":
            assert self.may_expire(talk), f"{talk.title!r} expired too early"
            self.crowd_out()  # its place is free from now on, and was not before
        else:
            enders = [sent for sent in chat.under_way(reason) if not sent.effect]
            assert enders or (reason == "new" and session in chat.operators_ends), (
                f"nobody wanted {talk.title!r} to end: {reason}"
            )
            if enders and reason == "new":
                enders[0].effect = True
        talk.ended, talk.reason, talk.controls = when, reason, Controls()
        talk.told = talk.concluded = False
        self.cool(chat)

    def resume(self, resumed: bool, session: str, when: float) -> None:
        talk = self.talk(session)
        assert talk, "a conversation was resumed that nobody knows"
        wish = next((sent for sent in talk.chat.under_way("resume") if not sent.effect), None)
        assert wish, f"nobody wanted {talk.title!r} back"
        assert resumed
        assert talk.chat.open is None
        wish.effect = True
        for earlier in talk.chat.talks:
            earlier.told = True
        talk.ended, talk.reason, talk.told, talk.last_used, talk.overdue = None, "", False, when, None

    def conclude(self, _: None, session: str, when: float) -> None:
        talk = self.talk(session)
        assert talk
        talk.concluded = talk.ended is not None

    def sent(self, _: None, answer_id: str, when: float) -> None:
        """The post has noted it too."""

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def asked(self, chat: Chat, messages: list[Message], prefix: tuple[bytes, bytes], model: str, effort: str) -> None:
        """The language model was asked."""
        turn = chat.turn = chat.turn or self._begin_turn(chat, messages, (model, effort))
        turn.last_event = self._time()
        assert messages == turn.base + turn.context, f"the model was sent {messages}, not {turn.base + turn.context}"
        assert (model, effort) == (turn.model, turn.effort)
        turn.talk.prefix = turn.talk.prefix or prefix
        assert prefix == turn.talk.prefix, "the prefix changed inside a conversation"

    def _begin_turn(self, chat: Chat, messages: list[Message], asked_of: tuple[str, str]) -> Turn:
        last = next(message for message in reversed(messages) if isinstance(message, UserMessage))
        sent = self.sent_by_id[last.text.split()[0]]
        assert sent in self._may_be_next(chat), f"{sent.text!r} is not the next of {[s.text for s in chat.queue]}"
        talk = chat.open or self._new_talk(chat)
        talk.last_turn = self._now()
        base = talk.said if sent.history is None else list(sent.history)
        may = {(controls.model or MODEL, controls.reasoning): controls for controls in self._may_be_set(talk)[::-1]}
        controls = may.get(asked_of, talk.controls)
        turn = Turn(sent, talk, self._now(), self._time(), base, [], controls.model or MODEL, controls.reasoning)
        turn.context += turn.open_calls
        if talk.asked and talk.asked[-1].mail == sent.id:  # it was cut short, and goes on
            turn.notes_given = len(last.notes)
        else:
            turn.notes_given = len(controls.notes)
            turn.context.append(UserMessage(sent.text, controls.notes))
        if not chat.ephemeral and chat not in self.warm:
            self.warm.append(chat)
        self.touch(chat)
        return turn

    def _new_talk(self, chat: Chat) -> Talk:
        return Talk(chat, controls=Controls() if chat.ephemeral else Controls(notices=chat.notices))

    def _may_be_next(self, chat: Chat) -> Iterator[Sent]:
        for sent in chat.queue:
            if not sent.command:
                yield sent
                if not sent.hung_up and not chat.may_be_dropped(sent):
                    return

    def said_words(self, chat: Chat, words: str) -> None:
        assert chat.turn
        chat.turn.words += words
        chat.turn.last_event = self._time()

    def replied(self, chat: Chat, message: AssistantMessage) -> None:
        assert chat.turn
        turn = chat.turn
        turn.tries = 0
        if not message.tool_calls:
            turn.end = (message.text, "ok", "") if message.text else (EMPTY, "failed", "empty_answer")
            return
        turn.words = ""
        turn.context.append(message)
        turn.steps += 1
        if turn.steps == MAX_STEPS:
            turn.end = (f"I stopped after {MAX_STEPS} steps without reaching an answer.", "failed", "too_many_steps")

    def used(self, chat: Chat, result: ToolMessage) -> None:
        """A tool has come to its result."""
        assert chat.turn, f"a tool ran outside of a turn: {result}"
        chat.turn.context.append(result)
        chat.turn.last_event = self._time()

    def broke(self, chat: Chat, error: Exception) -> None:
        """The language model failed."""
        assert chat.turn
        turn = chat.turn
        turn.tries += 1
        if isinstance(error, RetryModel) and turn.tries < ATTEMPTS:
            turn.words = ""  # it is asked again
        elif isinstance(error, ModelError):
            turn.end = (str(error), "failed", error.code)
        else:
            turn.end = (BROKE, "failed", "internal_error")

    def _finish_turn(self, turn: Turn, answer: Answer, rows: Sequence[MessageRow], controls: Controls | None) -> None:
        chat, talk = turn.sent.chat, turn.talk
        notices, ends = talk.controls.notices, self._may_end(turn)
        said = {"\n\n".join((*notices, text)): (text, outcome, error) for text, outcome, error in ends}
        text, outcome, error = said.get(answer.text, ("", "", ""))
        assert (outcome, error) == (answer.outcome, answer.error), f"{answer} is none of {ends}"
        assert answer.session == talk.id
        chat.turn = None
        if chat.ephemeral:
            assert not rows
            return
        assert self._open(talk.id) is chat.open
        for row in rows:
            talk.put(row)
        expected = [*turn.base, *turn.context, *turn.open_calls, AssistantMessage(text)]
        assert talk.said == expected, f"stored {talk.said}, not {expected}"
        assert talk.title or self.failures, "a conversation has messages and no title"
        left = [replace(may, notes=may.notes[turn.notes_given :], notices=()) for may in self._may_be_set(talk)]
        talk.controls = controls or talk.controls
        assert talk.controls in left, f"left is {controls}, not {left}"
        talk.last_used, talk.overdue = answer.created, None
        if talk.model != turn.model:
            self.cool(chat)

    def _may_end(self, turn: Turn) -> list[tuple[str, str, str]]:
        chat = turn.sent.chat
        reasons = {sent.command for sent in chat.under_way("stop", "new", "resume")}
        reasons |= {"stop"} if turn.stopped else set()
        reasons |= {"new"} if turn.talk.id in chat.operators_ends else set()
        reasons |= {"stall"} if self._time() - turn.last_event > STALL else set()
        so_far = f"{turn.words.rstrip()}\n\n" if turn.words else ""
        ends = [(so_far + STOPPED[reason], "stopped", "") for reason in sorted(reasons)]
        if turn.unstored:
            ends.append((UNSTORED, "failed", "store_error"))
        if turn.end and not (self.calm and reasons):
            ends.append(turn.end)
        return ends

    # ── answers outside of turns ────────────────────────────────────────────────────────────────

    def _finish_alone(self, sent: Sent, answer: Answer) -> None:
        chat, text, something_failed = sent.chat, answer.text, self.failures > sent.failures
        if sent.expected is not None:
            assert text.startswith(sent.expected), f"{sent.text!r} was answered {text!r}, not {sent.expected!r}"
        if sent.command:
            assert answer.outcome == "ok" or (text == BROKE and something_failed), f"{sent.text!r}: {answer}"
            if answer.outcome == "ok":
                self._command_done(sent, text)
        elif text == DROPPED:
            assert chat.may_be_dropped(sent), f"{sent.text!r} was dropped for nothing"
        elif text == CUT_OFF:
            assert chat.ephemeral
            assert not sent.fingerprint
        else:
            stopped = chat.ephemeral and text == STOPPED["stop"]
            assert stopped or something_failed, f"{sent.text!r} was answered without a turn: {answer}"

    def _command_done(self, sent: Sent, text: str) -> None:
        """A command says what it did, and has done what it says."""
        chat = sent.chat
        did = text.startswith(("From the next message", "Your last", "The earlier")) or "is kept" in text
        alone = not chat.operators_ends and not any(other.hung_up for other in chat.under_way(sent.command))
        assert did == sent.effect or not alone, f"{sent.text!r} says {text!r}"
        if sent.command == "new":
            left = [waiting.text for waiting in chat.waiting if waiting.taken < sent.taken and not waiting.hung_up]
            assert not left, f"{left} came before a /new and still wait"
        if text == "Stopped." and chat.turn:
            chat.turn.stopped = True

    # ── residents, time and trouble ─────────────────────────────────────────────────────────────

    def touch(self, chat: Chat) -> None:
        """Its agent, if it has a warm one, is used; who comes in the middle of a turn waits for its end."""
        if chat.turn:
            return
        chat.used = self._time()
        if chat in self.warm:
            self.warm.remove(chat)
            self.warm.append(chat)

    def cool(self, chat: Chat) -> None:
        """Its agent leaves, if it has a warm one."""
        if chat in self.warm:
            self.warm.remove(chat)

    def crowd_out(self) -> None:
        """The idle leave that are over the limit; no busy one does, and no newer one in its place."""
        for chat in self.warm[: max(0, len(self.warm) - self.seats)]:
            if not chat.queue:
                self.cool(chat)

    def grow_cold(self, ttl: float) -> None:
        """The idle leave that nobody needed for too long."""
        for chat in list(self.warm):
            if not chat.queue and self._time() - chat.used > ttl:
                self.cool(chat)

    def may_expire(self, talk: Talk) -> bool:
        too_long = self._now() - talk.last_used > EXPIRES_AFTER
        return too_long and talk.ended is None and not talk.owned and not talk.chat.queue

    def has_to_expire(self, talk: Talk) -> bool:
        """Also by the time that only memory knows of; the clock may have been set back since."""
        return self.may_expire(talk) and self._now() - talk.last_turn > EXPIRES_AFTER

    def disturb(self) -> None:
        """Someone comes before all has come to its end: nothing is certain any more."""
        self.calm = False
        for chat in self.chats.values():
            for sent in chat.queue:
                sent.expected = None

    def failed(self, chat: ChatKey | None = None) -> None:
        """Something could not be stored, or leased; maybe a step of this chat's turn."""
        self.disturb()
        self.failures += 1
        if chat and (turn := self.chats[chat].turn):
            turn.unstored = True

    def closed(self, chat: Chat, number: int) -> None:
        """A thing that a conversation may have owned was closed."""
        for talk in [*chat.talks, *([chat.turn.talk] if chat.turn else [])]:
            for name in [name for name, owned in talk.owned.items() if owned == number]:
                wanted = chat.operators_ends or chat.under_way("new", "resume") or talk.ended is not None
                assert wanted or self.leaving or chat.ephemeral, f"{name} of {talk.title!r} was closed for nothing"
                del talk.owned[name]

    def restart(self) -> None:
        """The process is gone, and all that was in its memory."""
        self.leaving = False
        self.warm.clear()
        for chat in self.chats.values():
            chat.turn = None
            chat.operators_ends.clear()
            for sent in chat.queue:
                sent.effect, sent.expected = False, None
            for talk in chat.talks:
                talk.overdue = None

    def state(self, chat: Chat) -> str:
        if chat.turn:
            return "running"
        if chat in self.warm:
            return "resident"
        return "awake" if chat.open and chat.open.owned else "dormant"

    def talk(self, session: str) -> Talk | None:
        return next((talk for chat in self.chats.values() for talk in chat.talks if talk.id == session), None)

    def _open(self, session: str) -> Talk:
        talk = self.talk(session)
        assert talk, "a conversation that nobody knows"
        assert talk.ended is None, f"something was written into {talk.title!r}, which has ended"
        return talk
