"""Answers put together from chunks, as the many servers send them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import AskUser, FallBack, GiveUp, ModelError, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.messages import AssistantMessage, ToolCall
from holdfast.core.protocols import ModelAnswer
from holdfast.models.completions import Assembly
from holdfast.models.providers import ModelChoice
from holdfast.models.sse import EventParser
from holdfast.testing.replies import calls, events, whole


def chunk(**delta: Any) -> bytes:
    return msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def assembled(*chunks: bytes, emitted: list[Any] | None = None) -> ModelAnswer:
    assembly = Assembly(
        ModelChoice(provider="custom", name="m", title="Testers"), "x", (emitted if emitted is not None else []).append
    )
    for payload in (*chunks, b"[DONE]"):
        assembly.take(payload)
    assembly.show()
    return assembly.answer()


def call(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


A = {"id": "1", "index": 0}
B = {"id": "2", "index": 1}
WAYS_TO_SEND_TWO_CALLS: dict[str, list[list[dict[str, Any]]]] = {
    "in turns": [
        [call("a", "", **A)],
        [call("b", "", **B)],
        [call(None, '{"x"', index=0)],
        [call(None, "{}", index=1)],
        [call(None, ":1}", index=0)],
    ],
    "all in one chunk": [[call("a", '{"x":1}', **A), call("b", "{}", **B)]],
    "one index for all": [[call("a", '{"x":1}', **A)], [call("b", "{}", id="2", index=0)]],
    "no index": [[call("a", '{"x":1}', id="1")], [call("b", "{}", id="2")]],
    "no index, in parts": [[call("a", '{"x"', id="1")], [call(None, ":1}")], [call("b", "{}", id="2")]],
    "id and name repeated": [[call("a", '{"x"', **A)], [call("a", ":1}", **A)], [call("b", "{}", **B)]],
    "empty id and name": [[call("a", '{"x"', **A)], [call("", ":1}", id="", index=0)], [call("b", "{}", **B)]],
    "a new id for each part": [[call("a", '{"x"', **A)], [call(None, ":1}", id="9", index=0)], [call("b", "{}", **B)]],
    "arguments as an object": [[call("a", {"x": 1}, **A), call("b", {}, **B)]],
    "no arguments": [[call("a", '{"x":1}', **A), call("b", None, **B)]],
}


@pytest.mark.parametrize("chunks", WAYS_TO_SEND_TWO_CALLS.values(), ids=WAYS_TO_SEND_TWO_CALLS)
def test_calls_come_together_however_they_are_cut(chunks: list[list[dict[str, Any]]]) -> None:
    answer = assembled(*(chunk(tool_calls=parts) for parts in chunks))
    assert answer.message.tool_calls == (ToolCall("1", "a", '{"x":1}'), ToolCall("2", "b", "{}"))


def test_whole_calls_without_index_and_id_are_told_apart_by_their_names() -> None:
    answer = assembled(chunk(tool_calls=[call("a", "{}"), call("a", "{}")]))
    assert [(c.id, c.name, c.arguments) for c in answer.message.tool_calls] == [
        ("x000", "a", "{}"),
        ("x001", "a", "{}"),
    ]


def test_reasoning_is_shown_under_either_name_in_order_and_is_no_part_of_the_answer() -> None:
    emitted: list[Any] = []
    answer = assembled(
        chunk(reasoning_content="Hm"),
        chunk(reasoning="m."),
        chunk(content="Yes", reasoning=None),
        chunk(content=None, reasoning={"unknown": "shape"}),
        chunk(content="."),
        chunk(reasoning="Wait."),
        chunk(content=" No."),
        emitted=emitted,
    )
    assert answer.message == AssistantMessage("Yes. No.")
    assert emitted == [Reasoning("Hmm."), Text("Yes."), Reasoning("Wait."), Text(" No.")]


def test_a_refusal_and_content_in_parts_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert assembled(chunk(refusal="I can't."), chunk(content=parts)).message.text == "I can't.ab"


# ── any cut ─────────────────────────────────────────────────────────────────────────────────────

SCRIPT = calls(("read_file", {"path": "ä/b.txt"}), ("list_files", {}), text="Grüße, 世界! ", reasoning="Hm.")
STREAM = b"".join(events(SCRIPT, {"stream_options": {"include_usage": True}}))
WHOLE = whole(SCRIPT, {})


@settings(max_examples=200)
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_of_the_stream_assembles_to_the_same_answer_as_the_whole(places: list[int]) -> None:
    def assemble(feed: Callable[[Assembly], None]) -> ModelAnswer:
        assembly = Assembly(ModelChoice(provider="custom", name="m"), "x", None)
        feed(assembly)
        assembly.show()
        return assembly.answer()

    def streamed(assembly: Assembly) -> None:
        parser = EventParser()
        edges = [0, *sorted(places), len(STREAM)]
        for start, end in pairwise(edges):
            for payload in parser.feed(STREAM[start:end]):
                assembly.take(payload)
            assembly.show()

    assert assemble(streamed) == assemble(lambda assembly: assembly.take(WHOLE))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NEAR_A_CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "delta": st.fixed_dictionaries(
                        {}, optional=dict.fromkeys(("content", "reasoning", "refusal", "tool_calls"), JSON)
                    ),
                    "finish_reason": JSON,
                    "error": JSON,
                },
            ),
            max_size=2,
        )
        | JSON,
        "usage": JSON,
        "error": JSON,
    },
)


@given(st.lists(NEAR_A_CHUNK | JSON, max_size=4))
def test_whatever_a_server_sends_ends_in_an_answer_or_an_error_with_a_reaction(chunks: list[Any]) -> None:
    outcome: object
    try:
        outcome = assembled(*map(msgspec.json.encode, chunks))
    except ModelError as told:
        outcome = told
    assert isinstance(outcome, ModelAnswer | AskUser | FallBack | GiveUp | RetryModel)


def test_the_end_is_known_with_spaces_around_it_and_empty_events_are_nothing() -> None:
    assembly = Assembly(ModelChoice(provider="custom", name="m"), "x", None)
    for payload in (b"", chunk(content="a"), b" ", b" [DONE] "):
        assembly.take(payload)
    assembly.show()
    assert assembly.done
    assert assembly.answer().message.text == "a"
