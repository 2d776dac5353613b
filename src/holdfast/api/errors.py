"""From what went wrong to what HTTP says about it, always in the form that OpenAI's clients understand."""

import math

import msgspec
import structlog

from holdfast.api.replies import Header, Reply
from holdfast.core.errors import DuplicateMail, HoldfastError, NotFound, Stopping, StoreError, TryLater
from holdfast.core.events import Answered
from holdfast.core.messages import Answer

log = structlog.get_logger(__name__)

BROKE = "Something went wrong inside the gateway; the operator's log has the details."
UNSTORED = "The gateway can't store anything right now; its operator has to free or repair its disk."
MODEL_BUSY_WAIT = 10.0
STORE_WAIT = 10.0

# What was taken by the gateway must not be sent again by a client that retries by itself: in a session, that
# would be a second message.
_DO_NOT_RETRY: Header = (b"x-should-retry", b"false")

# A turn's failure that is not the model's or its provider's, by its code.
_STATUS_OF_FAILURE = {"rate_limit": 429, "context_too_long": 400, "store_error": 503, "internal_error": 500}
_PUBLIC_CODE = {"rate_limit": "rate_limit_exceeded", "context_too_long": "context_length_exceeded"}


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, for people and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: Problem


class Refusal(HoldfastError):
    """A request that gets no for an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        after: float | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.after = after
        self.headers = headers

    @property
    def problem(self) -> Problem:
        return Problem(str(self), _type(self.status), self.param, self.code)


class HungUp(HoldfastError):
    """The client is gone; nobody hears an answer."""


def bad(message: str, param: str | None = None, *, code: str | None = None) -> Refusal:
    """The request is wrong, and so is every repetition of it."""
    return Refusal(400, message, param=param, code=code)


def refusal(error: HoldfastError) -> Refusal:
    """What HTTP says about an error."""
    match error:
        case Refusal():
            return error
        case Stopping():
            return Refusal(503, str(error), code="stopping", after=error.after)
        case TryLater():
            return Refusal(429, str(error), code="rate_limit_exceeded", after=error.after)
        case DuplicateMail():
            return Refusal(422, str(error), code="idempotency_key_reused")
        case NotFound():
            return Refusal(404, str(error), code="not_found")
        case StoreError():
            log.error("a request can't be stored", cause=str(error))
            return Refusal(503, UNSTORED, code="store_error", after=STORE_WAIT)
    log.error("a request can't be answered", cause=repr(error))
    return Refusal(500, BROKE, code="internal_error")


def failure(answer: Answer | Answered) -> Refusal:
    """What HTTP says about a turn that failed: the gateway works, what stands behind it does not."""
    status = _STATUS_OF_FAILURE.get(answer.error, 502)
    code = _PUBLIC_CODE.get(answer.error, answer.error)
    after = MODEL_BUSY_WAIT if status == 429 else None
    return Refusal(status, answer.text, code=code, after=after, headers=(_DO_NOT_RETRY,))


def too_slow(seconds: float) -> Refusal:
    sentence = f"There was no answer within {seconds:g} s. In a session the answer is still being worked on."
    return Refusal(504, sentence, code="timeout", headers=(_DO_NOT_RETRY,))


def reply(error: Refusal) -> Reply:
    headers = error.headers
    if error.after is not None:
        headers = (*headers, (b"retry-after", b"%d" % math.ceil(error.after)))
    return Reply(msgspec.json.encode(ErrorBody(error.problem)), error.status, headers)


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
