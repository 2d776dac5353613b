"""How messages, mails and answers lie in the tables.

A message's text has a column of its own and is stored once; what else a message carries is JSON beside
it, and nothing for a plain one. Everything comes back exactly as it was, but for one thing: half a
surrogate pair is no character, can't be written as UTF-8, and is stored as U+FFFD.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.messages import Answer, AssistantMessage, Incoming, Message, SystemMessage, UserMessage
from holdfast.core.protocols import Controls

_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_mail_decoder = msgspec.json.Decoder(Incoming)
_answer_decoder = msgspec.json.Decoder(Answer)
_controls_decoder = msgspec.json.Decoder(Controls)
_tools_decoder = msgspec.json.Decoder(tuple[str, ...])
_plain_types: dict[str, Callable[[str], Message]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
}


def characters(text: str) -> str:
    """The text itself, unless it holds half surrogate pairs: those become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(thing: Incoming | Answer | Message | Controls | tuple[str, ...]) -> str:
    try:
        return _encoder.encode(thing).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_with_characters(msgspec.to_builtins(thing))).decode()


def _with_characters(value: Any) -> Any:
    if isinstance(value, str):
        return characters(value)
    if isinstance(value, dict):
        return {key: _with_characters(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_characters(item) for item in value]
    return value


def encode_message(message: Message) -> tuple[str, str, str | None]:
    """Its role, text and extra."""
    role = str(message.__struct_config__.tag)
    plain = role in _plain_types and message == _plain_types[role](message.text)
    extra = None if plain else encode(msgspec.structs.replace(message, text=""))
    return role, characters(message.text), extra


def decode_message(role: str, text: str, extra: str | None) -> Message:
    if extra is None:
        return _plain_types[role](text)
    message: Message = _message_decoder.decode(extra)
    return msgspec.structs.replace(message, text=text)


_nothing_set = Controls()


def encode_controls(controls: Controls) -> str | None:
    return None if controls == _nothing_set else encode(controls)


def decode_controls(text: str | None) -> Controls:
    return _nothing_set if text is None else _controls_decoder.decode(text)


def encode_tools(tools: tuple[str, ...] | None) -> str | None:
    return None if tools is None else encode(tools)


def decode_tools(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else _tools_decoder.decode(text)


decode_mail = _mail_decoder.decode
decode_answer = _answer_decoder.decode
