"""What the checks of stores put into them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Incoming,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from holdfast.core.protocols import Commit, MessageRow, SessionRow, Store

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


def a_mail(
    id: str = MAIL, text: str = "hello", *, received: float = 10.0, fingerprint: str = "", chat: ChatKey = CHAT
) -> Incoming:
    return Incoming(MailId(id), chat, text, received, fingerprint=fingerprint)


def an_answer(mail: str = MAIL, text: str = "hi", *, id: str = "", created: float = 20.0) -> Answer:
    return Answer(id or f"answer-to-{mail}", MailId(mail), CHAT, text, created)


def a_session(id: str = SESSION, chat: ChatKey = CHAT, *, created: float = 5.0, title: str = "") -> SessionRow:
    return SessionRow(SessionId(id), chat, created, created, title=title, prompt="You are an agent.")


def a_row(seq: int, message: Message | str, mail: str = MAIL) -> MessageRow:
    return MessageRow(seq, UserMessage(message) if isinstance(message, str) else message, 11.5, MailId(mail))


async def texts(store: Store, session: str = SESSION) -> list[str]:
    return [row.message.text for row in await store.history(SessionId(session))]


async def error_of(commit: Commit[object]) -> Exception | None:
    try:
        await commit
    except Exception as error:  # noqa: BLE001 - the check looks at it
        return error
    return None


async def stored(store: Store, session: str = SESSION) -> SessionRow:
    row = await store.session(SessionId(session))
    assert row is not None, f"there is no conversation {session}"
    return row


async def converse(store: Store, id: str, *messages: Message) -> None:
    """A conversation in a chat of its own."""
    await store.begin(a_session(id, ChatKey("test", id)))
    for seq, message in enumerate(messages):
        await store.append(SessionId(id), a_row(seq, message))
