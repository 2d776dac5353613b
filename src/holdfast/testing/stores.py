"""The contract of `core.protocols.Store`, as checks that any implementation can be run through.

`await check_store(opener)` runs them all; `STORE_CHECKS` has them one by one, for a parametrized test. The
opener gets a name and opens the store of that name: a new name is an empty store, the same name again is
the same store with what was put there before.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import get_origin

from holdfast.core import failpoints
from holdfast.core.errors import StoreError
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Incoming,
    Message,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from holdfast.core.protocols import Commit, MessageRow, SessionRow, Store

StoreOpener = Callable[[str], AbstractAsyncContextManager[Store]]
OpenStore = Callable[[], AbstractAsyncContextManager[Store]]
StoreCheck = Callable[[OpenStore], Awaitable[None]]

CHAT = ChatKey("test", "chat one", "thread:2")
SESSION = SessionId("session-1")
MAIL = MailId("mail-1")

CONVERSATION: tuple[Message, ...] = (
    SystemMessage("Be brief."),
    UserMessage("What is in the files?"),
    AssistantMessage("I'll look.", (ToolCall("call-1", "read_file", '{"path": "a'), ToolCall("call-2", "list", "{}"))),
    ToolMessage("call-1", "read_file", "The arguments are not JSON.", failed=True),
    ToolMessage("call-2", "list", ""),
    AssistantMessage("Nothing of note: naïve ∑ 🦊 \0 end."),
)


async def check_store(open_named: StoreOpener) -> None:
    """Run every check, each on a store of its own."""
    for check in STORE_CHECKS:
        await check(partial(open_named, check.__name__))


def write_methods() -> list[str]:
    """The names of the protocol's methods that return a `Commit`."""
    methods = inspect.getmembers(Store, inspect.isfunction)
    return [name for name, method in methods if get_origin(inspect.signature(method).return_annotation) is Commit]


# ── what the checks store ───────────────────────────────────────────────────────────────────────


def a_mail(id: str = MAIL, text: str = "hello", *, received: float = 10.0, fingerprint: str = "") -> Incoming:
    return Incoming(MailId(id), CHAT, text, received, fingerprint=fingerprint)


def an_answer(mail: str = MAIL, text: str = "hi", *, id: str = "", created: float = 20.0) -> Answer:
    return Answer(id or f"answer-to-{mail}", MailId(mail), CHAT, text, created)


def a_session(id: str = SESSION, chat: ChatKey = CHAT, *, created: float = 5.0, title: str = "") -> SessionRow:
    return SessionRow(SessionId(id), chat, created, created, title=title, prompt="You are an agent.")


def a_row(seq: int, message: Message | str, mail: str = MAIL) -> MessageRow:
    return MessageRow(seq, UserMessage(message) if isinstance(message, str) else message, 11.5, MailId(mail))


async def texts(store: Store, session: str = SESSION) -> list[str]:
    return [row.message.text for row in await store.history(SessionId(session))]


# ── inbox ───────────────────────────────────────────────────────────────────────────────────────


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


# ── conversations ───────────────────────────────────────────────────────────────────────────────


async def a_conversation_comes_back_as_it_was(open_store: OpenStore) -> None:
    rows = [a_row(seq, message) for seq, message in enumerate(CONVERSATION)]
    async with open_store() as store:
        assert await store.wake(CHAT) is None
        assert await store.session(SESSION) is None
        store.begin(a_session(title="Files"))
        for row in rows[:-1]:
            store.append(SESSION, row)
        await store.append(SESSION, rows[-1])
        woken = await store.wake(CHAT)
        assert woken is not None
        assert woken.session == a_session(title="Files")
        assert woken.history == rows
        assert await store.history(SESSION) == rows
        stored = await store.session(SESSION)
        assert stored is not None
        assert (stored.prompt, stored.messages) == ("You are an agent.", len(rows))
        assert await store.wake(ChatKey("test", "chat one")) is None, "a thread is a chat of its own"


async def appending_again_changes_nothing(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        store.begin(a_session(title="a replay"))
        store.append(SESSION, a_row(1, "first"))
        store.append(SESSION, a_row(1, "a replay"))
        await store.append(SESSION, a_row(2, "second"))
        assert await texts(store) == ["first", "second"]
        woken = await store.wake(CHAT)
        assert woken is not None
        assert woken.session.title == ""


async def a_chat_has_one_open_conversation(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session("one"))
        assert isinstance(await _error_of(store.begin(a_session("two"))), StoreError)
        await store.end(SessionId("one"), 30.0, "new")
        await store.end(SessionId("one"), 31.0, "expired")
        assert await store.wake(CHAT) is None
        ended = await store.session(SessionId("one"))
        assert ended is not None
        assert (ended.ended, ended.end_reason) == (30.0, "new"), "it ends once"
        await store.begin(a_session("two"))
        woken = await store.wake(CHAT)
        assert woken is not None
        assert (woken.session.id, woken.history) == ("two", [])


async def pages_of_messages_end_where_asked(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        for seq in range(10):
            store.append(SESSION, a_row(seq, f"number {seq}"))
        await store.append(SESSION, a_row(10, "number 10"))
        assert [row.seq for row in await store.messages(SESSION)] == list(range(11))
        assert [row.seq for row in await store.messages(SESSION, limit=3)] == [8, 9, 10]
        assert [row.seq for row in await store.messages(SESSION, before=8, limit=3)] == [5, 6, 7]
        assert await store.messages(SESSION, before=0) == []
        assert await store.messages(SESSION, limit=0) == []
        assert await store.messages(SessionId("unknown")) == []


# ── answers ─────────────────────────────────────────────────────────────────────────────────────


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
        session = await store.session(SESSION)
        assert session is not None
        assert session.last_used == 20.0
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
        session = await store.session(SESSION)
        assert session is not None
        assert session.last_used == 20.0


async def an_answer_is_sent_or_collected(open_store: OpenStore) -> None:
    async with open_store() as store:
        for name in ("z", "collected", "a"):
            store.accept(a_mail(name))
            store.finish(an_answer(name), None, [], push=name != "collected")
        assert [answer.mail for answer in await _read_after(store, store.unsent)] == ["z", "a"], "in order"
        await store.sent("answer-to-z", 30.0)
        await store.sent("answer-to-z", 31.0)
        assert [answer.mail for answer in await store.unsent()] == ["a"]
        assert await store.answer_to(MailId("z")) == an_answer("z"), "what was sent can still be read"
        assert await store.answer_to(MailId("collected")) == an_answer("collected")


# ── commits ─────────────────────────────────────────────────────────────────────────────────────


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
        assert isinstance(await _error_of(bad), StoreError)
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


# ── listing and search ──────────────────────────────────────────────────────────────────────────


async def conversations_are_listed_newest_first(open_store: OpenStore) -> None:
    async with open_store() as store:
        for number in range(6):
            chat = ChatKey("web" if number % 2 else "api", str(number))
            store.begin(a_session(f"s{number}", chat, created=float(number), title=f"title {number}"))
        store.append(SessionId("s0"), a_row(1, "hello"))
        await store.finish(an_answer(created=50.0), SessionId("s0"), [a_row(2, "hi")], push=False)
        await store.end(SessionId("s4"), 60.0, "new")
        rows = await store.sessions()
        assert [row.id for row in rows] == ["s0", "s5", "s4", "s3", "s2", "s1"]
        assert (rows[0].last_used, rows[0].messages, rows[0].title) == (50.0, 2, "title 0")
        assert (rows[2].ended, rows[2].end_reason, rows[2].chat) == (60.0, "new", ChatKey("api", "4"))
        assert [row.id for row in await store.sessions(limit=2)] == ["s0", "s5"]
        assert [row.id for row in await store.sessions(before=5.0, limit=2)] == ["s4", "s3"]
        assert [row.id for row in await store.sessions(channel="web")] == ["s5", "s3", "s1"]
        assert [row.id for row in await store.sessions(channel="web", before=5.0)] == ["s3", "s1"]
        assert await store.sessions(limit=0) == []


async def search_finds_what_people_and_agents_said(open_store: OpenStore) -> None:
    async with open_store() as store:
        await _converse(store, "s1", UserMessage("Where do foxes sleep?"), AssistantMessage("In a den."))
        await _converse(store, "s2", UserMessage("And badgers?"), AssistantMessage("A badger sleeps in a sett."))
        await _converse(store, "s3", SystemMessage("zebra"), ToolMessage("c", "t", "zebra"), UserMessage("no match"))

        async def found(text: str) -> list[str]:
            return [row.id for row in await store.sessions(search=text)]

        assert await found("foxes") == ["s1"]
        assert await found("FOXES sleep") == ["s1"], "every word, in any case"
        assert await found("foxes badgers") == [], "all of them in one message"
        assert await found("fox") == ["s1"], "the last word may be a beginning"
        assert await found("fox sleep") == [], "the others may not"
        assert await found("zebra") == [], "neither tools' results nor instructions"
        (row,) = await store.sessions(search="sett")
        assert "\x02sett\x03" in row.snippet, row.snippet
        assert (row.messages, row.chat) == (2, ChatKey("test", "s2"))
        store.append(SessionId("s3"), a_row(9, "foxes at last"))
        await store.append(SessionId("s3"), a_row(10, "bye"))
        assert set(await found("foxes")) == {"s1", "s3"}, "what was awaited is found"


async def search_puts_the_best_first(open_store: OpenStore) -> None:
    async with open_store() as store:
        filler = "about many other things that have nothing to do with it " * 5
        await _converse(store, "s1", UserMessage(f"a lighthouse once, {filler}"))
        await _converse(store, "s2", UserMessage("lighthouse! lighthouse!"), UserMessage("lighthouse"))
        for number in range(3, 9):
            await _converse(store, f"s{number}", UserMessage(filler))
        assert [row.id for row in await store.sessions(search="lighthouse")] == ["s2", "s1"], "and each one once"
        assert [row.id for row in await store.sessions(search="lighthouse", limit=1)] == ["s2"]
        assert await store.sessions(search="lighthouse", channel="other") == []
        assert len(await store.sessions(search="lighthouse", channel="test")) == 2
        assert await store.sessions(search="lighthouse", before=1.0) == []


async def search_takes_whatever_people_type(open_store: OpenStore) -> None:
    async with open_store() as store:
        await _converse(store, "s1", UserMessage("c'est l'été, café; say \"AND\" or NOT: x-ray 3.14 漢字 don't"))
        for text in (
            "ete",
            "CAFÉ",
            "cafe\u0301",
            '"AND"',
            "NOT",
            "x-ray",
            "3.14",
            "漢字",
            "don't",
            "l'été caf",
            "🦊 été",
        ):
            assert [row.id for row in await store.sessions(search=text)] == ["s1"], text
        for text in (
            '"',
            "'",
            "*",
            "^",
            "AND OR NOT",
            "NEAR(",
            "text:x",
            "-",
            "()",
            "🦊",
            "a\0b",
            "\ud800",
            ".",
            "; --",
        ):
            await store.sessions(search=text)
        await store.sessions(search="word " * 5000)
        await store.sessions(search="x" * 100_000)
        assert await store.sessions(search="?!") == [], "nothing to look for, nothing found"
        assert [row.id for row in await store.sessions(search="  ")] == ["s1"], "no search at all is a listing"


# ── odd texts ───────────────────────────────────────────────────────────────────────────────────


async def odd_characters_survive(open_store: OpenStore) -> None:
    odd = "\0 nul \x1b \u202e \ufeff \u2028 é e\u0301 👩‍👩‍👧 \U0010ffff '\"; DROP TABLE messages --"
    call = AssistantMessage(odd, (ToolCall(odd, odd, odd),))
    async with open_store() as store:
        await store.accept(a_mail(text=odd))
        store.begin(a_session(title=odd))
        await store.finish(an_answer(text=odd), SESSION, [a_row(1, odd), a_row(2, call)], push=True)
        assert [row.message for row in await store.history(SESSION)] == [UserMessage(odd), call]
        assert (await store.unsent())[0].text == odd
        row = await store.session(SESSION)
        assert row is not None
        assert row.title == odd


async def half_a_character_is_replaced(open_store: OpenStore) -> None:
    """A lone surrogate is not Unicode: it becomes U+FFFD, wherever it stands, and nothing else is lost."""
    half, whole = "a\ud800b", "a\ufffdb"
    async with open_store() as store:
        await store.accept(a_mail(text=half))
        assert (await store.waiting())[0].text == whole
        await store.begin(a_session(title=half))
        call = AssistantMessage(half, (ToolCall("1", "tool", half),))
        await store.finish(an_answer(text=half), SESSION, [a_row(1, half), a_row(2, call)], push=True)
        messages = [row.message for row in await store.history(SESSION)]
        assert messages == [UserMessage(whole), AssistantMessage(whole, (ToolCall("1", "tool", whole),))]
        assert (await store.unsent())[0].text == whole


async def _error_of(commit: Commit[object]) -> Exception | None:
    try:
        await commit
    except Exception as error:  # noqa: BLE001 - the check looks at it
        return error
    return None


async def _read_after(store: Store, read: Callable[[], Awaitable[list[Answer]]]) -> list[Answer]:
    """Read what was written without awaiting it: whatever is awaited later comes later."""
    await store.sent("nothing", 0.0)
    return await read()


async def _converse(store: Store, id: str, *messages: Message) -> None:
    await store.begin(a_session(id, ChatKey("test", id)))
    for seq, message in enumerate(messages):
        await store.append(SessionId(id), a_row(seq, message))


STORE_CHECKS: tuple[StoreCheck, ...] = (
    a_mail_is_accepted_once,
    of_many_at_once_one_is_fresh,
    the_inbox_keeps_the_order_of_acceptance,
    a_conversation_comes_back_as_it_was,
    appending_again_changes_nothing,
    a_chat_has_one_open_conversation,
    pages_of_messages_end_where_asked,
    finishing_does_all_in_one_step,
    a_mail_has_one_answer,
    an_answer_is_sent_or_collected,
    writes_happen_in_the_order_of_their_calls,
    a_commit_may_be_awaited_by_many_and_late,
    a_bad_write_fails_alone,
    leaving_commits_everything,
    after_the_end_nothing_is_taken,
    every_write_has_its_failpoints,
    conversations_are_listed_newest_first,
    search_finds_what_people_and_agents_said,
    search_puts_the_best_first,
    search_takes_whatever_people_type,
    odd_characters_survive,
    half_a_character_is_replaced,
)
