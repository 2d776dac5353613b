"""Models asked from other threads and loops: as if they lived there, while all runs on the one loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import structlog.testing

from holdfast.core.errors import GiveUp, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Message, UserMessage
from holdfast.core.protocols import Model, ModelAnswer
from holdfast.models import openai_chat
from holdfast.models.home import Home, Reachable, open_home
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import open_transports
from holdfast.testing.models import ScriptedModelServer, ask_for, check_model, open_model_server
from holdfast.testing.replies import says
from holdfast.testing.scripted import Emit, Gate, Script, ScriptedModel, echo, until

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """Home may be on either loop."""
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


async def elsewhere(async_fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on a new loop in another thread."""
    return await anyio.to_thread.run_sync(lambda: asyncio.run(async_fn()))


def ignore(event: Text | Reasoning) -> None:
    pass


async def ask(model: Model, text: str = "hi", emit: Emit = ignore) -> str:
    return (await model.answer(ask_for(model, UserMessage(text)), emit)).message.text


@asynccontextmanager
async def reachable(script: Script = echo) -> AsyncIterator[Model]:
    async with open_home() as home:
        yield Reachable(ScriptedModel(script), home)


@asynccontextmanager
async def served(*script: Any) -> AsyncIterator[tuple[Home, Callable[[], Any], ScriptedModelServer]]:
    """A home, an opener of a model there, and the real server that the model asks."""
    async with open_model_server(*script) as server, open_transports(Ledger()) as transports, open_home() as home:
        choice = ModelChoice(provider="custom", name="scripted", base_url=server.base_url)
        yield home, lambda: home.open(openai_chat.open_model(choice, transports)), server


# ── asking ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_contract_holds_at_home_and_elsewhere() -> None:
    async with served() as (_, open_model, _):
        await check_model(open_model)
        await elsewhere(lambda: check_model(open_model))


async def test_asked_at_home_it_answers_in_the_callers_own_task() -> None:
    tasks = []

    async def note(messages: Sequence[Message], emit: Emit) -> str:
        tasks.append(asyncio.current_task())
        return "noted"

    async with reachable(note) as model:
        assert await ask(model) == "noted"
        assert tasks == [asyncio.current_task()]


async def test_asked_elsewhere_it_answers_on_its_own_loop() -> None:
    loops = []

    async def note(messages: Sequence[Message], emit: Emit) -> str:
        loops.append(asyncio.get_running_loop())
        return await echo(messages, emit)

    async with reachable(note) as model:
        assert await elsewhere(lambda: ask(model)) == "you said hi"
        assert loops == [asyncio.get_running_loop()]


async def test_words_arrive_on_the_callers_loop_in_order_and_before_the_end() -> None:
    async def count(messages: Sequence[Message], emit: Emit) -> str:
        for number in range(1000):
            emit(Text(f"{number} "))
            if number % 100 == 0:
                await anyio.lowlevel.checkpoint()
        return ""

    async def listen() -> tuple[list[str], set[int]]:
        words: list[str] = []
        threads = {threading.get_ident()}

        def hear(event: Text | Reasoning) -> None:
            words.append(event.text)
            threads.add(threading.get_ident())

        await ask(model, emit=hear)
        return words, threads

    async with reachable(count) as model:
        words, threads = await elsewhere(listen)
        assert words == [f"{number} " for number in range(1000)]
        assert len(threads) == 1


async def test_an_error_arrives_as_it_was_raised() -> None:
    async def refuse(messages: Sequence[Message], emit: Emit) -> str:
        raise RetryModel("not now", after=7.0, code="busy")

    async with reachable(refuse) as model:
        with pytest.raises(RetryModel, match="not now") as caught:
            await elsewhere(lambda: ask(model))
        assert (caught.value.after, caught.value.code) == (7.0, "busy")


async def test_the_callers_context_travels_along() -> None:
    session: ContextVar[str] = ContextVar("session", default="")

    async def tell(messages: Sequence[Message], emit: Emit) -> str:
        return session.get()

    async def ask_in_context() -> str:
        session.set("s1")
        return await ask(model)

    async with reachable(tell) as model:
        assert await elsewhere(ask_in_context) == "s1"
        assert session.get() == ""


async def test_threads_without_a_loop_ask_through_anyio_or_a_loop_of_their_own() -> None:
    answers: list[str] = []
    async with reachable() as model:
        answers.append(await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(ask, model, "worker")))
        plain = threading.Thread(target=lambda: answers.append(asyncio.run(ask(model, "plain"))))
        plain.start()
        await until(lambda: not plain.is_alive())
    assert answers == ["you said worker", "you said plain"]


async def test_its_names_and_encodings_are_the_models_own() -> None:
    model = ScriptedModel(echo)
    async with open_home() as home:
        wrapped = Reachable(model, home)
        assert (wrapped.name, wrapped.wire) == (model.name, model.wire)
        assert ask_for(wrapped, UserMessage("hi"), prompt="p") == ask_for(model, UserMessage("hi"), prompt="p")
        assert repr(wrapped) == f"<Reachable {model!r}>"
        assert repr(home) == "<Home open>"
    assert repr(home) == "<Home left>"


# ── leaving early ───────────────────────────────────────────────────────────────────────────────


async def test_cancelling_a_caller_elsewhere_closes_the_connection_at_once() -> None:
    async with served(says("one two", stall_after=2)) as (_, open_model, server), open_model() as model:

        async def give_up() -> list[str]:
            words: list[str] = []
            heard = asyncio.Event()

            def hear(event: Text | Reasoning) -> None:
                words.append(event.text)
                heard.set()

            asking = asyncio.create_task(ask(model, emit=hear))
            await heard.wait()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            return words

        assert await elsewhere(give_up) == ["one "]
        await server.until(lambda server: server.left == 1)
        assert await elsewhere(lambda: ask(model)) == "You said: hi"


async def test_a_callers_timeout_ends_the_work_before_it_is_raised() -> None:
    gate = Gate()

    async def hurry() -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            group.create_task(ask(model))
            await until(lambda: gate.inside == 1)
            limit.reschedule(0)

    async with reachable(gate) as model:
        with pytest.raises(TimeoutError):
            await elsewhere(hurry)
        assert gate.inside == 0


async def test_a_cancelled_scope_waits_for_the_end_at_home() -> None:
    ended = []

    async def slow_to_end(messages: Sequence[Message], emit: Emit) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
            emit(Text("too late"))
            ended.append("at home")
        return ""

    async def cancelled() -> list[str]:
        heard: list[str] = []
        with anyio.move_on_after(0.01):
            await ask(model, emit=lambda event: heard.append(event.text))
        ended.append("elsewhere")
        return heard

    async with reachable(slow_to_end) as model:
        assert await elsewhere(cancelled) == []
    assert ended == ["at home", "elsewhere"]


async def test_what_fails_after_its_caller_has_left_is_logged() -> None:
    gate = Gate()

    async def break_at_the_end(messages: Sequence[Message], emit: Emit) -> str:
        try:
            return await gate(messages, emit)
        finally:
            raise OSError("the wire broke")

    async def give_up() -> None:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask(model))
            await until(lambda: gate.inside == 1)
            asking.cancel()

    async with reachable(break_at_the_end) as model:
        with structlog.testing.capture_logs() as logs:
            await elsewhere(give_up)
    assert [entry["event"] for entry in logs] == ["failed to end what its caller had cancelled"]


async def test_an_emit_that_fails_ends_the_work_and_is_raised_to_its_caller() -> None:
    async def refuse() -> None:
        def hear(event: Text | Reasoning) -> None:
            heard.append(event.text)
            raise BrokenPipeError("nobody reads this")

        await ask(model, emit=hear)

    heard: list[str] = []
    async with served(says("one two three", pace=0.001, stall_after=3)) as (_, open_model, server):
        async with open_model() as model:
            with pytest.raises(BrokenPipeError, match="nobody reads this"):
                await elsewhere(refuse)
        await server.until(lambda server: server.left == 1)
        assert len(heard) == 1


async def test_a_loop_that_is_closed_under_its_question_costs_nobody_else_anything() -> None:
    gate = Gate()

    async def speak(messages: Sequence[Message], emit: Emit) -> str:
        said = await gate(messages, emit)
        emit(Text("is anyone there?"))
        await anyio.sleep_forever()
        return said

    def walk_out() -> None:
        loop = asyncio.new_event_loop()
        asking = loop.create_task(ask(model))
        loop.run_until_complete(until(lambda: gate.inside == 1))
        asking._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        with suppress(RuntimeError):
            asking.get_coro().close()

    async with reachable(speak) as model:
        await anyio.to_thread.run_sync(walk_out)
        with structlog.testing.capture_logs() as logs:
            gate.open()
            await until(lambda: len(logs) == 2)  # for the word, and for the end
        assert {entry["event"] for entry in logs} == {"a caller's loop was closed before its answer came"}


# ── leaving home ────────────────────────────────────────────────────────────────────────────────


async def test_whoever_waits_when_home_is_left_is_told_so() -> None:
    gate = Gate()
    async with anyio.create_task_group() as group:
        async with reachable(gate) as model:

            async def wait_for_it() -> None:
                with pytest.raises(GiveUp, match="stopping") as caught:
                    await elsewhere(lambda: ask(model))
                assert caught.value.code == "stopping"

            for _ in range(3):
                group.start_soon(wait_for_it)
            await gate.has(3)
        assert gate.inside == 0
    with pytest.raises(GiveUp, match="stopping"):
        await elsewhere(lambda: ask(model))


async def test_an_error_of_the_block_comes_out_as_it_went_in() -> None:
    with pytest.raises(GiveUp, match="enough"):
        async with open_home():
            raise GiveUp("enough")


def test_nobody_hangs_however_close_the_question_and_the_end_of_the_loop_are(anyio_backend: Any) -> None:
    """Threads ask all the time while the home loop ends: each question is answered or refused, none is lost."""
    asked = answered = 0

    def keep_asking(model: Model) -> None:
        nonlocal asked, answered
        with asyncio.Runner() as runner, suppress(GiveUp):
            while True:
                asked += 1
                runner.run(asyncio.wait_for(ask(model), 10))
                answered += 1

    async def main() -> list[threading.Thread]:
        async with reachable() as model:
            threads = [threading.Thread(target=keep_asking, args=[model], daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            sofar = answered
            await until(lambda: answered > sofar + 8)
        return threads

    for _ in range(20):
        for thread in anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1]):
            thread.join(timeout=15)
            assert not thread.is_alive()
    assert asked == answered + 20 * 4


# ── opening ─────────────────────────────────────────────────────────────────────────────────────


class Opened:
    """An opener that notes where and when it was entered and left, and fails as it is told."""

    def __init__(self, *, on_enter: Exception | None = None, on_exit: Exception | None = None) -> None:
        self.events: list[tuple[str, object]] = []
        self._on_enter = on_enter
        self._on_exit = on_exit

    def _note(self, what: str) -> None:
        self.events.append((what, asyncio.current_task()))

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Model]:
        self._note("opened")
        if self._on_enter:
            raise self._on_enter
        try:
            yield ScriptedModel(echo)
        finally:
            self._note("closed")
            if self._on_exit:
                raise self._on_exit

    @property
    def names(self) -> list[str]:
        return [what for what, _ in self.events]


async def test_a_model_opened_elsewhere_is_opened_and_closed_at_home_in_one_task() -> None:
    opened = Opened()

    async def use() -> None:
        async with home.open(opened()) as model:
            assert await ask(model) == "you said hi"
            assert opened.names == ["opened"]
        assert opened.names == ["opened", "closed"]

    async with open_home() as home:
        await elsewhere(use)
        (_, first), (_, last) = opened.events
        assert isinstance(first, asyncio.Task)
        assert first is last
        assert first.get_loop() is asyncio.get_running_loop()


async def test_a_failed_opening_is_told_to_whoever_opens() -> None:
    async def use() -> None:
        async with home.open(Opened(on_enter=GiveUp("no such model"))()):
            raise AssertionError("nothing was opened")

    async with open_home() as home:
        with pytest.raises(GiveUp, match="no such model"):
            await elsewhere(use)
        assert home.call(lambda: None)


async def test_a_failed_closing_is_logged_and_harms_nobody() -> None:
    async def use() -> str:
        async with home.open(Opened(on_exit=OSError("stuck"))()) as model:
            return await ask(model)

    async with open_home() as home:
        with structlog.testing.capture_logs() as logs:
            assert await elsewhere(use) == "you said hi"
        assert [entry["event"] for entry in logs] == ["failed to end what its caller had cancelled"]
        assert await elsewhere(lambda: ask(Reachable(ScriptedModel(echo), home))) == "you said hi"


async def test_a_model_opened_elsewhere_ends_with_home() -> None:
    opened = Opened()

    async def stay() -> str:
        async with home.open(opened()) as model:
            await until(lambda: opened.names == ["opened", "closed"])
            with pytest.raises(GiveUp, match="stopping"):
                await ask(model)
            return "told when it asked"

    async with anyio.create_task_group() as group:
        async with open_home() as home:

            async def expect_the_end() -> None:
                assert await elsewhere(stay) == "told when it asked"

            group.start_soon(expect_the_end)
            await until(lambda: opened.names == ["opened"])
        assert opened.names == ["opened", "closed"]


async def test_an_error_inside_a_block_elsewhere_closes_the_model_and_comes_out() -> None:
    opened = Opened()

    async def use() -> ModelAnswer:
        async with home.open(opened()):
            raise KeyError("mine")

    async with open_home() as home:
        with pytest.raises(KeyError, match="mine"):
            await elsewhere(use)
        assert opened.names == ["opened", "closed"]
