"""The chat-completions wire against a real server on a real socket, behaving and misbehaving."""

import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.core.errors import AskUser, FallBack, GiveUp, ModelError, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.ledger import Ledger
from holdfast.core.messages import (
    AssistantMessage,
    Message,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from holdfast.core.protocols import Model, ModelAnswer, ToolSpec
from holdfast.core.settings import Secret
from holdfast.models import openai_chat
from holdfast.models.providers import Dialect, ModelChoice, Timeouts
from holdfast.models.transports import open_transports
from holdfast.testing.models import ScriptedModelServer, ask_for, check_model, open_model_server
from holdfast.testing.replies import Reply, calls, context_too_long, events, fails, says

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
STREAMED = {"content-type": "text/event-stream"}
TOOL = ToolSpec("read_file", "Reads.", msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}}}'))


class Asked:
    """A model at a scripted server, and what it emitted."""

    def __init__(self, model: Model, server: ScriptedModelServer) -> None:
        self.model = model
        self.server = server
        self.emitted: list[Text | Reasoning] = []
        self._grown = anyio.Event()

    def emit(self, event: Text | Reasoning) -> None:
        self.emitted.append(event)
        self._grown.set()
        self._grown = anyio.Event()

    async def until_seen(self, text: str) -> None:
        with anyio.fail_after(5):
            while self.seen != text:
                await self._grown.wait()

    async def ask(self, *messages: Message, **how: Any) -> ModelAnswer:
        return await self.model.answer(ask_for(self.model, *messages or (UserMessage("hi"),), **how), self.emit)

    @property
    def seen(self) -> str:
        return "".join(event.text for event in self.emitted if isinstance(event, Text))


@asynccontextmanager
async def asking(
    *script: Any, dialect: Dialect | None = None, timeouts: Timeouts | None = None
) -> AsyncIterator[Asked]:
    async with open_model_server(*script) as server, open_transports(Ledger()) as transports:
        choice = ModelChoice(
            provider="custom",
            name="scripted",
            title="Testers",
            base_url=server.base_url,
            api_key=Secret(KEY),
            dialect=dialect or Dialect(),
            timeouts=timeouts or Timeouts(),
        )
        async with openai_chat.open_model(choice, transports) as model:
            yield Asked(model, server)


# ── what is sent ────────────────────────────────────────────────────────────────────────────────


async def test_the_body_is_the_encoded_pieces_joined() -> None:
    async with asking() as asked:
        await asked.ask(
            SystemMessage("again"),
            UserMessage("hello"),
            AssistantMessage("", (ToolCall("c1", "read_file", '{"path": "a"}'),)),
            ToolMessage("c1", "read_file", "text"),
            AssistantMessage("done"),
            prompt="Be brief.",
            tools=[TOOL],
        )
        received = asked.server.requests[0]
        assert received.path == "/v1/chat/completions"
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert received.headers["content-type"] == "application/json"
        assert received.body == {
            "model": "scripted",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "system", "content": "again"},
                {"role": "user", "content": "hello"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "read_file", "arguments": '{"path": "a"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "text"},
                {"role": "assistant", "content": "done"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "read_file",
                        "description": "Reads.",
                        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                    },
                }
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def test_without_prompt_tools_or_stream_nothing_of_them_is_sent() -> None:
    async with asking() as asked:
        await asked.ask(stream=False)
        assert asked.server.requests[0].body == {
            "model": "scripted",
            "messages": [{"role": "user", "content": "hi"}],
        }


async def test_sampling_is_sent_in_the_providers_own_words() -> None:
    async with asking(dialect=Dialect(limit="max_completion_tokens", with_tools='"reasoning_effort":"none"')) as asked:
        request = ask_for(asked.model, UserMessage("hi"), tools=[TOOL], stream=False)
        wishes = Sampling(temperature=0.0, top_p=0.5, max_tokens=9, stop=("END",))
        await asked.model.answer(msgspec.structs.replace(request, sampling=wishes), asked.emit)
        body = asked.server.requests[0].body
        assert {name: body[name] for name in body if name not in ("model", "messages", "tools")} == {
            "temperature": 0.0,
            "top_p": 0.5,
            "max_completion_tokens": 9,
            "stop": ["END"],
            "reasoning_effort": "none",
        }


async def test_what_belongs_to_tools_is_sent_only_with_tools() -> None:
    async with asking(dialect=Dialect(with_tools='"reasoning_effort":"none"')) as asked:
        await asked.ask()
        assert "reasoning_effort" not in asked.server.requests[0].body


@pytest.mark.parametrize(
    ("with_tools", "tools", "sent"),
    [
        ("", [], b',"reasoning_effort":"high"'),
        ("", [TOOL], b',"reasoning_effort":"high"'),
        ('"parallel_tool_calls":true', [TOOL], b',"parallel_tool_calls":true,"reasoning_effort":"high"'),
        ('"reasoning_effort":"none"', [], b',"reasoning_effort":"high"'),
        ('"reasoning_effort":"none"', [TOOL], b',"reasoning_effort":"none"'),
        ('"thinking":{"type":"disabled"}', [TOOL], b',"thinking":{"type":"disabled"}'),
    ],
)
async def test_how_hard_to_think_is_sent_unless_the_tools_leave_no_choice(
    with_tools: str, tools: list[ToolSpec], sent: bytes
) -> None:
    async with asking(dialect=Dialect(with_tools=with_tools)) as asked:
        await asked.ask(tools=tools, stream=False, reasoning="high")
        await asked.ask(tools=tools, stream=False)
        start = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]'
        start += b',"tools":' + asked.model.encode_tools(tools) if tools else b""
        assert asked.server.requests[0].raw == start + sent + b"}"
        assert (
            asked.server.requests[1].raw == start + (f",{with_tools}".encode() if tools and with_tools else b"") + b"}"
        )


async def test_how_hard_to_think_comes_after_the_prefix_and_is_one_word_of_json() -> None:
    async with asking() as asked:
        request = ask_for(asked.model, UserMessage("hi"), prompt="Be brief.", tools=[TOOL], reasoning='lo"w')
        wishes = Sampling(temperature=0.5)
        await asked.model.answer(msgspec.structs.replace(request, sampling=wishes), asked.emit)
        await asked.model.answer(msgspec.structs.replace(request, sampling=wishes, reasoning=""), asked.emit)
        with_effort, without = (received.raw for received in asked.server.requests)
        assert with_effort == without.replace(b',"stream":true', b',"reasoning_effort":"lo\\"w","stream":true')


async def test_notes_come_in_brackets_before_what_the_user_wrote() -> None:
    async with asking() as asked:
        noted = UserMessage("hello", ("the model was changed", 'it is "late"'))
        assert asked.model.encode_message(noted) == (
            b'{"role":"user","content":"[the model was changed]\\n\\n[it is \\"late\\"]\\n\\nhello"}'
        )
        assert asked.model.encode_message(UserMessage("hello")) == b'{"role":"user","content":"hello"}'


async def test_a_dialect_may_add_to_each_call_of_the_history_and_is_another_wire() -> None:
    async with asking(dialect=Dialect(on_calls='"extra":{"a":1}')) as asked, asking() as plain:
        message = AssistantMessage("", (ToolCall("c", "t", "{}"),))
        (call,) = msgspec.json.decode(asked.model.encode_message(message))["tool_calls"]
        assert call == {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}, "extra": {"a": 1}}
        assert asked.model.wire != plain.model.wire


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"text"', "null", '{"a": 1} x'])
async def test_arguments_that_are_no_json_object_do_not_poison_the_history(arguments: str) -> None:
    async with asking() as asked:
        message = AssistantMessage("", (ToolCall("c", "t", arguments),))
        (call,) = msgspec.json.decode(asked.model.encode_message(message))["tool_calls"]
        assert msgspec.json.decode(call["function"]["arguments"]) == {"not_json": arguments}


async def test_text_that_json_cannot_carry_is_mended() -> None:
    async with asking() as asked:
        assert (await asked.ask(UserMessage("a\ud800b"))).message.text == "You said: a?b"


async def test_a_history_of_many_megabytes_arrives() -> None:
    async with asking(says("ok")) as asked:
        long = UserMessage("x" * 3_000_000)
        assert (await asked.ask(long)).message.text == "ok"
        assert len(asked.server.requests[0].raw) > 3_000_000


# ── what is read ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
async def test_text_usage_and_end_are_read(stream: bool) -> None:
    async with asking(says("Hello there, you.", usage=Usage(3, 4))) as asked:
        answer = await asked.ask(stream=stream)
        assert answer == ModelAnswer(AssistantMessage("Hello there, you."), Usage(3, 4))
        assert asked.seen == ("Hello there, you." if stream else "")


@pytest.mark.parametrize("stream", [True, False])
async def test_parallel_calls_are_read(stream: bool) -> None:
    script = calls(("read_file", {"path": "a.txt"}), ("list_files", {"path": "docs", "depth": 2}), text="Looking.")
    async with asking(script) as asked:
        answer = await asked.ask(stream=stream)
        assert answer.message == AssistantMessage(
            "Looking.",
            (
                ToolCall("call_1", "read_file", '{"path":"a.txt"}'),
                ToolCall("call_2", "list_files", '{"path":"docs","depth":2}'),
            ),
        )


@pytest.mark.parametrize(
    "how",
    [
        {"newline": "\r\n"},
        {"newline": "\r"},
        {"comments": True},
        {"done": False},
        {"finish": None},
        {"usage": None},
        {"gzip": True},
        {"cut": 1},
        {"cut": 7},
        {"pace": 0.001},
        {"whole_calls": True},
        {"event_stream": False},
        {"first_wait": 0.01},
    ],
    ids=str,
)
async def test_servers_differ_and_the_answer_does_not(how: dict[str, Any]) -> None:
    script = calls(("read_file", {"path": "a"}), ("read_file", {"path": "b"}), text="Well, é文😀.", **how)
    async with asking(script) as asked:
        answer = await asked.ask()
        assert answer.message.text == asked.seen == "Well, é文😀."
        assert [call.arguments for call in answer.message.tool_calls] == ['{"path":"a"}', '{"path":"b"}']


async def test_a_stream_nobody_asked_for_is_read_too() -> None:
    async with asking(says("One two three.", event_stream=True)) as asked:
        assert (await asked.ask(stream=False)).message.text == "One two three."
        assert asked.emitted == []


async def test_calls_without_ids_get_ids_of_their_own() -> None:
    async with asking(calls(("a", {}), ("b", {}), call_ids=False), calls(("a", {}), call_ids=False)) as asked:
        first = await asked.ask()
        history = [UserMessage("hi"), first.message, *(ToolMessage(c.id, c.name, "") for c in first.message.tool_calls)]
        second = await asked.ask(*history)
        ids = [call.id for call in (*first.message.tool_calls, *second.message.tool_calls)]
        assert len(set(ids)) == 3
        assert all(len(id) == 9 and id.isalnum() for id in ids)


async def test_an_answer_cut_at_its_limit_says_so() -> None:
    async with asking(says("Once upon a", finish="length"), says("x", finish="length")) as asked:
        assert (await asked.ask()).truncated
        assert (await asked.ask(stream=False)).truncated


async def test_what_comes_in_one_read_is_emitted_as_one_and_what_comes_later_later() -> None:
    async with asking(says("one ", "two ", "three", stall_after=3)) as asked, anyio.create_task_group() as group:
        group.start_soon(asked.ask)
        await asked.until_seen("one two ")
        await asked.server.until(lambda server: server.stalled == 1)
        asked.server.resume()
        await asked.until_seen("one two three")
    async with asking(says("one ", "two ", "three")) as asked:
        await asked.ask()
        assert asked.emitted == [Text("one two three")]


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        (fails(401), AskUser, "bad_key"),
        (fails(402), AskUser, "no_credit"),
        (fails(403), AskUser, "bad_key"),
        (fails(404), AskUser, "no_such_model"),
        (Reply(status=404, body=b"<h1>Not here</h1>"), AskUser, "wrong_address"),
        (fails(413), AskUser, "context_too_long"),
        (context_too_long(), AskUser, "context_too_long"),
        (fails(429, code="insufficient_quota"), AskUser, "no_credit"),
        (Reply(status=301, headers={"location": "http://127.0.0.1:1/"}, body=b""), AskUser, "wrong_address"),
        (Reply(body=b"<html>Hotel</html>", headers={"content-type": "text/html"}), AskUser, "wrong_address"),
        (fails(429), RetryModel, "rate_limit"),
        (fails(500), RetryModel, "busy"),
        (fails(502), RetryModel, "busy"),
        (fails(503), RetryModel, "busy"),
        (fails(529), RetryModel, "busy"),
        (Reply(status=502, body=b"<html>cloud</html>" * 100_000), RetryModel, "busy"),
        (fails(400), FallBack, "rejected"),
        (fails(418), GiveUp, "model_failed"),
        (says("Half an ans", finish=None, done=False), RetryModel, "broken_off"),
        (says("a b c d e", close_after=3), RetryModel, "disconnected"),
        (Reply(body=b'{"choices":[{"mess'), RetryModel, "unreadable"),
        (Reply(body=b'{"choices":[]}', headers={"content-length": "500"}), RetryModel, "disconnected"),
        (Reply(body=b"{}"), RetryModel, "broken_off"),
        (Reply(body=b'{"error":{"message":"Overloaded","type":"overloaded_error"}}'), RetryModel, "broken_off"),
        (Reply(body=b'data: {"error":{"message":"x","code":502}}\n\n', headers=STREAMED), RetryModel, "busy"),
        (Reply(body=b'data: {"choi\n\n', headers=STREAMED), RetryModel, "unreadable"),
        (Reply(body=b"data: [DONE]\n\n", headers=STREAMED), RetryModel, "broken_off"),
        (says(finish="content_filter"), FallBack, "content_filter"),
    ],
)  # fmt: skip
async def test_errors_say_what_to_do(script: Reply, kind: type[ModelError], code: str) -> None:
    async with asking(script) as asked:
        with pytest.raises(kind) as caught:
            await asked.ask()
        assert type(caught.value) is kind
        assert caught.value.code == code
        assert KEY not in str(caught.value) + caught.value.detail
        assert "Testers" in str(caught.value) or "conversation" in str(caught.value)
        assert len(caught.value.detail) < 600


async def test_an_error_in_the_middle_of_a_stream_is_an_error() -> None:
    async def ask(error: dict[str, Any]) -> ModelError:
        begun = {"choices": [{"index": 0, "delta": {"content": "Well"}, "finish_reason": None}]}
        body = b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in (begun, error))
        async with asking(Reply(body=body, headers=STREAMED)) as asked:
            with pytest.raises(ModelError) as caught:
                await asked.ask()
            return caught.value

    assert type(await ask({"error": {"message": "The server is overloaded", "type": "server_error"}})) is RetryModel
    assert (
        type(await ask({"choices": [{"error": {"message": "x", "code": 429}, "finish_reason": "error"}]})) is RetryModel
    )
    too_long = await ask({"error": {"message": "prompt is too long: 9 tokens", "type": "invalid_request_error"}})
    assert (type(too_long), too_long.code) == (AskUser, "context_too_long")


async def test_a_server_that_is_not_there_is_retried() -> None:
    async with open_model_server() as gone:
        base_url = gone.base_url
    async with open_transports(Ledger()) as transports:
        choice = ModelChoice(provider="custom", name="m", base_url=base_url)
        async with openai_chat.open_model(choice, transports) as model:
            with pytest.raises(RetryModel) as caught:
                await model.answer(ask_for(model, UserMessage("hi")), lambda event: None)
    assert str(caught.value) == "The model server at 127.0.0.1 can't be reached."


@pytest.mark.virtual
@pytest.mark.parametrize(("stream", "patience"), [(True, 120), (False, 600)])
async def test_silence_before_the_first_byte_times_out(stream: bool, patience: float) -> None:
    async with asking(says("late", first_wait=6000)) as asked:
        started = anyio.current_time()
        with pytest.raises(RetryModel) as caught:
            await asked.ask(stream=stream)
        assert caught.value.code == "timeout"
        assert anyio.current_time() - started == pytest.approx(patience, abs=2)


@pytest.mark.virtual
async def test_silence_in_the_middle_of_a_stream_times_out() -> None:
    async with asking(says("one two three", stall_after=2)) as asked:
        started = anyio.current_time()
        with pytest.raises(RetryModel) as caught:
            await asked.ask()
        assert caught.value.code == "timeout"
        assert asked.seen == "one "
        assert anyio.current_time() - started == pytest.approx(120, abs=2)


@pytest.mark.virtual
async def test_a_stream_may_take_as_long_as_it_likes_if_it_never_falls_silent() -> None:
    async with asking(says("word " * 50, pace=100)) as asked:
        started = anyio.current_time()
        assert (await asked.ask()).message.text == "word " * 50
        assert anyio.current_time() - started > 5000


@pytest.mark.virtual
@pytest.mark.parametrize(("before_the_end", "patience"), [(2, 5), (1, 5), (0, 0.25)])
async def test_a_whole_answer_does_not_wait_for_a_server_that_never_hangs_up(
    before_the_end: int, patience: float
) -> None:
    script = says("All said.")
    number = len(list(events(script, {"stream_options": {"include_usage": True}})))
    async with asking(msgspec.structs.replace(script, stall_after=number - before_the_end)) as asked:
        started = anyio.current_time()
        answer = await asked.ask()
        assert answer.message.text == "All said."
        assert answer.usage == (Usage(12, 7) if before_the_end < 2 else Usage())
        assert anyio.current_time() - started == pytest.approx(patience, abs=0.1)


async def test_a_connection_that_breaks_after_a_whole_answer_breaks_nothing() -> None:
    script = says("All said.")
    number = len(list(events(script, {"stream_options": {"include_usage": True}})))
    async with asking(msgspec.structs.replace(script, close_after=number - 2)) as asked:
        assert (await asked.ask()).message.text == "All said."


@pytest.mark.parametrize("stall_after", [None, 2], ids=["before the first byte", "mid-stream"])
async def test_cancelling_closes_the_connection_at_once(stall_after: int | None) -> None:
    first_wait = 0 if stall_after else 60
    async with asking(says("one two three", stall_after=stall_after, first_wait=first_wait)) as asked:
        async with anyio.create_task_group() as group:
            group.start_soon(asked.ask)
            await asked.server.until(lambda server: len(server.requests) == 1)
            if stall_after:
                await asked.until_seen("one ")
            group.cancel_scope.cancel()
        cancelled = time.monotonic()
        await asked.server.until(lambda server: server.left == 1 and server.connections == 0)
        assert time.monotonic() - cancelled < 0.5


# ── connections ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_share_a_connection_one_after_the_other(stream: bool) -> None:
    async with asking() as asked:
        for _ in range(5):
            await asked.ask(stream=stream)
        assert asked.server.connected == 1


async def test_errors_that_were_read_to_the_end_keep_the_connection() -> None:
    async with asking(fails(429), fails(500)) as asked:
        for _ in range(2):
            with pytest.raises(RetryModel):
                await asked.ask()
        await asked.ask()
        assert asked.server.connected == 1


async def test_the_contract_holds() -> None:
    async with open_model_server() as server, open_transports(Ledger()) as transports:
        choice = ModelChoice(provider="custom", name="scripted", base_url=server.base_url)
        await check_model(lambda: openai_chat.open_model(choice, transports))


async def test_credentials_in_the_address_are_sent_as_such_and_shown_nowhere() -> None:
    async with open_model_server(fails(500)) as server, open_transports(Ledger()) as transports:
        base_url = server.base_url.replace("http://", "http://anna:secret@")
        choice = ModelChoice(provider="custom", name="m", base_url=base_url)
        async with openai_chat.open_model(choice, transports) as model:
            with pytest.raises(RetryModel) as caught:
                await model.answer(ask_for(model, UserMessage("hi")), lambda event: None)
            assert server.requests[0].headers["authorization"].startswith("Basic ")
            shown = f"{caught.value} {caught.value.detail} {model!r} {transports!r}"
            assert "secret" not in shown


async def test_a_compressed_error_is_understood() -> None:
    body = gzip.compress(b'{"error":{"code":"invalid_api_key","message":"Incorrect API key"}}')
    async with asking(Reply(status=400, body=body, headers={"content-encoding": "gzip"})) as asked:
        with pytest.raises(AskUser) as caught:
            await asked.ask()
        assert caught.value.code == "bad_key"
