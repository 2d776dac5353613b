"""The names by which chats, sessions and messages are known."""

from typing import NamedTuple, NewType
from urllib.parse import quote, unquote

SessionId = NewType("SessionId", str)
MailId = NewType("MailId", str)
"""Identifies one accepted message; a channel that delivers the same message again uses the same id."""


class ChatKey(NamedTuple):
    """An address where people meet their agent. It outlives the conversations held there."""

    channel: str
    chat: str
    thread: str = ""

    def __str__(self) -> str:
        parts = (self.channel, self.chat, self.thread) if self.thread else (self.channel, self.chat)
        return ":".join(quote(part, safe="/@+ ") for part in parts)

    @classmethod
    def parse(cls, text: str) -> "ChatKey":
        channel, _, rest = text.partition(":")
        chat, _, thread = rest.partition(":")
        if not channel or not chat:
            raise ValueError(f"not a chat's address: {text!r}")
        return cls(unquote(channel), unquote(chat), unquote(thread))
