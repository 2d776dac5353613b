"""OpenAI's own client library against the real gateway, as people use it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from holdfast.testing.processes import TOKEN, GatewayProcess, running_gateway


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    settings = {
        "HOLDFAST_SERVER__BODY_LIMIT": "100000",
        "HOLDFAST_SERVER__REQUEST_TIMEOUT": "20",
        "HOLDFAST_LIMITS__MAILBOX": "2",
    }
    with running_gateway(tmp_path_factory.mktemp("gateway"), settings) as running:
        yield running


@pytest.fixture
def client(process: GatewayProcess) -> Iterator[OpenAI]:
    """As the documentation says: the address, and the token as the key."""
    with OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN, max_retries=0) as opened:
        yield opened


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def session(name: str) -> dict[str, str]:
    return {"X-Holdfast-Session": name}


# ── models ──────────────────────────────────────────────────────────────────────────────────────


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["holdfast", "demo"]
    assert client.models.retrieve("demo").owned_by == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("openai/gpt-9")


# ── chat completions ────────────────────────────────────────────────────────────────────────────


def test_a_chat_completion(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="holdfast", messages=user("say it works"))
    assert answer.choices[0].message.content == "it works"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_completion_as_a_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=user("count to 30"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(words) == " ".join(map(str, range(1, 31)))
    assert len(words) > 10  # word by word, not all at once
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_librarys_own_streaming_helper_understands_us(client: OpenAI) -> None:
    with client.chat.completions.stream(model="holdfast", messages=user("say one two three")) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "one two three"
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_a_limit_of_tokens_ends_the_answer_with_length(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="holdfast", messages=user("count to 100"), max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content or "").split() == ["1", "2", "3", "4", "5"]


def test_tools_are_the_gateways_own_business(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="holdfast", messages=user("list files"), stream=True, extra_headers=session("tools")
    )
    chunks = list(stream)
    assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "`list_files` said" in text


def test_two_requests_in_one_session_are_answered_in_order(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="holdfast", messages=user("count to 60"), stream=True, extra_headers=session("order")
    )
    next(iter(stream))  # it is being answered
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(
            client.chat.completions.create,
            model="holdfast",
            messages=user("/status"),
            extra_headers=session("order"),
        )
        third = pool.submit(
            client.chat.completions.create,
            model="holdfast",
            messages=user("say third"),
            extra_headers=session("order"),
        )
        # A command does not wait for the model; a message waits for the one before it.
        assert "running" in (second.result().choices[0].message.content or "")
        rest = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert rest.endswith(" 60")
        assert third.result().choices[0].message.content == "third"
    said = client.chat.completions.create(model="holdfast", messages=user("/status"), extra_headers=session("order"))
    assert "4 messages" in (said.choices[0].message.content or "")


@pytest.mark.proves("invariant 12")
def test_a_repeated_key_is_answered_once(client: OpenAI) -> None:
    def ask(text: str) -> Any:
        headers = {"Idempotency-Key": "the-same", **session("keys")}
        return client.chat.completions.create(model="holdfast", messages=user(text), extra_headers=headers)

    first = ask("say once")
    assert ask("say once").id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        ask("say twice")
    status = client.chat.completions.create(model="holdfast", messages=user("/status"), extra_headers=session("keys"))
    assert "2 messages" in (status.choices[0].message.content or "")


# ── responses ───────────────────────────────────────────────────────────────────────────────────


def test_a_response_and_its_continuation(client: OpenAI) -> None:
    first = client.responses.create(model="holdfast", input="say first")
    assert first.output_text == "first"
    assert first.status == "completed"
    second = client.responses.create(model="holdfast", input="say second", previous_response_id=first.id)
    assert second.output_text == "second"
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens  # the first exchange was sent along
    assert client.responses.retrieve(second.id).output_text == "second"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="holdfast", input="say third", previous_response_id="resp_unknown")


def test_a_response_as_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model="holdfast", input="list files") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert "`list_files` said" in final.output_text
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == final.output_text
    assert client.responses.retrieve(final.id).output[-1].id


def test_a_response_with_thoughts(client: OpenAI) -> None:
    events = list(client.responses.create(model="holdfast", input="think", stream=True))
    kinds = [event.type for event in events]
    assert "response.reasoning_text.delta" in kinds
    assert kinds[-1] == "response.completed"


# ── errors ──────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_token_is_an_authentication_error(process: GatewayProcess) -> None:
    with OpenAI(base_url=f"{process.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model="holdfast", messages=user("hello"))


def test_wrong_requests_are_the_clients_errors(client: OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-9", messages=user("hello"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as tools:
        create(
            model="holdfast",
            messages=user("hello"),
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert tools.value.param == "tools"
    image: Any = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    with pytest.raises(openai.BadRequestError) as picture:
        create(model="holdfast", messages=[{"role": "user", "content": image}])
    assert "text only" in picture.value.message
    with pytest.raises(openai.APIStatusError) as large:
        create(model="holdfast", messages=user("x" * 200_000))
    assert large.value.status_code == 413


def test_a_model_that_fails_is_an_error_and_is_not_asked_again(process: GatewayProcess) -> None:
    with OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN) as client:  # which would retry by itself
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="holdfast", messages=user("fail"), extra_headers=session("failing"))
        assert failed.value.status_code == 502
        assert "asked to fail" in failed.value.message
        status = client.chat.completions.create(
            model="holdfast", messages=user("/status"), extra_headers=session("failing")
        )
    assert "2 messages" in (status.choices[0].message.content or "")  # one question, one answer


def test_a_full_chat_is_a_rate_limit(client: OpenAI, process: GatewayProcess) -> None:
    def ask(text: str) -> str | None:
        answer = client.chat.completions.create(model="holdfast", messages=user(text), extra_headers=session("full"))
        return answer.choices[0].message.content

    def status() -> Any:
        return next(one for one in process.ask("/admin/status")["sessions"] if one["chat"] == "api:full")

    assert ask("say ready") == "ready"
    running = client.chat.completions.create(
        model="holdfast", messages=user("count to 2000"), stream=True, extra_headers=session("full")
    )
    next(iter(running))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, f"say {number}") for number in (1, 2)]
        deadline = time.monotonic() + 10
        while status()["waiting"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as refused:
            ask("say 3")
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        assert ask("/stop") == "Stopped."  # a command has a lane of its own
        assert sorted(future.result() or "" for future in waiting) == ["1", "2"]
    running.close()
