"""Checks of how conversations end, expire, are found, and are resumed."""

from math import inf

from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.protocols import Controls, SessionRow, Store
from holdfast.testing.stores.rows import (
    CHAT,
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    an_answer,
    stored,
    texts,
)

OTHER = ChatKey("test", "another chat")


async def an_end_says_whether_it_was_the_one(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        first, second = store.end(SESSION, 30.0, "new"), store.end(SESSION, 31.0, "expired")
        assert (await first, await second) == (True, False)
        assert not await store.end(SessionId("unknown"), 30.0, "new")
        row = await stored(store)
        assert (row.ended, row.end_reason) == (30.0, "new")


# ── idle ────────────────────────────────────────────────────────────────────────────────────────


async def an_idle_conversation_ends_if_it_is_idle(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session(created=5.0))
        await store.accept(a_mail(chat=OTHER))
        assert not await store.end(SESSION, 30.0, "expired", idle_since=4.9), "it was used later"
        assert await store.open_session(CHAT) == a_session(created=5.0)
        assert await store.end(SESSION, 30.0, "expired", idle_since=5.0), "the mail waits in another chat"
        assert not await store.end(SESSION, 31.0, "expired", idle_since=50.0), "it ends once"
        assert await store.open_session(CHAT) is None


async def a_message_that_comes_before_the_end_keeps_it_open(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session())
        accepted = store.accept(a_mail(), wake=True)
        ended = store.end(SESSION, 30.0, "expired", idle_since=20.0)
        assert not await ended
        assert (await accepted).woken is not None
        assert await store.open_session(CHAT) is not None
        await store.finish(an_answer(created=25.0), SESSION, [], push=True)
        assert not await store.end(SESSION, 30.0, "expired", idle_since=24.0), "it was used just now"
        assert await store.end(SESSION, 30.0, "expired", idle_since=25.0), "the message has its answer"


async def a_message_that_comes_after_the_end_finds_it_ended(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session())
        ended = store.end(SESSION, 30.0, "expired", idle_since=20.0)
        accepted = await store.accept(a_mail(), wake=True)
        assert await ended
        assert (accepted.fresh, accepted.woken, accepted.asleep) == (True, None, False)
        assert accepted.expired == await stored(store)


async def idle_conversations_are_found_by_their_channel(open_store: OpenStore) -> None:
    async with open_store() as store:
        assert await store.channels() == []
        for number in range(9):
            channel = ("web", "api", "telegram")[number % 3]
            store.begin(a_session(f"s{number}", ChatKey(channel, str(number)), created=float(number // 6)))
        store.control(SessionId("s6"), Controls("big"))
        await store.end(SessionId("s2"), 30.0, "new")
        assert await store.channels() == ["api", "telegram", "web"]

        rows = await store.idle("web", 2.0)
        assert [row.id for row in rows] == ["s0", "s3", "s6"]
        assert (rows[2].chat, rows[2].last_used, rows[2].controls) == (ChatKey("web", "6"), 1.0, Controls("big"))
        assert [row.id for row in await store.idle("telegram", inf)] == ["s5", "s8"], "open ones only"
        assert [row.id for row in await store.idle("web", 1.0)] == ["s0", "s3"], "not used at that time or later"
        assert await store.idle("web", 0.0) == []
        assert await store.idle("unknown", inf) == []
        assert await store.idle("web", inf, limit=0) == []
        assert await _pages_of_idle(store, "web") == ["s0", "s3", "s6"], "none twice and none left out"

        for id in ("s5", "s8"):
            await store.end(SessionId(id), 30.0, "new")
        assert await store.channels() == ["api", "web"]


async def _pages_of_idle(store: Store, channel: str) -> list[str]:
    found: list[SessionRow] = []
    while page := await store.idle(channel, inf, after=_place(found), limit=1):
        found += page
    return [row.id for row in found]


def _place(found: list[SessionRow]) -> tuple[float, str]:
    return (found[-1].last_used, found[-1].id) if found else (-inf, "")


# ── ended ───────────────────────────────────────────────────────────────────────────────────────


async def ended_conversations_are_found_by_their_end(open_store: OpenStore) -> None:
    async with open_store() as store:
        for id, when in (("c", 30.0), ("a", 40.0), ("d", 30.0), ("b", 20.0)):
            store.begin(a_session(id))
            store.end(SessionId(id), when, "new")
        await store.begin(a_session("open"))
        rows = await store.ended(inf)
        assert [row.id for row in rows] == ["b", "c", "d", "a"]
        assert (rows[0].chat, rows[0].ended, rows[0].end_reason) == (CHAT, 20.0, "new")
        assert [row.id for row in await store.ended(40.0, limit=2)] == ["b", "c"]
        assert [row.id for row in await store.ended(40.0, after=(30.0, "c"))] == ["d"], "not ended at that time"
        assert await store.ended(20.0) == []
        assert await store.ended(inf, limit=0) == []


async def the_end_of_a_conversation_is_seen_to_once(open_store: OpenStore) -> None:
    async with open_store() as store:
        for number in range(3):
            id = SessionId(f"s{number}")
            store.begin(a_session(id))
            store.conclude(id, 10.0)  # too early: it has not ended
            store.end(id, 30.0 - number, "new", hooks=True)
        store.begin(a_session())
        await store.end(SESSION, 30.0, "new")
        assert [row.id for row in await store.unconcluded()] == ["s2", "s1", "s0"], "the first ended first"
        assert [row.id for row in await store.unconcluded(limit=2)] == ["s2", "s1"]
        for _ in range(2):
            await store.conclude(SessionId("s1"), 40.0)
            await store.conclude(SessionId("unknown"), 40.0)
            assert [row.id for row in await store.unconcluded()] == ["s2", "s0"]


async def that_it_expired_is_told_with_the_next_conversation(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session("one"))
        await store.end(SessionId("one"), 30.0, "new")
        assert await store.expired(CHAT) is None, "people end a conversation themselves"
        store.begin(a_session("two"))
        await store.end(SessionId("two"), 31.0, "expired")
        expired = await store.expired(CHAT)
        assert expired == await stored(store, "two")
        assert await store.expired(OTHER) is None
        assert (await store.accept(a_mail("m1"))).expired is None, "nobody asked"
        for number in (2, 3):
            accepted = await store.accept(a_mail(f"m{number}"), wake=True)
            assert (accepted.expired, accepted.asleep) == (expired, False), "asking does not tell"

        await store.begin(a_session("three"))
        assert await store.expired(CHAT) is None
        accepted = await store.accept(a_mail("m4"), wake=True)
        assert accepted.expired is None
        assert accepted.woken is not None
        await store.end(SessionId("three"), 32.0, "expired")
        expired = await store.expired(CHAT)
        assert expired is not None
        assert (expired.id, expired.prompt) == ("three", "You are an agent."), "each is told of"


async def the_last_to_end_is_found(open_store: OpenStore) -> None:
    async with open_store() as store:
        assert await store.last_ended(CHAT) is None
        for id, when in (("one", 30.0), ("two", 32.0), ("three", 31.0)):
            store.begin(a_session(id))
            store.end(SessionId(id), when, "new")
        store.begin(a_session("elsewhere", OTHER))
        await store.end(SessionId("elsewhere"), 40.0, "new")
        await store.begin(a_session("open"))
        assert await store.last_ended(CHAT) == await stored(store, "two")


# ── resumed ─────────────────────────────────────────────────────────────────────────────────────


async def a_resumed_conversation_goes_on(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session("one", title="kept"))
        store.append(SessionId("one"), a_row(0, "hello"))
        store.end(SessionId("one"), 30.0, "expired", hooks=True)
        assert await store.resume(SessionId("one"), 35.0)
        row = await store.open_session(CHAT)
        assert row is not None
        assert (row.id, row.title, row.prompt) == ("one", "kept", "You are an agent.")
        assert (row.ended, row.end_reason, row.last_used, row.controls) == (None, "", 35.0, Controls())
        woken = await store.wake(CHAT)
        assert woken is not None
        assert (woken.session, woken.next_seq) == (row, 1)
        assert await texts(store, "one") == ["hello"]
        assert await store.expired(CHAT) is None
        assert await store.unconcluded() == []
        assert await store.ended(inf) == []
        assert not await store.end(SessionId("one"), 36.0, "expired", idle_since=34.0), "it was used when it went on"


async def a_resumed_conversation_ends_like_any_other(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session("one"))
        store.end(SessionId("one"), 30.0, "expired", hooks=True)
        store.conclude(SessionId("one"), 31.0)
        store.begin(a_session("two"))
        store.resume(SessionId("one"), 35.0)
        assert await store.end(SessionId("one"), 40.0, "expired", hooks=True)
        assert [row.id for row in await store.unconcluded()] == ["one"], "its end is seen to again"
        assert await store.expired(CHAT) == await stored(store, "one"), "and people are told again"


async def resuming_one_ends_the_other(open_store: OpenStore) -> None:
    async with open_store() as store:
        for id in ("one", "two"):
            store.begin(a_session(id))
            store.end(SessionId(id), 30.0, "expired")
        store.begin(a_session("three"))
        store.control(SessionId("three"), Controls("big"))
        store.begin(a_session("elsewhere", OTHER))
        assert await store.resume(SessionId("one"), 35.0)
        ended = await stored(store, "three")
        assert (ended.ended, ended.end_reason, ended.controls) == (35.0, "resumed another", Controls())
        assert await store.unconcluded() == []
        assert await store.last_ended(CHAT) == ended, "and it can be resumed in turn"
        assert await store.open_session(OTHER) is not None
        assert await store.resume(SessionId("three"), 36.0)
        assert (await stored(store, "one")).end_reason == "resumed another"


async def who_resumes_one_knows_of_the_others(open_store: OpenStore) -> None:
    async with open_store() as store:
        for id, reason in (("one", "new"), ("two", "expired")):
            store.begin(a_session(id))
            await store.end(SessionId(id), 30.0, reason)
        assert await store.expired(CHAT) is not None
        assert await store.resume(SessionId("one"), 35.0)
        await store.end(SessionId("one"), 40.0, "new")
        assert await store.expired(CHAT) is None


async def only_what_has_ended_is_resumed(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session())
        assert not await store.resume(SessionId("unknown"), 35.0)
        assert not await store.resume(SESSION, 35.0), "it is open"
        assert await store.open_session(CHAT) == a_session()
