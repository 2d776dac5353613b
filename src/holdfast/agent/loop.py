"""The agent's loop: ask the model, run the tools that it calls, until it answers.

It knows no platform, no store and no session: what happens leaves as events, and when `emit` returns,
the event has been dealt with (a message that was `Said` is stored). Cancelling the caller's scope
ends the loop wherever it waits.
"""

import random
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import structlog

from holdfast.agent.context import Context
from holdfast.core.errors import GiveUp, ToolFailed
from holdfast.core.events import AgentEvent, Reasoning, Retrying, Said, Text, ToolFinished, ToolStarted
from holdfast.core.messages import AssistantMessage, Sampling, ToolCall, ToolMessage, Usage
from holdfast.core.protocols import Model, ModelAnswer, ToolContext
from holdfast.models.retries import ask
from holdfast.tools.catalogue import ToolSet

log = structlog.get_logger(__name__)

Emit = Callable[[AgentEvent], Awaitable[None]]
Show = Callable[[AgentEvent], None]


class Asking:
    """How the model is asked in one turn."""

    def __init__(
        self,
        *,
        sampling: Sampling,
        stream: bool,
        max_steps: int,
        attempts: int,
        chance: random.Random,
        show: Show,
        reasoning: str = "",
    ) -> None:
        self.sampling = sampling
        self.stream = stream
        self.max_steps = max_steps
        self.attempts = attempts
        self.chance = chance
        self.reasoning = reasoning
        self.show = show
        """For what is only looked at: words as they come. Must not block."""


async def run(
    context: Context, tools: ToolSet, model: Model, where: ToolContext, asking: Asking, emit: Emit
) -> ModelAnswer:
    """Run one turn to the model's last word, which is returned and not yet part of the context.

    Raises `ModelError` when the model does not answer.
    """
    usage = Usage()
    for _ in range(asking.max_steps):
        answer = await _ask(context, model, asking)
        usage += answer.usage
        if not answer.message.tool_calls:
            return ModelAnswer(answer.message, usage, answer.truncated)
        context.add(answer.message)
        await emit(Said(answer.message))
        await _use_tools(answer.message, context, tools, where, emit)
    raise GiveUp(f"I stopped after {asking.max_steps} steps without reaching an answer.", code="too_many_steps")


async def _ask(context: Context, model: Model, asking: Asking) -> ModelAnswer:
    def retrying(reason: str, wait: float) -> None:
        asking.show(Retrying(reason, wait))

    def show(event: Text | Reasoning) -> None:
        asking.show(event)

    request = context.request(asking.sampling, stream=asking.stream, reasoning=asking.reasoning)
    return await ask(model, request, show, on_retry=retrying, chance=asking.chance, attempts=asking.attempts)


async def _use_tools(said: AssistantMessage, context: Context, tools: ToolSet, where: ToolContext, emit: Emit) -> None:
    """Run the calls of one answer: side by side where all of their tools allow it, else one by one."""

    async def use(call: ToolCall) -> None:
        await emit(ToolStarted(call.id, call.name, call.arguments))
        result = await _use(call, tools, where)
        context.add(result)
        await emit(Said(result))
        await emit(ToolFinished(call.id, call.name, result.text, result.failed))

    calls = said.tool_calls
    if len(calls) > 1 and all(call.name in tools.by_name and tools.by_name[call.name].concurrent for call in calls):
        try:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(use, call)
        except ExceptionGroup as failures:  # what `emit` raised; one of them says enough
            raise failures.exceptions[0] from failures
    else:
        for call in calls:
            await use(call)


async def _use(call: ToolCall, tools: ToolSet, where: ToolContext) -> ToolMessage:
    failed = partial(ToolMessage, call.id, call.name, failed=True)
    tool = tools.by_name.get(call.name)
    if tool is None:
        return failed(f"There is no tool {call.name!r}. The tools are: {', '.join(tools.by_name) or 'none'}.")
    try:
        return ToolMessage(call.id, call.name, _sendable(await tool.run(where, call.arguments)))
    except ToolFailed as reason:
        return failed(_sendable(str(reason)))
    except Exception:  # a tool's bug ends neither the turn nor the session
        log.exception("a tool broke", tool=call.name, session=where.session)
        return failed(f"{call.name} broke unexpectedly; the operator's log has the details. Try another way.")


def _sendable(text: str) -> str:
    """Without halves of characters, which a file's name may have and no wire can carry."""
    return text.encode("utf-8", "replace").decode()
