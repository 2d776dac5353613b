"""What to do about a model that did not answer, told from status, body or exception.

The message is one sentence of ours for whoever chats; what the provider said goes, cut and masked,
into `detail` for the log.
"""

import errno
import re
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from holdfast.core.errors import AskUser, FallBack, GiveUp, ModelError, RetryModel
from holdfast.models.providers import ModelChoice

_DETAIL = 500

# What providers say, in their error's code, type and message, when it is not the status that tells.
_NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient.{0,10}(balance|credit|funds)|credit balance|exceeded_current_quota"
    r"|out of credits|payment required",
    re.I,
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context.{0,8}(length|window|size|limit)|prompt is too long|input.{0,12}too long"
    r"|too many (input )?tokens|maximum.{0,20}tokens|reduce the length|request_too_large|string_above_max_length",
    re.I,
)
_NO_SUCH_MODEL = re.compile(
    r"model_not_found|model.{0,80}(not found|does not exist|not exist|is not supported|not available|no longer|retired)"
    r"|(unknown|invalid|no such|not a valid) model|no endpoints found|try pulling it",
    re.I,
)
_BAD_KEY = re.compile(
    r"invalid_api_key|api key not valid|(invalid|incorrect|missing|expired).{0,20}(api[ _-]?key|token|credential)"
    r"|authentication_error|invalid x-api-key",
    re.I,
)
_NO_TOOLS = re.compile(r"(does not|doesn't|not) support.{0,12}(tool|function)|support tool use", re.I)
_FILTERED = re.compile(r"content_filter|content_policy|moderation|flagged|safety (system|filter|polic)", re.I)
_BUSY = re.compile(r"overloaded|rate.?limit|server_error|timeout|unavailable|capacity|internal.?error", re.I)
_TRY_AGAIN_IN = re.compile(r'(?:try again in|"retryDelay":)\s*"?(?:(\d+)m)?([\d.]+)\s*(ms|s)\b', re.I)

_SECRETS = re.compile(
    r"(?P<before>bearer\s+|key[\"'\\]*\s*[=:]\s*[\"'\\]*)[^\s\"'\\,}]{4,}"
    r"|\b(?:sk|gsk|xai|tgp|pk)[-_][A-Za-z0-9_*.-]{8,}"
    r"|\bAIza[A-Za-z0-9_-]{8,}"
    r"|(?<=://)[^\s/@]+(?=@)",
    re.I,
)


def from_response(choice: ModelChoice, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """A response that is no answer."""
    said = body.decode("utf-8", "replace")
    detail = _detail(choice, f"HTTP {status}: {said}")
    if error := _by_words(choice, status, said, detail):
        return error
    if status in (408, 409, 425, 429) or (status >= 500 and status not in (501, 505)):
        after = retry_after(headers, said)
        if status == 429:
            return RetryModel(
                f"{_capital(choice)} is getting too many requests.", after=after, code="rate_limit", detail=detail
            )
        return RetryModel(
            f"{_capital(choice)} has trouble answering right now.", after=after, code="busy", detail=detail
        )
    if status in (401, 403):
        return _bad_key(choice, detail)
    if status == 402:
        return _no_credit(choice, detail)
    if status == 413:
        return _too_long(detail)
    if status in (404, 405) or 300 <= status < 400:
        return _wrong_address(choice, detail)
    if status in (400, 422):
        return FallBack(f"{_capital(choice)} rejected the request.", code="rejected", detail=detail)
    return GiveUp(f"{_capital(choice)} refused to answer (HTTP {status}).", detail=detail)


def from_error_object(choice: ModelChoice, error: Any) -> ModelError:
    """An error inside a response that began well."""
    said = msgspec.json.encode(error).decode()
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return from_response(choice, code, {}, said.encode())
    detail = _detail(choice, said)
    if (sorted_out := _by_words(choice, 400, said, detail)) and not _BUSY.search(said):
        return sorted_out
    if "invalid_request" in said:
        return FallBack(f"{_capital(choice)} rejected the request.", code="rejected", detail=detail)
    return RetryModel(
        f"{_capital(choice)} broke off its answer.", after=retry_after({}, said), code="broken_off", detail=detail
    )


def from_exception(choice: ModelChoice, error: Exception) -> ModelError:
    """A connection that could not be made, or did not hold."""
    detail = _detail(choice, f"{type(error).__name__}: {error}")
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            return AskUser(
                f"{_capital(choice)} shows a certificate that can't be trusted: check [model] base_url.",
                code="bad_certificate",
                detail=detail,
            )
        case aiohttp.ClientConnectorError(errno=errno.EMFILE | errno.ENFILE):
            return RetryModel(
                "The gateway has too many files and connections open to ask the model.", code="exhausted", detail=detail
            )
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return RetryModel(f"{_capital(choice)} can't be reached.", code="unreachable", detail=detail)
        case TimeoutError():
            return RetryModel(f"{_capital(choice)} took too long to answer.", code="timeout", detail=detail)
        case aiohttp.InvalidURL():
            return _wrong_address(choice, detail)
        case _:
            return RetryModel(f"The connection to {choice.who} broke.", code="disconnected", detail=detail)


def cut_short(choice: ModelChoice) -> ModelError:
    """A stream that stopped without saying that it was over."""
    return RetryModel(f"{_capital(choice)} broke off its answer.", code="broken_off", detail="the stream ended early")


def unreadable(choice: ModelChoice, body: bytes, why: str) -> ModelError:
    """A response that says it is fine and is not in the format."""
    detail = _detail(choice, f"{why}: {body[:_DETAIL].decode('utf-8', 'replace')}")
    if body.lstrip()[:1] == b"<":
        return _wrong_address(choice, detail)
    return RetryModel(f"{_capital(choice)} sent an answer that can't be read.", code="unreadable", detail=detail)


def filtered(choice: ModelChoice) -> ModelError:
    return FallBack(f"{_capital(choice)}'s content filter stopped the answer.", code="content_filter")


def retry_after(headers: Mapping[str, str], said: str = "") -> float | None:
    """How long to stay away, as the provider asks: in seconds, milliseconds, as a date, or in words."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _number(headers.get(name))) is not None:
            return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None:
        return seconds
    if value:
        try:
            when = parsedate_to_datetime(value).timestamp()
            # Against the server's own clock, where it shows it: ours may be wrong.
            now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
        except ValueError:
            return None
        return max(0.0, when - now)
    if found := _TRY_AGAIN_IN.search(said):
        minutes, number, unit = found.groups()
        in_words = _number(number)
        if in_words is not None:
            return int(minutes or 0) * 60 + (in_words / 1000 if unit.lower() == "ms" else in_words)
    return None


def _capital(choice: ModelChoice) -> str:
    """The provider, as a sentence can begin with it."""
    return choice.who[0].upper() + choice.who[1:]


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _by_words(choice: ModelChoice, status: int, said: str, detail: str) -> ModelError | None:
    """What the provider's words tell, where its status does not."""
    if status in (400, 402, 403, 429) and _NO_CREDIT.search(said):
        return _no_credit(choice, detail)
    if status not in (400, 403, 404, 413, 422):
        return None
    if _FILTERED.search(said):
        return filtered(choice)
    if _TOO_LONG.search(said):
        return _too_long(detail)
    if _NO_TOOLS.search(said):
        return AskUser(
            f'The model "{choice.name}" can\'t use tools: choose another in [model] name.',
            code="no_tools",
            detail=detail,
        )
    if _BAD_KEY.search(said):
        return _bad_key(choice, detail)
    if _NO_SUCH_MODEL.search(said):
        return AskUser(
            f'{_capital(choice)} has no model "{choice.name}" for this key: change [model] name.',
            code="no_such_model",
            detail=detail,
        )
    return None


def _bad_key(choice: ModelChoice, detail: str) -> ModelError:
    where = f"{choice.key_variable} or [model] api_key" if choice.key_variable else "[model] api_key"
    return AskUser(f"{_capital(choice)} did not accept the key: check {where}.", code="bad_key", detail=detail)


def _no_credit(choice: ModelChoice, detail: str) -> ModelError:
    return AskUser(f"There is no credit left at {choice.who}: top up the account.", code="no_credit", detail=detail)


def _too_long(detail: str) -> ModelError:
    return AskUser(
        "This conversation has grown too long for the model: start a new one with /new.",
        code="context_too_long",
        detail=detail,
    )


def _wrong_address(choice: ModelChoice, detail: str) -> ModelError:
    return AskUser(
        f"{_capital(choice)} does not answer as a model server should: check [model] base_url.",
        code="wrong_address",
        detail=detail,
    )


def _detail(choice: ModelChoice, text: str) -> str:
    """For the log: one bounded line without secrets."""
    if choice.api_key:
        text = text.replace(choice.api_key.reveal(), "…")
    masked = _SECRETS.sub(lambda found: (found["before"] or "") + "…", text[: 4 * _DETAIL])
    line = " ".join(masked.split())
    return line if len(line) <= _DETAIL else line[:_DETAIL] + "…"
