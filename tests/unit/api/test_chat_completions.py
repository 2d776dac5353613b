"""POST /v1/chat/completions as it is on the wire; the real client library has its own test."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.core.errors import AskUser, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, Message
from holdfast.testing.scripted import Emit, Gate, calls, until

pytestmark = pytest.mark.anyio


def chunks(stream: str) -> list[Any]:
    """The data of a stream's events; the last one is [DONE] as it stands."""
    found = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(data) if data != "[DONE]" else data for data in found]


def text_of(stream: str) -> str:
    return "".join(
        chunk["choices"][0]["delta"].get("content") or ""
        for chunk in chunks(stream)
        if chunk != "[DONE]" and chunk["choices"]
    )


async def test_answers_in_the_format_of_the_client(serve):
    async with serve() as api:
        status, answer = await api.chat("hello", model="holdfast")
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "holdfast"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "you said hello", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


async def test_a_request_without_a_session_carries_its_own_history_and_leaves_nothing_awake(serve):
    seen: list[Sequence[Message]] = []

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        seen.append(messages)
        return "fine"

    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "and now?"},
        {"role": "developer", "content": "Be kind."},
    ]
    async with serve(script) as api:
        status, _ = await api.post("/v1/chat/completions", {"messages": history})
        await until(lambda: not api.bench.gateway.awake)
        stored = await api.bench.store.sessions()
    assert status == 200
    assert [(type(message).__name__, message.text) for message in seen[0]] == [
        ("SystemMessage", "Be brief."),
        ("UserMessage", "one\ntwo"),
        ("AssistantMessage", ""),
        ("ToolMessage", "found"),
        ("AssistantMessage", "There."),
        ("SystemMessage", "Be kind."),
        ("UserMessage", "and now?"),
    ]
    assert seen[0][3].name == "look"
    assert not stored


async def test_a_session_keeps_its_own_history_and_ignores_the_clients(serve):
    async def count(messages: Sequence[Message], emit: Emit) -> str:
        return f"{len(messages)} messages, the last is {messages[-1].text}"

    async with serve(count) as api:
        await api.chat("one", "ann")
        headers = {"X-Holdfast-Session": "ann"}
        body = {
            "messages": [
                {"role": "system", "content": "ignored"},
                {"role": "user", "content": "ignored"},
                {"role": "user", "content": "two"},
            ]
        }
        _, answer = await api.post("/v1/chat/completions", body, headers=headers)
    assert answer["choices"][0]["message"]["content"] == "3 messages, the last is two"


async def test_streams_words_and_ends_with_done(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str:
        emit(Reasoning("hm"))
        return "all of it"

    async with serve(script) as api:
        status, stream = await api.chat("hello", stream=True)
    assert status == 200
    told = chunks(stream)
    assert told[-1] == "[DONE]"
    assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert told[1]["choices"][0]["delta"] == {"reasoning_content": "hm"}
    assert told[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert text_of(stream) == "all of it"
    assert not any("usage" in chunk for chunk in told[:-1])
    assert len({chunk["id"] for chunk in told[:-1]}) == 1


async def test_counts_tokens_at_the_end_of_a_stream_when_asked_to(serve):
    async with serve() as api:
        _, stream = await api.chat("hello", stream=True, stream_options={"include_usage": True})
    *before, last, done = chunks(stream)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    assert all(chunk["usage"] is None for chunk in before)


async def test_words_of_several_steps_are_paragraphs_and_tool_calls_stay_inside(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str | AssistantMessage:
        if len(messages) == 1:
            return calls(("list_files", "{}"), text="Let me look.")
        return "Nothing there."

    async with serve(script) as api:
        _, stream = await api.chat("look", stream=True)
        _, answer = await api.chat("look")
    assert text_of(stream) == "Let me look.\n\nNothing there."
    assert "tool_calls" not in stream
    assert answer["choices"][0]["message"]["content"] == "Nothing there."


async def test_a_step_that_is_begun_again_is_told_again_in_full(serve):
    asked = 0

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            emit(Text("Half a sen"))
            raise RetryModel("The model broke off.", after=0)
        return "A whole sentence."

    async with serve(script) as api:
        _, stream = await api.chat("hello", stream=True)
    assert text_of(stream) == "Half a sen\n\nA whole sentence."


async def test_a_turn_that_fails_is_an_error_of_the_gateway_behind_us(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str:
        raise AskUser("There is no credit left.", code="no_credit")

    async with serve(script) as api:
        for stream in (False, True):
            async with api.client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "stream": stream}
            ) as response:
                body = await response.json()
                assert response.status == 502
                assert response.headers["x-should-retry"] == "false"
                assert body["error"] == {
                    "message": "There is no credit left.",
                    "type": "server_error",
                    "param": None,
                    "code": "no_credit",
                }


async def test_a_busy_provider_is_told_with_429_and_when_to_come_back(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str:
        raise RetryModel("Too many requests.", after=3600, code="rate_limit")

    async with (
        serve(script) as api,
        api.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}) as response,
    ):
        assert response.status == 429
        assert int(response.headers["Retry-After"]) > 0
        assert (await response.json())["error"]["code"] == "rate_limit_exceeded"


async def test_a_turn_that_fails_after_some_words_ends_the_stream_with_an_error(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str:
        emit(Text("So far so good"))
        raise AskUser("The conversation has grown too long.", code="context_too_long")

    async with serve(script) as api:
        status, stream = await api.chat("hello", stream=True)
    assert status == 200
    told = chunks(stream)
    assert told[-1]["error"]["code"] == "context_length_exceeded"
    assert "[DONE]" not in told


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", [{"name": "f"}]),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
    ],
)
async def test_what_would_change_the_answers_meaning_is_refused_by_name(serve, parameter, value):
    async with serve() as api:
        status, answer = await api.chat("hello", **{parameter: value})
    assert status == 400
    assert answer["error"]["param"] == parameter
    assert parameter in answer["error"]["message"]
    assert answer["error"]["code"] == "unsupported_parameter"


async def test_what_asks_for_nothing_and_hints_are_taken(serve):
    async with serve() as api:
        status, _ = await api.chat(
            "hello",
            tools=[],
            n=1,
            logprobs=False,
            tool_choice="none",
            response_format={"type": "text"},
            seed=7,
            user="me",
            presence_penalty=0.5,
            reasoning_effort="low",
            stream=None,
            temperature=1,
            max_tokens=100,
            stop=["END"],
        )
    assert status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}], "temperature": 3}, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}], "top_p": -1}, "top_p"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}], "stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, "messages"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content"),
    ],
)
async def test_a_wrong_field_is_named(serve, body, param):
    async with serve() as api:
        status, answer = await api.post("/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(serve):
    async with serve() as api:
        status, answer = await api.chat("hello", model="gpt-9")
        assert status == 404
        assert answer["error"]["code"] == "model_not_found"
        assert "'holdfast'" in answer["error"]["message"]
        assert "'scripted'" in answer["error"]["message"]
        for known in ("holdfast", "scripted", "", None):
            assert (await api.chat("hello", model=known))[0] == 200


async def test_a_repeated_key_gets_the_same_answer_and_no_second_turn(serve):
    asked = 0

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        nonlocal asked
        asked += 1
        return f"answer {asked}"

    body = {"messages": [{"role": "user", "content": "x"}], "model": "holdfast"}
    reordered = {"model": "holdfast", "messages": [{"content": "x", "role": "user"}]}
    other = {"messages": [{"role": "user", "content": "y"}]}
    async with serve(script) as api:
        for session in ({}, {"X-Holdfast-Session": "ann"}):
            headers = {"Idempotency-Key": "k1", **session}
            first = await api.post("/v1/chat/completions", body, headers=headers)
            again = await api.post("/v1/chat/completions", reordered, headers=headers)
            assert first == again
            assert first[0] == 200
            status, answer = await api.post("/v1/chat/completions", other, headers=headers)
            assert status == 422
            assert answer["error"]["code"] == "idempotency_key_reused"
            # The same answer can be had as a stream, too, but that is another request.
            assert (await api.post("/v1/chat/completions", {**body, "stream": True}, headers=headers))[0] == 422
    assert asked == 2


async def test_a_key_that_is_too_long_is_refused(serve):
    async with serve() as api:
        body = {"messages": [{"role": "user", "content": "x"}]}
        assert (await api.post("/v1/chat/completions", body, headers={"Idempotency-Key": "k" * 255}))[0] == 200
        status, answer = await api.post("/v1/chat/completions", body, headers={"Idempotency-Key": "k" * 256})
    assert (status, answer["error"]["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("name", ["", "x" * 129, "request/abc"])
async def test_a_session_has_a_sensible_name(serve, name):
    async with serve() as api:
        body = {"messages": [{"role": "user", "content": "x"}]}
        status, answer = await api.post("/v1/chat/completions", body, headers={"X-Holdfast-Session": name})
    assert (status, answer["error"]["param"]) == (400, "X-Holdfast-Session")


async def test_a_hang_up_stops_a_turn_that_nobody_can_come_back_for(serve):
    gate = Gate()
    async with serve(gate) as api:
        for stream in ("false", "true"):
            body = b'{"stream":%s,"messages":[{"role":"user","content":"x"}]}' % stream.encode()
            async with api.raw() as (_, writer):
                writer.write(request(api, body))
                await gate.has(1)
            await until(lambda: gate.inside == 0 and not api.bench.gateway.awake)


async def test_a_hang_up_does_not_stop_a_turn_in_a_session_or_with_a_key(serve):
    for header in ("X-Holdfast-Session: ann", "Idempotency-Key: k1"):
        gate = Gate()
        async with serve(gate) as api:
            body = b'{"messages":[{"role":"user","content":"x"}]}'
            async with api.raw() as (_, writer):
                writer.write(request(api, body, header))
                await gate.has(1)
            gate.open()
            await until(lambda: api.bench.gateway.unanswered == 0)
            name, value = header.split(": ")
            if name == "Idempotency-Key":
                status, answer = await api.post("/v1/chat/completions", json.loads(body), headers={name: value})
                assert (status, answer["choices"][0]["message"]["content"]) == (200, "you said x")
                assert gate.asked == 1
            else:
                said = await api.get("/api/sessions?channel=api")
                assert len(said[1]["sessions"]) == 1


async def test_the_clients_patience_is_the_settings(serve):
    gate = Gate()
    async with serve(gate, server={"request_timeout": 0.05}) as api:
        status, answer = await api.chat("x", "ann")
        assert status == 504
        assert answer["error"]["code"] == "timeout"
        assert gate.inside == 1  # in a session the turn goes on
        assert (await api.chat("x"))[0] == 504
        await until(lambda: gate.inside == 1)  # without one it is stopped
        gate.open()


async def test_two_requests_in_one_session_queue_up_in_order(serve):
    gate = Gate()
    async with serve(gate) as api, api.raw() as (reader1, writer1), api.raw() as (reader2, writer2):
        writer1.write(request(api, b'{"messages":[{"role":"user","content":"one"}]}', "X-Holdfast-Session: s"))
        await gate.has(1)
        writer2.write(request(api, b'{"messages":[{"role":"user","content":"two"}]}', "X-Holdfast-Session: s"))
        await until(lambda: api.bench.gateway.unanswered == 2)
        assert gate.inside == 1
        gate.open()
        assert b"you said one" in await reader1.readuntil(b'chat.completion"}')
        assert b"you said two" in await reader2.readuntil(b'chat.completion"}')


async def test_a_full_mailbox_says_when_to_come_back(serve):
    gate = Gate()
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    async with serve(gate, limits={"mailbox": 2}) as api, AsyncExitStack() as connections:
        for number in (1, 2, 3):
            _, writer = await connections.enter_async_context(api.raw())
            writer.write(request(api, body, "X-Holdfast-Session: s"))
            await until(lambda number=number: api.bench.gateway.unanswered == number)
            await gate.has(1)
        headers = {"X-Holdfast-Session": "s"}
        async with api.client.post("/v1/chat/completions", data=body, headers=headers) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
        gate.open()
        await until(lambda: api.bench.gateway.unanswered == 0)


async def test_commands_work_in_a_session(serve):
    async with serve() as api:
        await api.chat("remember this", "ann")
        _, answer = await api.chat("/new", "ann")
        assert "new conversation" in answer["choices"][0]["message"]["content"]
        _, answer = await api.chat("/new")  # without a session it is only text
        assert answer["choices"][0]["message"]["content"] == "you said /new"


def request(api: Any, body: bytes, *headers: str) -> bytes:
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: test",
        "Authorization: Bearer the-token",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body
