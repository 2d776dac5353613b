"""Checks of conversations and their messages."""

import msgspec

from holdfast.core.errors import StoreError
from holdfast.core.keys import ChatKey, SessionId
from holdfast.core.messages import AssistantMessage, UserMessage
from holdfast.core.protocols import Controls, Store, Woken
from holdfast.testing.stores.rows import (
    CHAT,
    CONVERSATION,
    SESSION,
    OpenStore,
    a_mail,
    a_row,
    a_session,
    error_of,
    stored,
    texts,
)


async def a_conversation_comes_back_as_it_was(open_store: OpenStore) -> None:
    rows = [a_row(seq, message) for seq, message in enumerate(CONVERSATION)]
    async with open_store() as store:
        assert await store.wake(CHAT) is None
        assert await store.session(SESSION) is None
        store.begin(a_session(title="Files"))
        for row in rows[:-1]:
            store.append(SESSION, row)
        await store.append(SESSION, rows[-1])
        woken = await _woken(store)
        assert woken.session == a_session(title="Files")
        assert (woken.history, woken.next_seq) == (rows, len(rows))
        assert await store.history(SESSION) == rows
        session = await stored(store)
        assert (session.prompt, session.messages) == ("You are an agent.", len(rows))
        assert await store.wake(ChatKey("test", "chat one")) is None, "a thread is a chat of its own"


async def appending_again_changes_nothing(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session(title="a title"))
        store.begin(a_session(title="a replay"))
        store.append(SESSION, a_row(1, "first"))
        store.append(SESSION, a_row(1, "a replay"))
        await store.append(SESSION, a_row(2, "second"))
        assert await texts(store) == ["first", "second"]
        assert (await stored(store)).title == "a title"


async def a_chat_has_one_open_conversation(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session("one"))
        assert isinstance(await error_of(store.begin(a_session("two"))), StoreError)
        await store.end(SessionId("one"), 30.0, "new")
        await store.end(SessionId("one"), 31.0, "expired")
        assert await store.wake(CHAT) is None
        ended = await stored(store, "one")
        assert (ended.ended, ended.end_reason) == (30.0, "new"), "it ends once"
        await store.begin(a_session("two"))
        woken = await _woken(store)
        assert (woken.session.id, woken.history, woken.next_seq) == ("two", [], 0)


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


async def what_belongs_to_a_conversation_comes_with_it(open_store: OpenStore) -> None:
    controls = Controls("big", "high", ("for the model", "and more"), ("for people",))
    tools: tuple[tuple[str, ...] | None, ...] = (None, (), ("list", "read_file"))
    async with open_store() as store:
        for number, names in enumerate(tools):
            chat = ChatKey("test", str(number))
            begun = msgspec.structs.replace(a_session(f"s{number}", chat), tools=names, controls=controls)
            await store.begin(begun)
            assert (await _woken(store, chat)).session == begun
            assert await store.open_session(chat) == begun
            assert await stored(store, f"s{number}") == begun
            accepted = await store.accept(a_mail(f"m{number}", chat=chat), wake=True)
            assert accepted.woken is not None
            assert accepted.woken.session == begun


async def a_conversation_without_a_title_may_get_one(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        store.control(SESSION, Controls("big"))
        await store.begin(msgspec.structs.replace(a_session(title="late"), prompt="another"))
        row = await stored(store)
        assert (row.title, row.prompt, row.controls) == ("late", "You are an agent.", Controls("big"))


async def controls_are_set_while_it_is_open(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.begin(a_session())
        for controls in (Controls("big"), Controls(reasoning="low", notes=("x",)), Controls(), Controls("small")):
            await store.control(SESSION, controls)
            assert (await stored(store)).controls == controls
        await store.control(SessionId("unknown"), Controls("big"))
        await store.end(SESSION, 30.0, "new")
        assert (await stored(store)).controls == Controls(), "they end with the conversation"
        await store.control(SESSION, Controls("big"))
        assert (await stored(store)).controls == Controls(), "an ended conversation has none"


async def notes_are_kept_with_their_message(open_store: OpenStore) -> None:
    said = UserMessage("hello", ("The model was changed.", "The user is \0 away."))
    async with open_store() as store:
        store.begin(a_session())
        await store.append(SESSION, a_row(0, said))
        assert [row.message for row in await store.history(SESSION)] == [said]
        assert await store.sessions(search="changed") == [], "nobody said it"


async def what_was_undone_is_in_no_history(open_store: OpenStore) -> None:
    async with open_store() as store:
        store.begin(a_session())
        for seq, text in enumerate(("a fox", "an owl", "a badger", "a hare")):
            store.append(SESSION, a_row(seq, text))
        await store.undo(SESSION, 2, 30.0)
        assert await texts(store) == ["a fox", "an owl"]
        assert [row.seq for row in await store.messages(SESSION)] == [0, 1]
        assert (await stored(store)).messages == 2
        assert [row.messages for row in await store.sessions()] == [2]
        assert await store.sessions(search="badger") == []
        assert [row.messages for row in await store.sessions(search="fox")] == [2]
        woken = await _woken(store)
        assert ([row.seq for row in woken.history], woken.next_seq) == ([0, 1], 4), "no number is used again"
        accepted = await store.accept(a_mail(), wake=True)
        assert accepted.woken == woken

        await store.append(SESSION, a_row(4, AssistantMessage("a lynx")))
        await store.undo(SESSION, 1, 31.0)
        await store.undo(SESSION, 1, 32.0)
        await store.undo(SessionId("unknown"), 0, 32.0)
        assert await texts(store) == ["a fox"]
        await store.append(SESSION, a_row(4, "a replay"))
        assert await texts(store) == ["a fox"], "what was undone is stored, and stays undone"
        assert (await _woken(store)).next_seq == 5


async def _woken(store: Store, chat: ChatKey = CHAT) -> Woken:
    woken = await store.wake(chat)
    assert woken is not None, f"{chat} has no open conversation"
    return woken
