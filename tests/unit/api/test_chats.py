"""The chats of the page and of the terminal."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from holdfast.api import sse
from holdfast.core.messages import AssistantMessage, Message
from holdfast.testing.scripted import Emit, Gate, calls, until

pytestmark = pytest.mark.anyio

STREAM = {"Accept": "text/event-stream"}


def events(stream: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


async def told(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def test_a_message_is_told_from_accepted_to_answer(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str | AssistantMessage:
        return calls(("list_files", "{}")) if len(messages) == 1 else "Nothing there."

    async with serve(script) as api:
        status, stream = await api.post("/api/chats/web/abc/messages", {"text": "look", "id": "1"}, headers=STREAM)
    assert status == 200
    found = events(stream)
    kinds = [event["type"] for event in found]
    assert kinds == ["accepted", "started", "tool_started", "tool_finished", "text", "answer"]
    assert found[0] == {"type": "accepted", "id": "1"}
    assert found[-1]["text"] == "Nothing there."
    assert found[-1]["outcome"] == "ok"
    assert found[-1]["session"] == found[1]["session"]


async def test_without_a_stream_it_is_accepted_as_soon_as_it_is_stored(serve):
    gate = Gate()
    async with serve(gate) as api:
        answer = await api.post("/api/chats/terminal/abc/messages", {"text": "x", "id": "7"})
        assert answer == (202, {"id": "7"})
        await gate.has(1)
        gate.open()
        await until(lambda: api.bench.gateway.unanswered == 0)


async def test_the_same_id_is_the_same_message(serve):
    asked = 0

    async def script(messages: Sequence[Message], emit: Emit) -> str:
        nonlocal asked
        asked += 1
        return "once"

    path, body = "/api/chats/web/abc/messages", {"text": "x", "id": "1"}
    async with serve(script) as api:
        _, first = await api.post(path, body, headers=STREAM)
        _, again = await api.post(path, body, headers=STREAM)
        assert events(first)[-1] == events(again)[-1]
        status, answer = await api.post(path, {"text": "y", "id": "1"}, headers=STREAM)
        assert (status, answer["error"]["code"]) == (422, "idempotency_key_reused")
        assert (await api.post("/api/chats/web/other/messages", {"text": "y", "id": "1"}))[0] == 202
        await until(lambda: api.bench.gateway.unanswered == 0)
    assert asked == 2


async def test_a_hang_up_never_stops_the_turn_and_one_can_come_back_to_it(serve):
    gate = Gate()
    async with serve(gate) as api:
        assert (await api.get("/api/chats/web/abc/events"))[0] == 204
        async with api.client.post(
            "/api/chats/web/abc/messages", json={"text": "x", "id": "1"}, headers=STREAM
        ) as response:
            async for event in told(response):
                if event["type"] == "started":
                    break
            response.close()
        async with api.client.get("/api/chats/web/abc/events") as response:
            assert response.status == 200
            gate.open()
            found = [event async for event in told(response)]
    assert found[0] == {"type": "question", "text": "x", "id": "1"}
    assert [event["type"] for event in found[1:]] == ["started", "answer"] or found[-1]["text"] == "you said x"
    assert found[-1]["text"] == "you said x"


async def test_a_long_silence_is_filled_with_comments(serve, monkeypatch):
    monkeypatch.setattr(sse, "KEEP_ALIVE_EVERY", 0.01)
    gate = Gate()
    async with (
        serve(gate) as api,
        api.client.post("/api/chats/web/abc/messages", json={"text": "x", "id": "1"}, headers=STREAM) as response,
    ):
        lines = []
        async for line in response.content:
            lines.append(line)
            if lines.count(b": alive\n") == 3:
                gate.open()
    assert b'"type":"answer"' in lines[-2]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/chats/telegram/abc/messages", 404),
        ("/api/chats/web/a%20b/messages", 404),
        (f"/api/chats/web/{'a' * 129}/messages", 404),
        ("/api/chats/web/a%2Fb/messages", 404),
        ("/api/chats/web/a%0A/messages", 404),
    ],
)
async def test_only_the_pages_and_the_terminals_chats_are_there(serve, path, status):
    async with serve() as api:
        assert (await api.post(path, {"text": "x", "id": "1"}))[0] == status


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "x"}, "id"),
        ({"id": "1"}, "text"),
        ({"text": "", "id": "1"}, "text"),
        ({"text": "  \n", "id": "1"}, "text"),
        ({"text": "a\0b", "id": "1"}, "text"),
        ({"text": "x", "id": ""}, "id"),
        ({"text": "x", "id": "a b"}, "id"),
        ({"text": "x", "id": "a\n"}, "id"),
        ({"text": "x", "id": "a" * 129}, "id"),
        ({"text": ["x"], "id": "1"}, "text"),
    ],
)
async def test_a_wrong_message_is_refused_by_field(serve, body, param):
    async with serve() as api:
        status, answer = await api.post("/api/chats/web/abc/messages", body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_chat_shows_its_conversation(serve):
    async def script(messages: Sequence[Message], emit: Emit) -> str | AssistantMessage:
        return calls(("list_files", '{"path": "no/such"}'), text="Looking.") if len(messages) == 1 else "Done."

    async with serve(script) as api:
        assert await api.get("/api/chats/web/abc") == (200, {"session": None, "messages": [], "more": False})
        await api.post("/api/chats/web/abc/messages", {"text": "look", "id": "1"}, headers=STREAM)
        _, awake = await api.get("/api/chats/web/abc")
        session = awake["session"]["id"]
        assert await api.post(f"/admin/sessions/{session}/evict") == (200, {"evicted": True})
        await until(lambda: not api.bench.gateway.awake)
        _, dormant = await api.get("/api/chats/web/abc")
        assert await api.get(f"/api/sessions/{session}") == (200, dormant)
    assert awake == dormant
    assert awake["session"]["chat"] == "web:abc"
    assert awake["session"]["title"] == "look"
    assert "ended" not in awake["session"]
    messages = [{k: v for k, v in message.items() if k != "created"} for message in awake["messages"]]
    assert messages[0] == {"seq": 0, "role": "user", "text": "look"}
    assert messages[1] == {
        "seq": 1,
        "role": "assistant",
        "text": "Looking.",
        "tool_calls": [{"id": "call_0", "name": "list_files", "arguments": '{"path": "no/such"}'}],
    }
    result = messages[2]
    assert (result["role"], result["call_id"], result["name"], result["failed"]) == (
        "tool",
        "call_0",
        "list_files",
        True,
    )
    assert messages[3] == {"seq": 3, "role": "assistant", "text": "Done."}


async def test_commands_and_status_are_told(serve):
    async with serve() as api:
        _, commands = await api.get("/api/commands")
        _, status = await api.get("/api/status")
    assert {"new", "stop", "status", "help"} <= {command["name"] for command in commands}
    assert all(command["help"] for command in commands)
    assert status == {
        "model": {"name": "scripted", "provider": "scripted", "why": "a test says so"},
        "version": "1.2.3",
        "demo": False,
    }
