"""From an OpenAI-style request to a message for the gateway and to its answer, whichever endpoint it came by."""

import hashlib
import re
from collections.abc import Sequence

import msgspec

from holdfast.api.bodies import decode
from holdfast.api.errors import HungUp, Refusal, bad, failure, too_slow
from holdfast.api.exchange import Exchange
from holdfast.api.sse import Onlooker
from holdfast.api.surface import Surface
from holdfast.core.events import Event, Started, Text
from holdfast.core.keys import ChatKey, MailId
from holdfast.core.messages import Answer, Incoming, Message, Sampling, SystemMessage, UserMessage
from holdfast.gateway.mail import Mail

CHANNEL = "api"
OWN_MODEL = "holdfast"
REQUEST_CHATS = "request/"
"""What the chats of requests that carry their own history begin with; no session may be named so."""
_MAIL_PREFIX = f"{CHANNEL}:"
_SESSION_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_KEY = re.compile(rb"[\x20-\x7e]{1,255}")


_anything = msgspec.json.Decoder()


class Question(msgspec.Struct, frozen=True):
    """What a request asks: its last message from the user, and what was said before."""

    text: str
    history: tuple[Message, ...]
    sampling: Sampling = Sampling()


def question(messages: Sequence[Message], sampling: Sampling, param: str) -> Question:
    """Divide what the client sent. Instructions that follow the user's last message are put before it."""
    last = len(messages) - 1
    while last >= 0 and isinstance(messages[last], SystemMessage):
        last -= 1
    if last < 0:
        raise bad(f"{param} has no message from the user.", param)
    if not isinstance(messages[last], UserMessage):
        raise bad(f"The last of {param} must be the user's; Holdfast runs its own tools.", param)
    text, later = messages[last].text, messages[last + 1 :]
    if not text.strip():
        raise bad("The user's last message is empty.", param)
    return Question(text, (*messages[:last], *later), sampling)


def check_model(surface: Surface, model: str | None) -> str:
    """The model's name for the answer. There is one to be asked; it goes by two names."""
    if not model:
        return OWN_MODEL
    configured = surface.gateway.model.name
    if model not in (OWN_MODEL, configured):
        there = " and ".join(repr(name) for name in dict.fromkeys((OWN_MODEL, configured)))
        sentence = f"There is no model {model[:100]!r} here; there is {there}."
        raise Refusal(404, sentence, param="model", code="model_not_found")
    return model


def session_name(headers: dict[bytes, bytes]) -> str:
    """The chat that the request names, or nothing."""
    raw = headers.get(b"x-holdfast-session")
    if raw is None:
        return ""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = ""
    if not _SESSION_NAME.fullmatch(name) or name.startswith(REQUEST_CHATS):
        rule = f"1 to 128 characters of UTF-8 that do not begin with {REQUEST_CHATS}"
        raise bad(f"X-Holdfast-Session must be {rule}.", "X-Holdfast-Session")
    return name


def _idempotency_key(headers: dict[bytes, bytes]) -> bytes:
    key = headers.get(b"idempotency-key")
    if key is None:
        return b""
    if not _KEY.fullmatch(key):
        raise bad("Idempotency-Key must be 1 to 255 printable ASCII characters.", "Idempotency-Key")
    return key


async def ask(exchange: Exchange, asked: Question, *, kind: str, body: bytes, watched: bool, memo: str = "") -> Mail:
    """Hand the question to the gateway; when this returns, it is stored.

    With an Idempotency-Key, the mail's id comes from the key: the same request again is the same mail.
    """
    surface = exchange.surface
    name = session_name(exchange.headers)
    key = _idempotency_key(exchange.headers)
    token = hashlib.sha256(key + b"\n" + name.encode()).hexdigest()[:40] if key else surface.ids.new()
    incoming = Incoming(
        id=mail_id(token),
        chat=ChatKey(CHANNEL, name or REQUEST_CHATS + token),
        text=asked.text,
        received=surface.clock.now(),
        fingerprint=_fingerprint(kind, body) if key else "",
        history=None if name else asked.history,
        sampling=asked.sampling,
        memo=memo,
    )
    return await surface.gateway.accept(incoming, watched=watched)


def mail_id(token: str) -> MailId:
    """The mail behind the id of an answer, without its prefix."""
    return MailId(_MAIL_PREFIX + token)


def token_of(mail: Mail) -> str:
    """The id of the answer without its prefix: known before there is an answer."""
    return mail.incoming.id.removeprefix(_MAIL_PREFIX)


def _fingerprint(kind: str, body: bytes) -> str:
    """Two bodies that differ only in spaces and order are one request."""
    canonical = msgspec.json.encode(decode(body, _anything), order="sorted")
    return hashlib.sha256(kind.encode() + b"\n" + canonical).hexdigest()


async def answer_in_one_piece(exchange: Exchange, mail: Mail) -> Answer:
    """The answer; raises a `Refusal` when the turn failed or takes too long."""
    patience = exchange.shared.for_answers
    transient = _is_transient(mail.incoming)
    if transient:
        exchange.notice_hang_up()
    try:
        answer = await exchange.wait(mail.answered, patience)
    except TimeoutError:
        if transient:
            exchange.surface.gateway.stop(mail.incoming.chat)
        raise too_slow(patience.seconds) from None
    except HungUp:
        if transient:
            exchange.surface.gateway.stop(mail.incoming.chat)
        raise
    if answer.outcome == "failed":
        raise failure(answer)
    return answer


class Audience(Onlooker):
    """The onlooker of a turn that a client asked for. One that leaves for good takes the turn with it."""

    async def batch(self) -> Sequence[Event]:
        try:
            return await super().batch()
        except HungUp:
            if _is_transient(self.mail.incoming):
                self.exchange.surface.gateway.stop(self.mail.incoming.chat)
            raise


async def answer_bit_by_bit(exchange: Exchange, mail: Mail) -> Audience:
    """An onlooker with something to show. Raises a `Refusal` when the turn fails before there is anything."""
    exchange.notice_hang_up()
    audience = Audience(exchange, mail)
    batch: Sequence[Event] = (Started(""),)
    while batch and isinstance(batch[-1], Started):
        batch = await audience.batch()
    answer = mail.answer
    if audience.over and answer and answer.outcome == "failed" and not any(isinstance(e, Text) for e in batch):
        raise failure(answer)
    audience.rewind()
    return audience


def _is_transient(incoming: Incoming) -> bool:
    """Nobody can come back for its answer: it belongs to no session, and the client gave it no key."""
    return incoming.history is not None and not incoming.fingerprint
