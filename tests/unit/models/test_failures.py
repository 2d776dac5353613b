"""What providers say when they don't answer, and what Holdfast makes of it."""

import socket
import time
from email.utils import formatdate

import aiohttp
import msgspec
import pytest
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import AskUser, FallBack, GiveUp, ModelError, RetryModel
from holdfast.core.settings import Secret
from holdfast.models import failures
from holdfast.models.providers import ModelChoice

KEY = "sk-proj-Abcdefghijklmnop0123456789"
CHOICE = ModelChoice(
    provider="openai",
    title="OpenAI",
    name="gpt-x",
    base_url="https://api.openai.com/v1",
    api_key=Secret(KEY),
    key_variable="OPENAI_API_KEY",
)


def error(message: str = "", **more: object) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **more}})


# As real providers word them.
SAID = [
    (401, error("Incorrect API key provided: sk-pr***89.", code="invalid_api_key"), AskUser, "bad_key"),
    (403, error("Your project does not have access"), AskUser, "bad_key"),
    (400, error("API key not valid. Please pass a valid API key.", status="INVALID_ARGUMENT"), AskUser, "bad_key"),
    (402, error("Insufficient Balance"), AskUser, "no_credit"),
    (402, b"", AskUser, "no_credit"),
    (429, error("You exceeded your current quota", code="insufficient_quota"), AskUser, "no_credit"),
    (429, error("suspended, please check", type="exceeded_current_quota_error"), AskUser, "no_credit"),
    (400, error("Your credit balance is too low to access the Anthropic API."), AskUser, "no_credit"),
    (404, error("The model `gpt-x` does not exist", code="model_not_found"), AskUser, "no_such_model"),
    (404, error('model "gpt-x" not found, try pulling it first'), AskUser, "no_such_model"),
    (400, error("Model Not Exist"), AskUser, "no_such_model"),
    (400, error("gpt-x is not a valid model ID", code=400), AskUser, "no_such_model"),
    (404, b"404 page not found", AskUser, "wrong_address"),
    (405, b"", AskUser, "wrong_address"),
    (308, b"", AskUser, "wrong_address"),
    (400, error("maximum context length is 8192", code="context_length_exceeded"), AskUser, "context_too_long"),
    (400, error("prompt is too long: 210000 tokens > 200000 maximum"), AskUser, "context_too_long"),
    (400, error("the request exceeds the available context size"), AskUser, "context_too_long"),
    (413, error("Request exceeds the maximum size", type="request_too_large"), AskUser, "context_too_long"),
    (400, error("registry/gpt-x does not support tools"), AskUser, "no_tools"),
    (404, error("No endpoints found that support tool use"), AskUser, "no_tools"),
    (400, error("flagged", code="content_policy_violation"), FallBack, "content_filter"),
    (403, error("Your input was flagged: moderation"), FallBack, "content_filter"),
    (400, error("Unsupported value: 'temperature'", code="unsupported_value"), FallBack, "rejected"),
    (422, error("messages: field required"), FallBack, "rejected"),
    (429, error("Rate limit reached"), RetryModel, "rate_limit"),
    (429, error("You exceeded your current quota, check your plan and billing"), RetryModel, "rate_limit"),
    (408, b"", RetryModel, "busy"),
    (500, error("context length of the internal error"), RetryModel, "busy"),
    (502, b"<html>", RetryModel, "busy"),
    (503, error("Loading model"), RetryModel, "busy"),
    (504, b"", RetryModel, "busy"),
    (524, b"", RetryModel, "busy"),
    (529, error("Overloaded"), RetryModel, "busy"),
    (501, b"", GiveUp, "model_failed"),
    (451, b"", GiveUp, "model_failed"),
]


@pytest.mark.parametrize(("status", "body", "kind", "code"), SAID)
def test_what_was_said_tells_what_to_do(status: int, body: bytes, kind: type[ModelError], code: str) -> None:
    told = failures.from_response(CHOICE, status, {}, body)
    assert (type(told), told.code) == (kind, code)


def test_what_a_person_must_mend_names_what_to_change() -> None:
    def message(status: int, body: bytes) -> str:
        return str(failures.from_response(CHOICE, status, {}, body))

    assert message(401, b"") == "OpenAI did not accept the key: check OPENAI_API_KEY or [model] api_key."
    assert message(402, b"") == "There is no credit left at OpenAI: top up the account."
    assert message(404, b"model_not_found") == 'OpenAI has no model "gpt-x" for this key: change [model] name.'
    assert message(404, b"") == "OpenAI does not answer as a model server should: check [model] base_url."
    assert message(413, b"") == "This conversation has grown too long for the model: start a new one with /new."


@given(st.integers(300, 599), st.binary(max_size=300))
def test_every_failure_is_one_bounded_sentence(status: int, body: bytes) -> None:
    told = failures.from_response(CHOICE, status, {}, body)
    assert isinstance(told, AskUser | FallBack | GiveUp | RetryModel)
    assert str(told).endswith(".")
    assert "\n" not in str(told) + told.detail


@pytest.mark.parametrize(
    "text",
    [
        f"wrong key {KEY}",
        "Incorrect API key provided: sk-other-key-abcdef0123456",
        "Authorization: Bearer abcdef0123456789",
        'x-api-key: "abcdef0123456789"',
        "see https://anna:abcdef0123456789@example.org/v1",
        "AIzaSyabcdef0123456789",
        "gsk_abcdef0123456789",
    ],
)
def test_secrets_reach_neither_message_nor_log(text: str) -> None:
    for told in (
        failures.from_response(CHOICE, 401, {}, error(text)),
        failures.from_error_object(CHOICE, {"message": text}),
        failures.from_exception(CHOICE, aiohttp.ClientError(text)),
        failures.unreadable(CHOICE, text.encode(), "not JSON"),
    ):
        for secret in (KEY, "abcdef0123456"):
            assert secret not in f"{told} {told.detail}"


def test_what_is_no_secret_stays_in_the_log() -> None:
    told = failures.from_response(CHOICE, 500, {}, error("upstream http://127.0.0.1:8080/x refused"))
    assert "http://127.0.0.1:8080/x" in told.detail


def test_an_endless_error_leaves_a_short_detail() -> None:
    assert len(failures.from_response(CHOICE, 500, {}, b"x " * 100_000).detail) <= 501


@pytest.mark.parametrize(
    ("headers", "said", "seconds"),
    [
        ({}, "", None),
        ({"retry-after": "7"}, "", 7),
        ({"retry-after": "0.5"}, "", 0.5),
        ({"retry-after-ms": "1500"}, "", 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, "", 0.25),
        ({"x-ms-retry-after-ms": "3000"}, "", 3),
        ({"retry-after": formatdate(1_000_090, usegmt=True), "date": formatdate(1_000_000, usegmt=True)}, "", 90),
        ({"retry-after": formatdate(1_000_000, usegmt=True), "date": formatdate(1_000_090, usegmt=True)}, "", 0),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "-3"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({"retry-after": "inf"}, "", None),
        ({}, "Rate limit reached. Please try again in 7.66s. Visit", 7.66),
        ({}, "Please try again in 120ms.", 0.12),
        ({}, "Please try again in 1m30s.", 90),
        ({}, '{"@type":"RetryInfo","retryDelay": "34s"}', 34),
    ],
)
def test_how_long_to_stay_away_is_read_in_every_form(headers: dict[str, str], said: str, seconds: float | None) -> None:
    assert failures.retry_after(headers, said) == (seconds if seconds is None else pytest.approx(seconds))


def test_a_date_without_the_servers_own_is_read_by_our_clock() -> None:
    assert failures.retry_after({"retry-after": formatdate(time.time() + 50, usegmt=True)}) == pytest.approx(50, abs=3)


def test_how_long_to_stay_away_is_passed_on() -> None:
    told = failures.from_response(CHOICE, 429, {"retry-after": "9"}, b"")
    assert isinstance(told, RetryModel)
    assert told.after == 9


def test_an_error_object_with_a_status_is_sorted_by_it() -> None:
    assert failures.from_error_object(CHOICE, {"code": 429, "message": "x"}).code == "rate_limit"
    assert failures.from_error_object(CHOICE, {"code": 401, "message": "x"}).code == "bad_key"
    assert type(failures.from_error_object(CHOICE, "it broke")) is RetryModel
    assert type(failures.from_error_object(CHOICE, {"type": "invalid_request_error"})) is FallBack


def test_connections_that_fail_are_sorted() -> None:
    key = ConnectionKey("h", 1, False, True, None, None, None)
    refused = aiohttp.ClientConnectorError(key, ConnectionRefusedError(111, "refused"))
    no_name = aiohttp.ClientConnectorDNSError(key, socket.gaierror(-2, "unknown"))
    for exception, code in (
        (refused, "unreachable"),
        (no_name, "unreachable"),
        (aiohttp.ConnectionTimeoutError(), "unreachable"),
        (aiohttp.SocketTimeoutError(), "timeout"),
        (TimeoutError(), "timeout"),
        (aiohttp.ServerDisconnectedError(), "disconnected"),
        (aiohttp.ClientPayloadError("x"), "disconnected"),
        (ConnectionResetError(), "disconnected"),
    ):
        told = failures.from_exception(CHOICE, exception)
        assert (type(told), told.code) == (RetryModel, code)
