"""Messages that wait: none is lost, none is stranded, and a turn that was displaced touches nothing any more."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from holdfast.core.keys import ChatKey
from holdfast.core.messages import Answer, AssistantMessage, UserMessage
from holdfast.core.protocols import Accept
from holdfast.gateway.conversations import DROPPED
from holdfast.gateway.mail import Mail
from holdfast.gateway.residents import LINGER
from holdfast.gateway.watch import relieve
from holdfast.testing.gateways import CHAT, Bench
from holdfast.testing.models import open_model_server
from holdfast.testing.processes import TOKEN, running_gateway
from holdfast.testing.replies import says
from holdfast.testing.scripted import Gate, echo, until

from .events import EXPIRES_AFTER, IDLE_TTL, Door, agent_of, awake, evict, expire_now, open_small, session_of, shut_down

pytestmark = pytest.mark.anyio


class Messenger:
    """A channel that keeps what arrived."""

    name = "test"

    def __init__(self) -> None:
        self.arrived: list[str] = []

    async def receive(self, accept: Accept) -> None:
        await anyio.sleep_forever()

    async def send(self, answer: Answer) -> None:
        await asyncio.sleep(0)
        self.arrived.append(answer.text)


async def send_all(bench: Bench, *texts: str) -> list[Mail]:
    return [await bench.send(text) for text in texts]


async def say(bench: Bench, text: str) -> str:
    return (await answers([await bench.send(text)]))[0]


async def answers(mails: Sequence[Mail]) -> list[str]:
    with anyio.fail_after(60):
        return [(await mail.answered()).text for mail in mails]


def waiting(bench: Bench) -> list[str]:
    return [mail.incoming.text for mail in bench.gateway.awake[CHAT].mailbox]


async def asked(bench: Bench) -> list[str]:
    """What the user said in the conversation, as stored."""
    return [message.text for message in await bench.said() if isinstance(message, UserMessage)]


# ── what each event does to them ────────────────────────────────────────────────────────────────


@pytest.mark.virtual
@pytest.mark.proves("mailbox/turn", "case 58")
async def test_what_waits_is_answered_in_order_one_turn_at_a_time(tmp_path: Path) -> None:
    gate = Gate()
    async with open_small(tmp_path, gate) as bench:
        mails = await send_all(bench, "one", "two", "three")
        await gate.has(waiting=1)
        assert waiting(bench) == ["two", "three"]
        gate.open()
        assert await answers(mails) == ["you said one", "you said two", "you said three"]
        assert gate.most_inside == 1
        assert [type(message) for message in await bench.said()] == [UserMessage, AssistantMessage] * 3


@pytest.mark.virtual
@pytest.mark.proves("mailbox/model", "mailbox/reasoning", "mailbox/undo")
@pytest.mark.parametrize("command", ["/model other", "/reasoning high", "/undo"])
async def test_a_command_leaves_what_waits(tmp_path: Path, command: str) -> None:
    gate = Gate()
    async with open_small(tmp_path, gate) as bench:
        mails = await send_all(bench, "one", "two", "three")
        await gate.has(waiting=1)
        said = (await bench.say(command)).text
        assert ("on its way" in said) == (command == "/undo")
        assert waiting(bench) == ["two", "three"]
        gate.open()
        assert await answers(mails) == ["you said one", "you said two", "you said three"]
        assert bench.model.leased == (["scripted", "other"] if "model" in command else ["scripted"])
        assert bench.model.efforts == ["", *(["high", "high"] if "reasoning" in command else ["", ""])]


@pytest.mark.virtual
@pytest.mark.proves("mailbox/undo")
@pytest.mark.parametrize("steps", range(8))
async def test_a_message_that_comes_during_an_undo_is_answered_after_it(tmp_path: Path, steps: int) -> None:
    async with open_small(tmp_path, echo) as bench:
        await bench.say("regretted")
        undo = await bench.send("/undo")
        for _ in range(steps):
            await asyncio.sleep(0)
        mail = await bench.send("meant")
        assert "undone" in (await undo.answered()).text
        assert await answers([mail]) == ["you said meant"]
        assert await asked(bench) == ["meant"]


@pytest.mark.virtual
@pytest.mark.proves("mailbox/end")
@pytest.mark.parametrize("way", ["new", "operator"])
async def test_the_end_drops_what_came_before_it_and_tells_the_sender(tmp_path: Path, way: str) -> None:
    gate, messenger = Gate(), Messenger()
    async with open_small(tmp_path, gate, channels={"test": messenger}) as bench:
        mails = await send_all(bench, "one", "two", "three")
        await gate.has(waiting=1)
        if way == "new":
            said = await bench.say("/new")
            assert said.text == "A new conversation begins; the old one is kept. 2 waiting messages were dropped."
        else:
            await bench.gateway.end(session_of(bench).id)
        assert (await answers(mails))[1:] == [DROPPED, DROPPED]
        assert {mail.answer and mail.answer.outcome for mail in mails} == {"stopped"}
        gate.open()
        await bench.say("after it")
        await until(lambda: "you said after it" in messenger.arrived)
        assert messenger.arrived.count(DROPPED) == 2
        assert await asked(bench) == ["after it"]
        assert await bench.store.waiting() == []


@pytest.mark.virtual
@pytest.mark.proves("mailbox/end")
async def test_expiry_waits_for_an_empty_mailbox(tmp_path: Path) -> None:
    door = Door()
    async with open_small(tmp_path, door) as bench:
        await bench.say("hello")
        mails = await send_all(bench, "wait", "two")
        await door.has(waiting=1)
        known = session_of(bench).id
        bench.clock.jump(2 * EXPIRES_AFTER)  # type: ignore[attr-defined]
        assert await expire_now(bench) == 0
        door.open()
        assert await answers(mails) == ["you said wait", "you said two"]
        assert await expire_now(bench) == 0, "it has just been used"
        bench.clock.jump(2 * EXPIRES_AFTER)  # type: ignore[attr-defined]
        assert await expire_now(bench) == 1
        row = await bench.store.session(known)
        assert row
        assert row.end_reason == "expired"


@pytest.mark.virtual
@pytest.mark.proves("mailbox/shutdown", "mailbox/crash")
@pytest.mark.parametrize("leave", ["shutdown", "crash"])
async def test_what_waits_stays_in_the_inbox_for_the_next_start(tmp_path: Path, leave: str) -> None:
    gate, messenger = Gate(), Messenger()
    async with open_small(tmp_path, gate, channels={"test": messenger}) as bench:
        await send_all(bench, "one", "two", "three")
        await gate.has(waiting=1)
        if leave == "shutdown":
            async with anyio.create_task_group() as group:
                group.start_soon(shut_down, bench)
                await until(lambda: bench.gateway.leaving)
                gate.open()
        left = [incoming.text for incoming in await bench.store.waiting()]
        assert left == (["two", "three"] if leave == "shutdown" else ["one", "two", "three"])
    await anyio.sleep(1)
    async with open_small(tmp_path, echo, channels={"test": messenger}) as bench:
        await until(lambda: len(messenger.arrived) == 3)
        await anyio.sleep(60)
        assert messenger.arrived == ["you said one", "you said two", "you said three"]
        assert await asked(bench) == ["one", "two", "three"]
        assert await bench.store.waiting() == []


# ── at every moment of going to sleep ───────────────────────────────────────────────────────────


async def _on_the_dot(bench: Bench, early: float) -> None:
    await anyio.sleep(IDLE_TTL - early)


async def _as_newcomers_push_it_out(bench: Bench, early: float) -> None:
    for number in range(2):
        await bench.send("hello", ChatKey("other", str(number)))
    await anyio.sleep(LINGER - early)


async def _at_once_by_pressure(bench: Bench, early: float) -> None:
    assert relieve(bench.gateway, budget=1)


async def _at_once_by_the_operator(bench: Bench, early: float) -> None:
    assert bench.gateway.residents.evict(session_of(bench).id)


MOMENTS: dict[str, Callable[[Bench, float], Awaitable[None]]] = {
    "idle": _on_the_dot,
    "limit": _as_newcomers_push_it_out,
    "pressure": _at_once_by_pressure,
    "operator": _at_once_by_the_operator,
}
"""Each returns just as the agent is asked to leave, or a little early where that goes by time."""


@pytest.mark.virtual
@pytest.mark.proves("mailbox/evict", "case 57")
@pytest.mark.parametrize("pushes", [True, False], ids=["pushed", "collected"])
@pytest.mark.parametrize("route", MOMENTS)
async def test_a_message_is_never_stranded_whenever_it_comes(tmp_path: Path, route: str, pushes: bool) -> None:
    """It comes some steps of the loop after the agent was asked to leave: one more each time, until all sleeps."""
    messenger = Messenger()
    async with open_small(tmp_path, echo, channels={"test": messenger} if pushes else None) as bench:
        states: list[str] = []
        texts = [f"after {steps}" for steps in range(10)]
        for steps, text in enumerate(texts):
            await say(bench, "hello")
            await MOMENTS[route](bench, 0.0 if steps else 0.001)
            for _ in range(steps):
                await asyncio.sleep(0)
            states.append("resident" if agent_of(bench) else "awake" if awake(bench) else "asleep")
            assert await say(bench, text) == f"you said {text}"
            await anyio.sleep(2 * IDLE_TTL)
            assert awake(bench) is None
        assert (states[0], states[-1]) == ("resident", "asleep")
        assert [text for text in await asked(bench) if text != "hello"] == texts
        assert not await bench.store.waiting()
        assert not await bench.store.unsent()
        assert [text for text in messenger.arrived if text != "you said hello"] == (
            [f"you said {text}" for text in texts] if pushes else []
        )


async def _operators_end(bench: Bench) -> None:
    row = await bench.store.open_session(CHAT)
    if row:
        await bench.gateway.end(row.id)


async def _expiry(bench: Bench) -> None:
    bench.clock.jump(2 * EXPIRES_AFTER)  # type: ignore[attr-defined]
    await expire_now(bench)


@pytest.mark.virtual
@pytest.mark.proves("case 57")
@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "resident"])
@pytest.mark.parametrize(
    "other", ["one", "/new", "/resume", "/undo", "/model other", "/reasoning high", _operators_end, _expiry]
)
async def test_nor_is_one_that_comes_while_something_else_goes_on(
    tmp_path: Path, other: str | Callable[[Bench], Awaitable[None]], asleep: bool
) -> None:
    """Some steps after that began, one more each time, until that is over first."""

    async def go_on() -> None:
        await (say(bench, other) if isinstance(other, str) else other(bench))
        over.set()

    async with open_small(tmp_path, echo) as bench:
        for text in ("earlier", "/new"):
            await say(bench, text)
        for steps in range(1, 100):
            await say(bench, "hello")
            if asleep:
                await evict(bench)
            over = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(go_on)
                for _ in range(steps):
                    await asyncio.sleep(0)
                came_late = over.is_set()
                message, command = await answers(await send_all(bench, f"two {steps}", "/status"))
            # What comes before the operator's wish has found the conversation is dropped with it, and told so.
            assert message.endswith(f"you said two {steps}") or (message == DROPPED and other is _operators_end)
            assert command.startswith("Model: ")
            assert not await bench.store.waiting()
            if came_late:
                break
        assert 3 < steps < 99
        assert bench.gateway.unanswered == bench.gateway.busy == 0


@pytest.mark.virtual
@pytest.mark.proves("case 57")
async def test_nor_is_one_whose_sender_hangs_up_at_any_moment(tmp_path: Path) -> None:
    """Either it was never taken, or it is answered though nobody waits for it."""
    async with open_small(tmp_path, echo) as bench:
        for steps in range(12):
            incoming = bench.incoming(str(steps))
            sender = asyncio.ensure_future(bench.gateway.accept(incoming))
            for _ in range(steps):
                await asyncio.sleep(0)
            taken = not sender.cancel()
            await asyncio.wait([sender])
            await anyio.sleep(2 * IDLE_TTL)
            assert awake(bench) is None
            assert await bench.store.waiting() == []
            assert await bench.store.answer_to(incoming.id) or not (taken or steps)
        assert taken
        assert bench.gateway.unanswered == bench.gateway.busy == 0


# ── two requests at once, over HTTP ─────────────────────────────────────────────────────────────


@pytest.mark.proves("case 58")
async def test_api_requests_in_one_chat_run_in_order_and_the_transcript_alternates(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Holdfast-Session": "one chat"}

    async def ask(text: str) -> None:
        body = {"messages": [{"role": "user", "content": text}]}
        async with client.post("/v1/chat/completions", json=body) as reply:
            said[text] = (await reply.json())["choices"][0]["message"]["content"]

    async def read(path: str) -> Any:
        async with client.get(path) as reply:
            return await reply.json()

    said: dict[str, str] = {}
    async with open_model_server(otherwise=lambda asked: says(f"You said: {asked.last}", first_wait=0.02)) as server:
        settings = {"PROVIDER": "custom", "NAME": "slow", "BASE_URL": server.base_url, "API_KEY": "a key"}
        with running_gateway(
            tmp_path, {f"HOLDFAST_MODEL__{name}": value for name, value in settings.items()}
        ) as gateway:
            async with aiohttp.ClientSession(gateway.url, headers=headers) as client:
                async with anyio.create_task_group() as group:
                    for number in range(6):
                        group.start_soon(ask, f"number {number}")
                (session,) = (await read("/api/sessions?channel=api"))["sessions"]
                messages = (await read(f"/api/sessions/{session['id']}"))["messages"]
    assert said == {text: f"You said: {text}" for text in said}
    assert [message["role"] for message in messages] == ["user", "assistant"] * 6
    assert [(q["text"], a["text"]) for q, a in zip(messages[::2], messages[1::2], strict=True)] == list(said.items())
    assert [len(request.messages) for request in server.requests] == [2, 4, 6, 8, 10, 12]
    assert server.connected == 1, "never two at once"
