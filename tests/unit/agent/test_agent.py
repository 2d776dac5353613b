"""The signature: same configuration, same agent; different configuration, new agent."""

import msgspec
import pytest

from holdfast.agent.agent import ModelConfig, credential_digest, signature
from holdfast.agent.context import Context
from holdfast.agent.prompt import build_prompt
from holdfast.core.keys import ChatKey
from holdfast.core.messages import AssistantMessage, Message, Sampling, ToolCall, ToolMessage, UserMessage
from holdfast.testing.scripted import ScriptedModel, echo
from holdfast.tools.catalogue import Catalogue
from holdfast.tools.files import TOOLS

ALL = Catalogue(TOOLS).choose()
BASE = msgspec.structs.replace(ScriptedModel(echo).config(), credential_digest=credential_digest("sk-12345678-one"))


def test_the_same_configuration_has_the_same_signature() -> None:
    assert signature(BASE, ALL, "prompt") == signature(BASE, Catalogue(TOOLS).choose(), "prompt")


@pytest.mark.parametrize("field", ["provider", "name", "base_url", "wire"])
def test_each_part_of_the_configuration_matters(field: str) -> None:
    other: ModelConfig = msgspec.structs.replace(BASE, **{field: "other"})
    assert signature(other, ALL, "prompt") != signature(BASE, ALL, "prompt")


def test_two_keys_that_begin_alike_differ() -> None:
    other = msgspec.structs.replace(BASE, credential_digest=credential_digest("sk-12345678-two"))
    assert signature(other, ALL, "prompt") != signature(BASE, ALL, "prompt")
    assert "12345678" not in signature(BASE, ALL, "prompt") + BASE.credential_digest


def test_tools_and_prompt_matter() -> None:
    fewer = Catalogue(TOOLS[:1]).choose()
    assert signature(BASE, fewer, "prompt") != signature(BASE, ALL, "prompt")
    assert signature(BASE, ALL, "other") != signature(BASE, ALL, "prompt")


def test_a_context_rebuilt_from_its_messages_sends_the_same_bytes() -> None:
    model = ScriptedModel(echo)
    messages: list[Message] = [
        UserMessage("hello"),
        AssistantMessage("", (ToolCall("1", "read_file", "{}"),)),
        ToolMessage("1", "read_file", "text"),
        AssistantMessage("done"),
    ]
    grown = Context(model, "prompt", ALL)
    for message in messages:
        grown.add(message)
    rebuilt = Context(model, "prompt", ALL, messages)
    assert grown.request(Sampling(), stream=True) == rebuilt.request(Sampling(), stream=True)


def test_a_call_without_its_result_is_noticed() -> None:
    call = ToolCall("1", "read_file", "{}")
    context = Context(ScriptedModel(echo), "prompt", ALL, [AssistantMessage("", (call,))])
    assert context.unanswered == [call]
    context.add(ToolMessage("1", "read_file", "text"))
    assert context.unanswered == []


def test_the_prompt_is_the_same_for_the_same_chat_and_knows_its_channel() -> None:
    assert build_prompt(ChatKey("web", "1"), ALL) == build_prompt(ChatKey("web", "2"), ALL)
    assert "Markdown on a web page" in build_prompt(ChatKey("web", "1"), ALL)
    assert "tools" not in build_prompt(ChatKey("api", "1"), Catalogue([]).choose())
