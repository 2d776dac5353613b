"""Checks of what keeps a store small."""

from math import inf

from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.core.protocols import Store
from holdfast.testing.stores.rows import (
    CHAT,
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    an_answer,
    converse,
    texts,
)

# ── mail ────────────────────────────────────────────────────────────────────────────────────────


async def mail_is_forgotten_when_all_is_done(open_store: OpenStore) -> None:
    async with open_store() as store:
        for id in ("waits", "collected", "sent", "sent late", "unsent"):
            store.accept(a_mail(id, received=10.0))
            if id != "waits":
                store.finish(an_answer(id, created=20.0), None, [], push=id != "collected")
        store.sent("answer-to-sent", 25.0)
        store.sent("answer-to-sent late", 60.0)
        store.accept(a_mail("answered late", received=10.0))
        store.finish(an_answer("answered late", created=60.0), None, [], push=False)
        await store.accept(a_mail("new", received=60.0))
        await _prune_mail(store, 50.0)

        kept = ("waits", "sent late", "unsent", "answered late", "new")
        assert [id for id in kept if (await store.accept(a_mail(id))).fresh] == []
        assert [mail.id for mail in await store.waiting()] == ["waits", "new"]
        assert [answer.mail for answer in await store.unsent()] == ["unsent"]
        assert await store.answer_to(MailId("sent late")) == an_answer("sent late")
        for id in ("collected", "sent"):
            assert await store.answer_to(MailId(id)) is None
            assert await store.answer(f"answer-to-{id}") is None
            assert (await store.accept(a_mail(id))).fresh, "it is not known any more"


async def mail_is_forgotten_page_by_page(open_store: OpenStore) -> None:
    async with open_store() as store:
        assert await store.prune_mail(50.0) is None, "there is nothing to forget"
        for number in range(2000):
            store.accept(a_mail(f"m{number}"))
            if number % 700:
                store.finish(an_answer(f"m{number}"), None, [], push=False)
        store.accept(a_mail("new", received=60.0))
        await store.finish(an_answer("new", created=60.0), None, [], push=False)
        await _prune_mail(store, 50.0)
        assert [mail.id for mail in await store.waiting()] == ["m0", "m700", "m1400"]
        assert await store.answer_to(MailId("m1")) is None
        assert await store.answer_to(MailId("m1999")) is None
        assert await store.answer_to(MailId("new")) is not None


async def _prune_mail(store: Store, before: float) -> None:
    after: int | None = 0
    while after is not None:
        reached = await store.prune_mail(before, after=after)
        assert reached is None or reached > after, "each page comes after the one before"
        after = reached


# ── conversations ───────────────────────────────────────────────────────────────────────────────


async def an_ended_conversation_can_be_deleted(open_store: OpenStore) -> None:
    async with open_store() as store:
        await converse(store, "other", UserMessage("another fox"))
        store.begin(a_session())
        for seq in range(700):
            store.append(SESSION, a_row(seq, f"fox number {seq}"))
        store.append(SESSION, a_row(700, AssistantMessage("x" * 500_000)))
        store.append(SESSION, a_row(701, ToolMessage("call", "tool", "a result")))
        await store.undo(SESSION, 600, 25.0)
        assert len(await store.sessions(search="fox")) == 2
        store.append(SESSION, a_row(702, "said after the search"))
        await store.end(SESSION, 30.0, "new", hooks=True)
        steps = await _delete(store, SESSION)
        assert steps > 1, "nobody waits for all of it"

        assert await store.session(SESSION) is None
        assert await store.history(SESSION) == []
        assert [row.id for row in await store.sessions()] == ["other"]
        assert [row.id for row in await store.sessions(search="fox")] == ["other"]
        assert await store.sessions(search="number") == []
        assert await store.last_ended(CHAT) is None
        assert await store.unconcluded() == []
        assert await store.ended(inf) == []
        assert await store.prune_session(SESSION), "there is nothing left of it"
        assert await store.prune_session(SessionId("unknown"))


async def what_comes_after_a_deletion_is_found(open_store: OpenStore) -> None:
    """The new messages may take the places of those that are gone."""
    async with open_store() as store:
        for round in range(3):
            await converse(store, f"s{round}", *(UserMessage(f"fox {round}") for _ in range(10)))
            assert [row.id for row in await store.sessions(search=f"fox {round}")] == [f"s{round}"]
            await store.end(SessionId(f"s{round}"), 30.0, "new")
            await _delete(store, SessionId(f"s{round}"))
            assert await store.sessions(search="fox") == []


async def an_open_conversation_is_not_deleted(open_store: OpenStore) -> None:
    async with open_store() as store:
        await converse(store, "open", UserMessage("hello"))
        assert await store.prune_session(SessionId("open")), "there is nothing to go on with"
        assert await texts(store, "open") == ["hello"]
        assert [row.id for row in await store.sessions(search="hello")] == ["open"]


async def there_is_no_way_back_to_half_a_conversation(open_store: OpenStore) -> None:
    async with open_store() as store:
        await converse(store, "half", *(UserMessage(f"number {seq}") for seq in range(700)))
        await store.end(SessionId("half"), 30.0, "expired")
        assert not await store.prune_session(SessionId("half"))
        assert not await store.resume(SessionId("half"), 35.0)
        assert await store.last_ended(ChatKey("test", "half")) is None
        assert await store.expired(ChatKey("test", "half")) is None
        assert [row.id for row in await store.ended(inf)] == ["half"], "and the rest is found"


async def _delete(store: Store, session: SessionId) -> int:
    steps = 1
    while not await store.prune_session(session):
        steps += 1
        assert steps < 100, "it must come to an end"
    return steps


# ── the file ────────────────────────────────────────────────────────────────────────────────────


async def shrinking_comes_to_an_end_and_loses_nothing(open_store: OpenStore) -> None:
    async with open_store() as store:
        await converse(store, "kept", UserMessage("fox " * 1000))
        for number in range(60):
            id = f"gone {number}"
            await converse(store, id, AssistantMessage("x" * 150_000))
            await store.end(SessionId(id), 30.0, "new")
        await converse(store, "last", UserMessage("y" * 100_000))
        for number in range(60):
            await _delete(store, SessionId(f"gone {number}"))
        steps = 0
        while await store.shrink():
            steps += 1
            assert steps < 1000, "it must come to an end"
        assert await texts(store, "kept") == ["fox " * 1000]
        assert await texts(store, "last") == ["y" * 100_000]
        assert [row.id for row in await store.sessions(search="fox")] == ["kept"]
