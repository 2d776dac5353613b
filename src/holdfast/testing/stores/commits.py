"""Checks of order, durability and what a failed write leaves."""

import asyncio
import inspect
from collections.abc import Callable
from typing import get_origin

from holdfast.core import failpoints
from holdfast.core.errors import StoreError
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import AssistantMessage
from holdfast.core.protocols import Commit, Controls, Store
from holdfast.testing.stores.rows import (
    CHAT,
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    an_answer,
    error_of,
    texts,
)


def write_methods() -> list[str]:
    """The names of the protocol's methods that return a `Commit`."""
    methods = inspect.getmembers(Store, inspect.isfunction)
    return [name for name, method in methods if get_origin(inspect.signature(method).return_annotation) is Commit]


async def writes_happen_in_the_order_of_their_calls(open_store: OpenStore) -> None:
    async with open_store() as store:
        for turn in range(50):
            store.begin(a_session(f"session-{turn}"))
            store.append(SessionId(f"session-{turn}"), a_row(1, "hello"))
            last = store.end(SessionId(f"session-{turn}"), 30.0 + turn, "new")
        await last
        assert len(await store.sessions(limit=100)) == 50, "each began after the one before it had ended"


async def a_commit_may_be_awaited_by_many_and_late(open_store: OpenStore) -> None:
    async with open_store() as store:
        commit = store.accept(a_mail())

        async def waits() -> bool:
            return (await commit).fresh

        given_up = asyncio.ensure_future(waits())
        patient = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        given_up.cancel()
        assert await patient, "one waiter who gives up takes nothing from the others"
        assert await waits()
        await asyncio.gather(given_up, return_exceptions=True)


async def a_bad_write_fails_alone(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        before = [store.append(SESSION, a_row(seq, "before")) for seq in range(5)]
        bad = store.append(SessionId("unknown"), a_row(1, "a message of no conversation"))
        after = [store.append(SESSION, a_row(seq, "after")) for seq in range(5, 10)]
        assert isinstance(await error_of(bad), StoreError)
        for commit in before + after:
            await commit
        assert await texts(store) == ["before"] * 5 + ["after"] * 5


async def leaving_commits_everything(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.accept(a_mail())
        store.begin(a_session(title="kept"))
        for seq in range(100):
            store.append(SESSION, a_row(seq, f"number {seq}"))
    async with open_store() as store:
        assert await store.waiting() == [a_mail()]
        woken = await store.wake(CHAT)
        assert woken is not None
        assert woken.session.title == "kept"
        assert woken.history == [a_row(seq, f"number {seq}") for seq in range(100)]


async def after_the_end_nothing_is_taken(open_store: OpenStore) -> None:
    async with open_store() as store:
        pass
    try:
        store.accept(a_mail())
    except StoreError:
        return
    raise AssertionError("a write after the end must be refused, or it would be lost without a word")


async def every_write_has_its_failpoints(open_store: OpenStore) -> None:
    async with open_store():
        expected = {f"store.{name}.{when}" for name in write_methods() for when in ("before", "after")}
        missing = expected - set(failpoints.names())
        assert not missing, f"no failpoints {sorted(missing)}"


OTHER = ChatKey("test", "another chat")

WRITES: dict[str, Callable[[Store], Commit[object]]] = {
    "accept": lambda store: store.accept(a_mail("new", chat=OTHER), wake=True),
    "begin": lambda store: store.begin(a_session("new", OTHER)),
    "control": lambda store: store.control(SESSION, Controls("small")),
    "append": lambda store: store.append(SESSION, a_row(3, "one more")),
    "finish": lambda store: store.finish(
        an_answer("waits"),
        SESSION,
        [a_row(3, "said"), a_row(4, AssistantMessage("hi"))],
        push=True,
        controls=Controls(),
    ),
    "sent": lambda store: store.sent("answer-to-answered", 50.0),
    "undo": lambda store: store.undo(SESSION, 1, 50.0),
    "end": lambda store: store.end(SESSION, 50.0, "new", hooks=True),
    "conclude": lambda store: store.conclude(SessionId("expired"), 50.0),
    "resume": lambda store: store.resume(SessionId("over"), 50.0),
    "prune_mail": lambda store: store.prune_mail(50.0),
    "prune_session": lambda store: store.prune_session(SessionId("older")),
    "shrink": lambda store: store.shrink(),
}
"""Every write of the protocol, on what `_prepare` stores."""


async def _prepare(store: Store) -> None:
    for id in ("settled", "answered", "waits"):
        await store.accept(a_mail(id))
    await store.finish(an_answer("settled"), None, [], push=False)
    await store.finish(an_answer("answered"), None, [], push=True)
    for id, chat, reason in (("older", CHAT, "new"), ("over", CHAT, "new"), ("expired", OTHER, "expired")):
        await store.begin(a_session(id, chat))
        await store.append(SessionId(id), a_row(1, f"this is {id}"))
        await store.end(SessionId(id), 30.0, reason, hooks=True)
    await store.begin(a_session())
    await store.control(SESSION, Controls("big", notes=("a note",)))
    for seq in range(3):
        await store.append(SESSION, a_row(seq, f"number {seq}"))


async def _everything(store: Store) -> list[object]:
    """All that a store tells of what `_prepare` and `WRITES` put there."""
    told: list[object] = [await store.waiting(), await store.unsent(), await store.sessions(search="this")]
    told += [await store.answer_to(MailId(id)) for id in ("settled", "answered", "waits", "new")]
    for chat in (CHAT, OTHER):
        told += [await store.wake(chat), await store.expired(chat), await store.last_ended(chat)]
    for session in map(SessionId, (SESSION, "older", "over", "expired", "new")):
        told += [await store.session(session), await store.history(session)]
    return [*told, await store.unconcluded(), await store.ended(100.0), await store.idle("test", 100.0)]


async def a_write_that_fails_leaves_everything_as_it_was(open_store: OpenStore) -> None:
    assert sorted(WRITES) == sorted(write_methods()), "every write is tried"
    async with open_store() as store:
        await _prepare(store)
        for name, write in WRITES.items():
            before = await _everything(store)
            failpoints.arm(f"store.{name}.before=fail")
            try:
                assert isinstance(await error_of(write(store)), StoreError), name
            finally:
                failpoints.disarm()
            assert await _everything(store) == before, f"a failed {name} changed something"


async def a_write_is_whole_once_it_is_awaited(open_store: OpenStore) -> None:
    """Without this, a store that does nothing would pass as one that does nothing by halves."""
    async with open_store() as store:
        await _prepare(store)
        for name, write in WRITES.items():
            before = await _everything(store)
            await write(store)
            assert name == "shrink" or await _everything(store) != before, f"{name} changed nothing"
