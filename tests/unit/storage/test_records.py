import re
import sqlite3
from contextlib import closing

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.messages import (
    Answer,
    AssistantMessage,
    Incoming,
    Message,
    Sampling,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from holdfast.storage.records import characters, decode_answer, decode_mail, decode_message, encode, encode_message

TEXTS = st.text(st.characters(codec="utf-8"))
HALVES = st.text(st.characters())
"""With lone surrogates."""
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MESSAGES = st.one_of(*(st.from_type(kind) for kind in (SystemMessage, UserMessage, AssistantMessage, ToolMessage)))


@given(MESSAGES)
def test_every_message_comes_back_exactly(message: Message) -> None:
    """Through a real table, which is where NUL characters get lost if they do."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE messages (role TEXT, text TEXT, extra TEXT)")
        db.execute("INSERT INTO messages VALUES (?, ?, ?)", encode_message(message))
        back = decode_message(*db.execute("SELECT * FROM messages").fetchone())
    assert back == message
    assert type(back) is type(message)


@given(st.builds(Incoming, received=FINITE, sampling=st.builds(Sampling, temperature=FINITE, top_p=FINITE)))
@settings(max_examples=50)
def test_every_mail_comes_back_exactly(mail: Incoming) -> None:
    assert decode_mail(encode(mail)) == mail


@given(st.builds(Answer, created=FINITE))
@settings(max_examples=50)
def test_every_answer_comes_back_exactly(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


@given(st.one_of(st.builds(UserMessage, TEXTS), st.builds(AssistantMessage, TEXTS), st.builds(SystemMessage, TEXTS)))
def test_a_plain_message_has_nothing_beside_its_text(message: Message) -> None:
    assert encode_message(message) == (message.__struct_config__.tag, message.text, None)


@given(st.builds(ToolMessage, TEXTS, TEXTS, TEXTS, st.booleans()))
def test_text_is_stored_once(message: ToolMessage) -> None:
    _, text, extra = encode_message(message)
    assert text == message.text
    assert extra is not None
    assert msgspec.json.decode(extra)["text"] == ""


@given(HALVES)
def test_half_characters_are_replaced_and_nothing_else(text: str) -> None:
    def whole(pair: re.Match[str]) -> str:
        high, low = map(ord, pair[0])
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))

    joined = re.sub("[\ud800-\udbff][\udc00-\udfff]", whole, text)
    assert characters(text) == re.sub("[\ud800-\udfff]", "\ufffd", joined)


def test_two_halves_that_belong_together_become_the_character() -> None:
    assert characters("\ud83e\udd8a and \ud83e") == "🦊 and \ufffd"


@given(st.builds(ToolMessage, HALVES, HALVES, HALVES, st.booleans()))
def test_half_characters_are_replaced_in_every_field(message: ToolMessage) -> None:
    fields = {name: characters(getattr(message, name)) for name in ("call_id", "name", "text")}
    assert decode_message(*encode_message(message)) == msgspec.structs.replace(message, **fields)
