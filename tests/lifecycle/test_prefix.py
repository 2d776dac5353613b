"""What a model is sent: one prefix for a whole conversation, and after it what an agent that never left would send."""

import hashlib
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from holdfast.core.errors import GiveUp, ToolFailed
from holdfast.core.events import Text, ToolStarted
from holdfast.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from holdfast.core.protocols import ToolContext
from holdfast.testing.gateways import Bench
from holdfast.testing.models import Received, open_model_server
from holdfast.testing.processes import GatewayProcess
from holdfast.testing.replies import calls as calls_tool
from holdfast.testing.replies import says
from holdfast.testing.scripted import Emit, calls, echo
from holdfast.tools.function import tool

from .events import EVICTIONS, agent_of, evict, open_small, shut_down
from .lamps import Lamps

pytestmark = pytest.mark.anyio

Sent = tuple[tuple[bytes, bytes, tuple[bytes, ...]], str]
"""A request, and the effort that was asked for with it."""


def ours(bench: Bench) -> list[Sent]:
    """The requests of CHAT: those who come by the limit's route begin with "hello"."""
    every = zip(bench.model.requests, bench.model.efforts, strict=True)
    return [(request, effort) for request, effort in every if b'"hello"' not in request[2][0]]


# ── an agent that left and one that never did ───────────────────────────────────────────────────


@tool(toolset="test", concurrent=True)
async def look(context: ToolContext) -> str:
    """Look, slowly."""
    await anyio.sleep(2)
    return "seen:\n\t“ü” \\ 😀"


@tool(toolset="test", concurrent=True)
async def stumble(context: ToolContext) -> str:
    """Fail."""
    raise ToolFailed("There is nothing to stumble over.")


@tool(toolset="test")
async def hang(context: ToolContext) -> str:
    """Hang."""
    await anyio.sleep_forever()
    return ""


@tool(toolset="test")
async def own(context: ToolContext) -> str:
    """Own something, which keeps the session awake."""
    await context.own("thing", nullcontext)
    return "owned"


async def script(messages: Sequence[Message], emit: Emit) -> AssistantMessage | str:
    match messages[-1]:
        case ToolMessage(text=text):
            return f"the last tool said {text}"
        case UserMessage(text="look"):  # the second call is done before the first
            return calls(("look", "{}"), ("stumble", "{}"), text="I'll look.")
        case UserMessage(text="own"):
            return calls(("own", "{}"))
        case UserMessage(text="misspell"):
            return calls(("lok", "{not json"))
        case UserMessage(text="break"):
            raise GiveUp("The model gives up.")
        case UserMessage(text="say nothing"):
            return ""
        case UserMessage(text="hang in a tool"):
            return calls(("hang", "{}"))
        case UserMessage(text="hang"):
            emit(Text("half a sen"))
            await anyio.sleep_forever()
    return await echo(messages, emit)


CONVERSATION = (
    'Grüße, 世界 😀\n\t"quoted" \\ <b>\u2028',
    "look",
    "/model other",
    "look",
    "hang in a tool",
    "/reasoning high",
    "hang",
    "break",
    "say nothing",
    "/undo",
    "misspell",
    "misspell",
    "/model scripted",
    "/undo 2",
    "/reasoning default",
    "the end",
)


async def take(bench: Bench, step: str) -> None:
    """One step of a conversation; what hangs is stopped."""
    mail = await bench.send(step, watched=True)
    if step.startswith("hang"):
        async for event in mail.events():
            if isinstance(event, Text | ToolStarted):
                break
        await bench.say("/stop")
    await mail.answered()


async def converse(folder: Path, steps: Sequence[str], leaving: str = "") -> tuple[list[Sent], list[Message]]:
    """A conversation, after each step of which its agent leaves; all that was sent, and all that is stored."""
    folder.mkdir()
    left, sent = deque(steps), list[Sent]()
    while left:
        async with open_small(folder, script, tools=[look, stumble, hang, own]) as bench:
            while left:
                await take(bench, left.popleft())
                await anyio.sleep(1)
                if leaving in EVICTIONS and agent_of(bench):
                    await evict(bench, leaving)
                if leaving == "shutdown":
                    await shut_down(bench)
                if leaving in ("shutdown", "crash"):
                    break
            sent += ours(bench)
            stored = await bench.said()
    return sent, stored


@pytest.mark.virtual
@pytest.mark.proves("buffer/evict", "buffer/shutdown", "buffer/crash", "tools/evict", "prompt/evict", "notes/evict")
@pytest.mark.parametrize("owns", [False, True], ids=["dormant", "awake"])
@pytest.mark.parametrize("leaving", [*EVICTIONS, "shutdown", "crash"])
async def test_an_agent_that_left_sends_what_one_that_never_left_would(
    tmp_path: Path, leaving: str, owns: bool
) -> None:
    """Byte for byte: tool calls, failed ones, ones cut off, notes, errors and what was undone included."""
    steps = ("own", *CONVERSATION) if owns else CONVERSATION
    stayed, stored = await converse(tmp_path / "stays", steps)
    left, stored_as_well = await converse(tmp_path / "leaves", steps, leaving)
    assert len(stayed) == (16 if owns else 14)
    for number, (one, other) in enumerate(zip(stayed, left, strict=True)):
        assert other == one, f"request {number} differs"
    assert stored_as_well == stored
    last = stayed[-1][0][2]
    for part in (b"interrupted", b"From here on the model is", b"gives up", b"half a sen", b"stumble over", b"Gr"):
        assert any(part in message for message in last), part


# ── one prefix ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("invariant 11")
async def test_prompt_and_tools_have_one_hash_over_all_that_can_happen_to_an_agent(tmp_path: Path) -> None:
    lamps, hashes, requests = Lamps("red", "green", "blue"), set[str](), 0
    for start in range(4):
        tools = [look, *reversed(lamps.tools)] if start % 2 else lamps.tools
        async with open_small(tmp_path, echo, tools=tools) as bench:
            for route in EVICTIONS:
                for text in ("one", "/reasoning high", "two", f"/model m{start}", "three", "/undo", "four"):
                    lamps.lit ^= {"red", "white"}
                    lamps.broken = text == "two"
                    await bench.say(text)
                await evict(bench, route)
            if start % 2:
                await shut_down(bench)
            await anyio.sleep(1)
            sent = [request for request, _ in ours(bench)]
            hashes |= {hashlib.sha256(system + tools).hexdigest() for system, tools, _ in sent}
            requests += len(sent)
    assert requests == 4 * 4 * 4
    assert len(hashes) == 1


LAMP = """
from pathlib import Path
from holdfast.core.protocols import ToolContext
from holdfast.tools.function import tool

@tool(toolset="test", available=Path("lit").exists)
def lamp(context: ToolContext) -> str:
    "Shine."
    return "bright"

TOOLS = (lamp,)
"""


def prefix(received: Received) -> bytes:
    """The model, the system prompt and the tools, as they came."""
    before, _, rest = received.raw.partition(b'{"role":"user"')
    return before + rest[rest.rindex(b'"tools":') :].partition(b',"stream"')[0].removesuffix(b"}")


def conversation(received: Received) -> bytes:
    """The messages as they came, without the closing bracket."""
    return received.raw[received.raw.index(b'"messages":') : received.raw.rindex(b'],"tools":')]


@pytest.mark.proves("prompt/crash", "buffer/crash", "tools/crash", "invariant 11")
async def test_a_killed_process_and_its_successor_send_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the middle of a turn, a real process, a real model server, and a tool that can't work afterwards."""
    (tmp_path / "lamp_tools.py").write_text(LAMP)
    (tmp_path / "lit").touch()
    monkeypatch.chdir(tmp_path)  # where the process finds both
    do = anyio.to_thread.run_sync
    async with open_model_server(calls_tool(("lamp", {})), says("It is bright."), says("", stall_after=0)) as server:
        settings = {
            "HOLDFAST_MODEL__PROVIDER": "custom",
            "HOLDFAST_MODEL__BASE_URL": server.base_url,
            "HOLDFAST_MODEL__NAME": "scripted",
            "HOLDFAST_TOOLS__MODULES": "lamp_tools",
        }
        gateway = GatewayProcess(tmp_path, settings)
        try:
            await do(gateway.start)
            await do(gateway.say, "a", "use the lamp")
            await do(gateway.ask, "/api/chats/web/a/messages", {"text": "Grüße", "id": "second"})
            await server.until(lambda server: server.stalled == 1)
            await do(gateway.kill)
            (tmp_path / "lit").unlink()
            await do(gateway.start)
            await do(gateway.say, "a", "third")
        finally:
            await do(gateway.kill)
        asked, _, killed, taken_up, third = server.requests
        assert conversation(taken_up) == conversation(killed)
        assert conversation(third).startswith(conversation(taken_up))
        assert conversation(killed).startswith(conversation(asked))
        assert b'"bright"' in conversation(third)
        assert len({hashlib.sha256(prefix(each)).hexdigest() for each in server.requests}) == 1
        assert b'"name":"lamp"' in prefix(third)
