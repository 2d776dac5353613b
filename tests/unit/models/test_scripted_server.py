"""The scripted model server speaks as OpenAI does: the real `openai` client is the judge."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai
import pytest

from holdfast.core.messages import Usage
from holdfast.testing.models import Received, ScriptedModelServer, open_model_server
from holdfast.testing.replies import Reply, calls, context_too_long, fails, says

pytestmark = pytest.mark.anyio

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAMED: dict[str, Any] = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}


@asynccontextmanager
async def client_of(*script: Any, **how: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedModelServer]]:
    async with (
        open_model_server(*script, **how) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        yield client, server


async def test_text_and_usage_in_one_piece() -> None:
    async with client_of(says("Hello there.", usage=Usage(3, 4))) as (client, server):
        answer = await client.chat.completions.create(**ASKED)
        assert answer.object == "chat.completion"
        assert answer.choices[0].message.content == "Hello there."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 4, 7)
        assert server.requests[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("how", [{}, {"cut": 3}, {"newline": "\r\n"}, {"comments": True}, {"gzip": True}], ids=str)
async def test_text_and_usage_in_a_stream(how: dict[str, Any]) -> None:
    async with client_of(says("Hello there, wörld.", usage=Usage(3, 4), **how)) as (client, _):
        chunks = [chunk async for chunk in await client.chat.completions.create(**STREAMED)]
        assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert deltas[0].role == "assistant"
        assert [delta.content for delta in deltas if delta.content] == ["Hello ", "there, ", "wörld."]
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage
        assert chunks[-1].usage.total_tokens == 7


@pytest.mark.parametrize("whole_calls", [True, False])
async def test_the_clients_own_assembly_of_a_stream_finds_all_calls(whole_calls: bool) -> None:
    script = calls(("read_file", {"path": "a"}), ("list_files", {"depth": 2}), text="Well.", whole_calls=whole_calls)
    async with client_of(script) as (client, _):
        async with client.chat.completions.stream(**ASKED) as stream:
            answer = await stream.get_final_completion()
        message = answer.choices[0].message
        assert message.content == "Well."
        assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
            ("call_1", "read_file", '{"path":"a"}'),
            ("call_2", "list_files", '{"depth":2}'),
        ]
        assert answer.choices[0].finish_reason == "tool_calls"


async def test_calls_in_one_piece() -> None:
    async with client_of(calls(("read_file", {"path": "a"}))) as (client, _):
        choice = (await client.chat.completions.create(**ASKED)).choices[0]
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls
        assert choice.message.tool_calls[0].type == "function"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (fails(401), openai.AuthenticationError),
        (fails(402), openai.APIStatusError),
        (fails(403), openai.PermissionDeniedError),
        (fails(404), openai.NotFoundError),
        (fails(413), openai.APIStatusError),
        (fails(429, headers={"retry-after": "7"}), openai.RateLimitError),
        (fails(500), openai.InternalServerError),
        (fails(502), openai.InternalServerError),
        (fails(529), openai.InternalServerError),
        (context_too_long(), openai.BadRequestError),
    ],
)
async def test_errors_are_the_clients_errors(script: Reply, error: type[openai.APIStatusError]) -> None:
    async with client_of(script) as (client, _):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**ASKED)
        assert caught.value.status_code == script.status
        if script.status == 429:
            assert caught.value.response.headers["retry-after"] == "7"


async def test_models_are_listed() -> None:
    async with client_of(models=("a", "b")) as (client, _):
        assert [model.id async for model in client.models.list()] == ["a", "b"]


async def test_a_script_may_look_at_the_request_and_echoes_when_it_has_run_out() -> None:
    def shout(received: Received) -> Reply:
        return says(received.last.upper())

    async with client_of(shout) as (client, server):
        said = [(await client.chat.completions.create(**ASKED)).choices[0].message.content for _ in range(2)]
        assert said == ["HI", "You said: hi"]
        assert [received.last for received in server.requests] == ["hi", "hi"]


async def test_hanging_up_early_is_hanging_up() -> None:
    async with client_of(says("a b c d", close_after=2)) as (client, _):
        with pytest.raises(openai.APIError):
            await _all(client)


async def test_a_client_that_leaves_is_noticed() -> None:
    async with client_of(says("a b c", stall_after=2)) as (client, server):
        async with anyio.create_task_group() as group:
            group.start_soon(_all, client)
            await server.until(lambda server: server.stalled == 1)
            group.cancel_scope.cancel()
        await server.until(lambda server: server.left == 1)


async def _all(client: openai.AsyncOpenAI) -> None:
    async for _ in await client.chat.completions.create(**STREAMED):
        pass


async def test_an_unknown_address_is_not_found() -> None:
    async with client_of() as (client, _):
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="m", input="x")
