"""Checks of listing and search, and of odd texts."""

from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from holdfast.core.protocols import Controls
from holdfast.testing.stores.rows import (
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    an_answer,
    converse,
    stored,
)


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
        await converse(store, "s1", UserMessage("Where do foxes sleep?"), AssistantMessage("In a den."))
        await converse(store, "s2", UserMessage("And badgers?"), AssistantMessage("A badger sleeps in a sett."))
        await converse(store, "s3", SystemMessage("zebra"), ToolMessage("c", "t", "zebra"), UserMessage("no match"))

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
        await converse(store, "s1", UserMessage(f"a lighthouse once, {filler}"))
        await converse(store, "s2", UserMessage("lighthouse! lighthouse!"), UserMessage("lighthouse"))
        for number in range(3, 9):
            await converse(store, f"s{number}", UserMessage(filler))
        assert [row.id for row in await store.sessions(search="lighthouse")] == ["s2", "s1"], "and each one once"
        assert [row.id for row in await store.sessions(search="lighthouse", limit=1)] == ["s2"]
        assert await store.sessions(search="lighthouse", channel="other") == []
        assert len(await store.sessions(search="lighthouse", channel="test")) == 2
        assert await store.sessions(search="lighthouse", before=1.0) == []


async def search_takes_whatever_people_type(open_store: OpenStore) -> None:
    async with open_store() as store:
        await converse(store, "s1", UserMessage("c'est l'été, café; say \"AND\" or NOT: x-ray 3.14 漢字 don't"))
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


async def odd_characters_survive(open_store: OpenStore) -> None:
    odd = "\0 nul \x1b \u202e \ufeff \u2028 é e\u0301 👩‍👩‍👧 \U0010ffff '\"; DROP TABLE messages --"
    call = AssistantMessage(odd, (ToolCall(odd, odd, odd),))
    async with open_store() as store:
        await store.accept(a_mail(text=odd))
        store.begin(a_session(title=odd))
        await store.finish(an_answer(text=odd), SESSION, [a_row(1, odd), a_row(2, call)], push=True)
        assert [row.message for row in await store.history(SESSION)] == [UserMessage(odd), call]
        assert (await store.unsent())[0].text == odd
        await store.control(SESSION, Controls(odd, odd, (odd,), (odd,)))
        row = await stored(store)
        assert (row.title, row.controls) == (odd, Controls(odd, odd, (odd,), (odd,)))


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
        await store.control(SESSION, Controls(notes=(half,)))
        await store.end(SESSION, 30.0, half)
        assert (await stored(store)).end_reason == whole
