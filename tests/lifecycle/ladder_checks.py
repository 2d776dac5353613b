"""Whether the gateway and its store are as the model of the ladder says, once nothing is under way any more."""

from typing import Any

from holdfast.storage.records import decode_controls, decode_message

from .ladder_chats import Chat, Talk
from .ladder_model import STALL
from .ladder_world import World

SLACK = 10.0
"""How many seconds later than due something may be noticed."""


def check_anytime(world: World) -> None:
    """What holds at any moment, also while the store is broken or messages are under way."""
    if world.wrong:
        raise world.wrong[0]
    assert world.gateway.unanswered >= 0
    assert world.gateway.busy >= 0
    check_stored(world)


def check_quiet(world: World, *, exact: bool) -> None:
    """What holds when all that can happen has happened; with `exact`, by the work of one who came alone."""
    check_anytime(world)
    check_residents(world, exact=exact)
    crowded = sum(bool(chat.turn) for chat in world.ladder.chats.values()) >= world.settings.limits.turns
    for chat in world.ladder.chats.values():
        check_progress(world, chat, crowded=crowded)
        for talk in chat.talks:
            check_talk(world, talk)
    check_counts(world)
    known = {number for chat in world.ladder.chats.values() for talk in _talks(chat) for number in talk.owned.values()}
    assert set(world.things) == known, f"open are {world.things}, owned {known}"


def check_residents(world: World, *, exact: bool) -> None:
    ladder, residents, now = world.ladder, world.gateway.residents, world.time()
    actual = [_chat(world, seat.session) for seat in residents]
    idle = [seat for seat in residents if seat.idle]
    assert len(idle) <= residents.limit, f"{residents} are too many"
    assert len(actual) - residents.limit <= len(actual) - len(idle), f"{residents}: one is over the limit, and not busy"
    if exact:
        doubtful = {chat for chat in ladder.warm if abs(now - chat.used - residents.idle_ttl) < SLACK}
        for chat in doubtful.difference(actual):
            ladder.cool(chat)
        ladder.crowd_out()
        ladder.grow_cold(residents.idle_ttl + SLACK)
        assert actual == ladder.warm, f"warm are {_names(actual)}, not {_names(ladder.warm)}"
    else:
        strange = [chat for chat in actual if chat not in ladder.warm and not chat.queue]
        assert not strange, f"{_names(strange)} should have no agent"
        ladder.warm[:] = actual


def check_progress(world: World, chat: Chat, *, crowded: bool) -> None:
    """Whatever can be answered is; and where nothing is to be done or owned, nothing is in memory."""
    awake, turn, queue = world.gateway.awake.get(chat.key), chat.turn, [sent.text for sent in chat.queue]
    if queue and not turn:
        assert crowded, f"{queue} are not answered"
        return
    if turn:
        assert chat in world.closed_gates, f"{turn.sent.text!r} is not answered, nor what follows: {queue}"
        assert not turn.stopped, f"{turn.sent.text!r} was said to be stopped, and runs"
        assert world.time() - turn.last_event < STALL + SLACK, f"{turn.sent.text!r} hangs"
        assert not chat.under_way("new", "stop", "undo", "resume", "model", "reasoning", "status"), queue
    state = world.ladder.state(chat)
    assert (awake.state if awake else "dormant") == state, f"{chat.key} is {awake!r}, and should be {state}"
    talk = chat.open or (turn.talk if turn else None)
    if awake and awake.session:
        assert talk, f"{awake!r} should have no conversation"
        assert awake.session.controls == talk.controls
        assert awake.session.id == talk.id or not talk.id


def check_talk(world: World, talk: Talk) -> None:
    if talk.ended is not None and world.ladder.failures == world.failures_before:
        assert talk.concluded, f"nothing was done about the end of {talk.title!r}"
    if not world.ladder.has_to_expire(talk):
        talk.overdue = None
    elif talk.overdue is None:
        talk.overdue = world.time()
    else:
        assert world.time() - talk.overdue < 60 + SLACK, f"{talk.title!r} should have expired"


def check_counts(world: World) -> None:
    gateway, chats = world.gateway, world.ladder.chats.values()
    assert gateway.unanswered == sum(len(chat.queue) for chat in chats)
    assert gateway.busy == sum(bool(chat.queue) for chat in chats)
    agents = [awake.session.agent for awake in gateway.awake.values() if awake.session and awake.session.agent]
    assert world.leases == len(agents), f"{world.leases} leases for {len(agents)} agents"
    strangers = gateway.awake.keys() - {chat.key for chat in chats}
    assert not strangers
    forlorn = [sent.text for sent, count in world.senders.items() if count and sent.answer]
    assert not forlorn, f"{forlorn} are answered, and their senders still wait"
    pushed = [mail for chat in chats for mail in chat.pushed]
    posted = world.posted if not world.ladder.failures else list(dict.fromkeys(world.posted))
    assert posted == pushed, f"delivered were {posted}, not {pushed}"


def check_stored(world: World) -> None:
    """The store has what the model has, and nothing else."""
    ladder = world.ladder
    talks = [talk for chat in ladder.chats.values() for talk in chat.talks]
    sessions = {
        row[0]: row[1:] for row in world.db.execute("SELECT id, title, ended, end_reason, controls FROM sessions")
    }
    assert sessions.keys() == {talk.id for talk in talks}
    rows: dict[str, list[Any]] = {session: [] for session in sessions}
    for session, seq, mail, role, text, extra, undone in world.db.execute(
        "SELECT session, seq, mail, role, text, extra, undone FROM messages ORDER BY session, seq"
    ):
        rows[session].append((seq, decode_message(role, text, extra), mail, undone is not None))
    for talk in talks:
        title, ended, reason, controls = sessions[talk.id]
        assert (title, ended, reason) == (talk.title, talk.ended, talk.reason)
        assert decode_controls(controls) == talk.controls
        expected = [(row.seq, row.message, row.mail, row.undone) for row in talk.rows]
        assert rows[talk.id] == expected, f"stored are {rows[talk.id]}, not {expected}"
    waiting = [mail for (mail,) in world.db.execute("SELECT id FROM inbox WHERE answered IS NULL ORDER BY number")]
    unanswered = sorted((sent for chat in ladder.chats.values() for sent in chat.queue), key=lambda sent: sent.taken)
    assert waiting == [sent.id for sent in unanswered]
    ((answers,),) = world.db.execute("SELECT count(*) FROM outbox")
    assert answers == sum(sent.answer is not None for sent in ladder.sent_by_id.values())


def _talks(chat: Chat) -> list[Talk]:
    return [*chat.talks, *([chat.turn.talk] if chat.turn and chat.turn.talk not in chat.talks else [])]


def _chat(world: World, session: str) -> Chat:
    awake = next(awake for awake in world.gateway.awake.values() if awake.session and awake.session.id == session)
    return world.ladder.chats[awake.key]


def _names(chats: list[Chat]) -> list[str]:
    return [chat.key.chat for chat in chats]
