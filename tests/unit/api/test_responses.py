"""POST /v1/responses, its typed events, its chain, and GET of what was stored."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.errors import AskUser
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, Message
from holdfast.testing.scripted import Emit, Gate, calls, until

pytestmark = pytest.mark.anyio


async def count(messages: Sequence[Message], emit: Emit) -> str:
    """Says what it was sent, so that a test sees the history."""
    return " | ".join(f"{type(message).__name__[0]}:{message.text}" for message in messages)


def events(stream: str) -> list[Any]:
    found = []
    for block in stream.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            event = json.loads(lines["data"])
            assert event["type"] == lines["event"]
            found.append(event)
    return found


def said(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_answers_with_a_response_that_can_be_had_again(serve):
    async with serve() as api:
        status, response = await api.post(
            "/v1/responses", {"input": "hello", "model": "holdfast", "metadata": {"a": "b"}, "temperature": 0.5}
        )
        again = await api.get(f"/v1/responses/{response['id']}")
    assert status == 200
    assert response["object"] == "response"
    assert response["status"] == "completed"
    assert response["id"].startswith("resp_")
    assert said(response) == "you said hello"
    assert response["output"][0]["role"] == "assistant"
    assert response["metadata"] == {"a": "b"}
    assert response["temperature"] == 0.5
    assert response["usage"]["total_tokens"] == 2
    assert again == (200, response)


async def test_a_chain_of_responses_is_one_conversation(serve):
    async with serve(count) as api:
        _, first = await api.post("/v1/responses", {"input": "one", "instructions": "Be brief."})
        _, second = await api.post("/v1/responses", {"input": "two", "previous_response_id": first["id"]})
        _, third = await api.post(
            "/v1/responses",
            {"input": "three", "previous_response_id": second["id"], "instructions": "Be kind."},
        )
    assert said(first) == "S:Be brief. | U:one"
    # Instructions belong to one request and are not handed down.
    assert said(second) == f"U:one | A:{said(first)} | U:two"
    assert said(third) == f"S:Be kind. | U:one | A:{said(first)} | U:two | A:{said(second)} | U:three"
    assert third["previous_response_id"] == second["id"]


async def test_what_was_not_stored_can_not_be_continued(serve):
    async with serve() as api:
        _, forgotten = await api.post("/v1/responses", {"input": "one", "store": False})
        _, completion = await api.chat("one")
        unknown = [
            forgotten["id"],
            completion["id"].replace("chatcmpl-", "resp_"),
            "resp_nothing",
            "resp_../../x",
            "nothing",
            "resp_" + "a" * 500,
        ]
        for response_id in unknown:
            status, answer = await api.post("/v1/responses", {"input": "two", "previous_response_id": response_id})
            assert (status, answer["error"]["param"]) == (404, "previous_response_id")
        assert (await api.get(f"/v1/responses/{forgotten['id']}"))[0] == 404
    assert forgotten["store"] is False


async def test_a_chain_may_carry_as_much_as_a_request(serve):
    async with serve(server={"body_limit": 2000}) as api:
        _, first = await api.post("/v1/responses", {"input": "x" * 600})
        status, second = await api.post("/v1/responses", {"input": "y", "previous_response_id": first["id"]})
        assert status == 200
        _, second = await api.post("/v1/responses", {"input": "y" * 600, "previous_response_id": first["id"]})
        status, answer = await api.post("/v1/responses", {"input": "z", "previous_response_id": second["id"]})
    assert status == 400
    assert answer["error"]["param"] == "previous_response_id"


async def test_a_session_has_its_own_history_and_takes_no_chain(serve):
    headers = {"X-Holdfast-Session": "ann"}
    async with serve(count) as api:
        await api.post("/v1/responses", {"input": "one"}, headers=headers)
        _, second = await api.post("/v1/responses", {"input": "two", "instructions": "ignored"}, headers=headers)
        assert said(second) == "U:one | A:U:one | U:two"
        body = {"input": "three", "previous_response_id": second["id"]}
        status, answer = await api.post("/v1/responses", body, headers=headers)
        assert (status, answer["error"]["param"]) == (400, "previous_response_id")
        # A response of a session is stored like any other.
        assert (await api.get(f"/v1/responses/{second['id']}"))[1] == second


async def test_items_are_taken_in_every_form(serve):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"role": "user", "content": "and?"},
    ]
    async with serve(count) as api:
        status, response = await api.post("/v1/responses", {"input": items})
    assert status == 200
    assert said(response) == "S:Be brief. | U:look | A:Looking. | T:one | T:two | U:and?"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a\0b"}, "input"),
        ({"input": "x", "instructions": "a\0b"}, "instructions"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata[...]"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_a_wrong_field_is_named(serve, body, param):
    async with serve() as api:
        status, answer = await api.post("/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_stream_is_a_sequence_of_typed_events(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str | AssistantMessage:
        if len(messages) == 1:
            emit(Reasoning("hm"))
            return calls(("list_files", "{}"), text="Let me look.")
        return "Nothing there."

    async with serve(script) as api:
        _, stream = await api.post("/v1/responses", {"input": "look", "stream": True})
        told = events(stream)
        stored = await api.get(f"/v1/responses/{told[0]['response']['id']}")
    assert [event["sequence_number"] for event in told] == list(range(len(told)))

    def item(text: str) -> list[str]:
        return [
            "response.output_item.added",
            "response.content_part.added",
            f"response.{text}.delta",
            f"response.{text}.done",
            "response.content_part.done",
            "response.output_item.done",
        ]

    assert [event["type"] for event in told] == [
        "response.created",
        "response.in_progress",
        *item("reasoning_text"),
        *item("output_text"),
        *item("output_text"),
        "response.completed",
    ]
    response = told[-1]["response"]
    assert [part["text"] for output in response["output"] for part in output["content"]] == [
        "hm",
        "Let me look.",
        "Nothing there.",
    ]
    assert [output.get("phase") for output in response["output"]] == [None, "commentary", "final_answer"]
    for event in told:
        if "output_index" in event and "item_id" in event:
            assert response["output"][event["output_index"]]["id"] == event["item_id"]
    assert said(stored[1]) == "Nothing there."
    assert stored[1]["id"] == response["id"]


async def test_a_failed_turn_is_an_error_before_the_stream_and_an_event_in_it(serve):
    talkative = False

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        if talkative:
            emit(Text("So far"))
        raise AskUser("There is no credit left.", code="no_credit")

    async with serve(script) as api:
        status, answer = await api.post("/v1/responses", {"input": "x", "stream": True})
        assert (status, answer["error"]["code"]) == (502, "no_credit")
        assert (await api.post("/v1/responses", {"input": "x"}))[0] == 502
        talkative = True
        _, stream = await api.post("/v1/responses", {"input": "x", "stream": True})
        last = events(stream)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "no_credit", "message": "There is no credit left."}
        _, stored = await api.get(f"/v1/responses/{last['response']['id']}")
        assert stored["status"] == "failed"
        # It can be gone on from; what failed was no answer.
        talkative = False
        body = {"input": "y", "previous_response_id": stored["id"]}
        assert (await api.post("/v1/responses", body))[0] == 502


async def test_a_stopped_answer_is_incomplete(serve):
    gate = Gate()
    headers = {"X-Holdfast-Session": "ann"}
    async with (
        serve(gate) as api,
        api.client.post("/v1/responses", json={"input": "x", "stream": True}, headers=headers) as response,
    ):
        await gate.has(1)
        assert (await api.chat("/stop", "ann"))[0] == 200
        told = events(await response.text())
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["status"] == "incomplete"
    assert said(told[-1]["response"]) == "(Stopped.)"


async def test_a_repeated_key_gets_the_same_response(serve):
    headers = {"Idempotency-Key": "k"}
    async with serve() as api:
        first = await api.post("/v1/responses", {"input": "x"}, headers=headers)
        assert await api.post("/v1/responses", {"input": "x"}, headers=headers) == first
        # The key belongs to the first request, whichever endpoint it went to.
        body = {"messages": [{"role": "user", "content": "x"}]}
        assert (await api.post("/v1/chat/completions", body, headers=headers))[0] == 422
        await until(lambda: not api.bench.gateway.awake)
