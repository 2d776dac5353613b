"""Checks of the inbox and the outbox."""

from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Answer, AssistantMessage, Incoming, Sampling, Usage
from holdfast.core.protocols import Controls
from holdfast.testing.stores.rows import (
    CHAT,
    CONVERSATION,
    MAIL,
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    an_answer,
    stored,
    texts,
)


async def a_mail_is_accepted_once(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.accept(a_mail(fingerprint="f1"))
        assert first.fresh
        assert first.answer is None
        again = await store.accept(a_mail(text="something else", fingerprint="f2"))
        assert not again.fresh, "the same id is not new"
        assert again.fingerprint == "f1", "it says with which fingerprint it was seen first"
        assert again.answer is None, "it has no answer yet"
        assert await store.waiting() == [a_mail(fingerprint="f1")], "the first one stays as it was"

        answer = an_answer()
        await store.finish(answer, None, [], push=False)
        again = await store.accept(a_mail(fingerprint="f1"))
        assert (again.fresh, again.fingerprint, again.answer) == (False, "f1", answer)


async def of_many_at_once_one_is_fresh(open_store: OpenStore) -> None:
    async with open_store() as store:
        accepted = [store.accept(a_mail()) for _ in range(20)]
        fresh = [(await commit).fresh for commit in accepted]
        assert fresh == [True] + [False] * 19


async def the_inbox_keeps_the_order_of_acceptance(open_store: OpenStore) -> None:
    whole = Incoming(
        MailId("whole"),
        ChatKey("api", "x"),
        "text",
        1.25,
        sender="ann",
        fingerprint="f",
        history=CONVERSATION,
        sampling=Sampling(0.5, 0.9, 100, ("stop",)),
        memo='{"to": 7}',
    )
    mails = [a_mail("z", received=3.0), whole, a_mail("a", received=1.0), a_mail("m", received=2.0)]
    async with open_store() as store:
        for mail in mails:
            store.accept(mail)
        await store.finish(an_answer("a"), None, [], push=True)
        assert await store.waiting() == [mails[0], whole, mails[3]]


async def finishing_does_all_in_one_step(open_store: OpenStore) -> None:
    answer = Answer("a1", MAIL, CHAT, "hi", 20.0, "failed", "model_error", SESSION, Usage(3, 4), "memo")
    async with open_store() as store:
        store.accept(a_mail())
        store.begin(a_session())
        store.append(SESSION, a_row(1, "hello"))
        await store.finish(answer, SESSION, [a_row(1, "a replay"), a_row(2, AssistantMessage("hi"))], push=True)
        assert await store.waiting() == []
        assert await store.unsent() == [answer]
        assert await store.answer_to(MAIL) == answer
        assert await store.answer("a1") == answer
        assert await texts(store) == ["hello", "hi"]
        assert (await stored(store)).last_used == 20.0
        assert await store.answer("unknown") is None
        assert await store.answer_to(MailId("unknown")) is None


async def a_mail_has_one_answer(open_store: OpenStore) -> None:
    first, second = an_answer(id="a1", created=20.0), an_answer(id="a2", text="another", created=21.0)
    async with open_store() as store:
        store.accept(a_mail())
        store.begin(a_session())
        store.finish(first, SESSION, [a_row(1, "one")], push=True)
        await store.finish(second, SESSION, [a_row(2, "two")], push=True)
        assert await store.answer_to(MAIL) == first
        assert await store.answer("a2") is None
        assert await store.unsent() == [first]
        assert await texts(store) == ["one"], "the second finish changes nothing at all"
        assert (await stored(store)).last_used == 20.0


async def an_answer_is_sent_or_collected(open_store: OpenStore) -> None:
    async with open_store() as store:
        for name in ("z", "collected", "a"):
            store.accept(a_mail(name))
            store.finish(an_answer(name), None, [], push=name != "collected")
        await store.sent("nothing", 0.0)  # whatever is awaited later comes later
        assert [answer.mail for answer in await store.unsent()] == ["z", "a"], "in order"
        await store.sent("answer-to-z", 30.0)
        await store.sent("answer-to-z", 31.0)
        assert [answer.mail for answer in await store.unsent()] == ["a"]
        assert await store.answer_to(MailId("z")) == an_answer("z"), "what was sent can still be read"
        assert await store.answer_to(MailId("collected")) == an_answer("collected")


async def finishing_sets_the_controls_with_it(open_store: OpenStore) -> None:
    said, spent = Controls("big", "high", ("a note",), ("a notice",)), Controls("big", "high")
    async with open_store() as store:
        store.begin(a_session())
        store.control(SESSION, said)
        store.accept(a_mail("one"))
        await store.finish(an_answer("one"), SESSION, [], push=False)
        assert (await stored(store)).controls == said, "what is not given stays"
        store.accept(a_mail("two"))
        await store.finish(an_answer("two"), SESSION, [], push=False, controls=spent)
        assert (await stored(store)).controls == spent
        await store.finish(an_answer("two", id="again"), SESSION, [], push=False, controls=said)
        assert (await stored(store)).controls == spent, "a second finish changes nothing at all"
        store.end(SESSION, 30.0, "new")
        store.accept(a_mail("three"))
        await store.finish(an_answer("three"), SESSION, [a_row(1, "late")], push=False, controls=said)
        assert (await stored(store)).controls == Controls(), "an ended conversation has none"
        assert await texts(store) == ["late"]
