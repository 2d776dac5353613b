"""Model clients don't multiply, don't outlive their owner, and are really closed: counted at the kernel."""

import asyncio
import gc
import os
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import aiohttp
import anyio
import pytest
import structlog.testing
from yarl import URL

from holdfast.core.errors import GiveUp
from holdfast.core.ledger import Entry, Ledger
from holdfast.core.messages import UserMessage
from holdfast.core.protocols import Model
from holdfast.core.settings import Secret
from holdfast.models import openai_chat
from holdfast.models.home import Home, open_home
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import Transports, open_transports
from holdfast.testing.models import ScriptedModelServer, ask_for, open_model_server
from holdfast.testing.replies import says
from holdfast.testing.scripted import until

from .test_loop import LONGEST_GAP, open_heartbeat

pytestmark = pytest.mark.anyio

LIMIT = 16
ESTABLISHED = "01"


class WatchedLedger(Ledger):
    """Knows how many things were open at most."""

    most = 0

    @contextmanager
    def enter(self, kind: str, name: str, **more: Any) -> Iterator[Entry]:
        with super().enter(kind, name, **more) as entry:
            self.most = max(self.most, len(self))
            yield entry


class Clients:
    """A process's model clients, the way the gateway has them."""

    def __init__(self, transports: Transports, home: Home, ledger: WatchedLedger) -> None:
        self.transports = transports
        self.home = home
        self.ledger = ledger

    def open(
        self, server: ScriptedModelServer, *, name: str = "scripted", key: str = "", base_url: str = ""
    ) -> AbstractAsyncContextManager[Model]:
        base_url = base_url or server.base_url
        choice = ModelChoice(provider="custom", name=name, base_url=base_url, api_key=Secret(key))
        return self.home.open(openai_chat.open_model(choice, self.transports))


@asynccontextmanager
async def open_clients(*, idle: float = 60.0, limit: int = LIMIT) -> AsyncIterator[Clients]:
    ledger = WatchedLedger()
    async with open_transports(ledger, limit=limit, idle=idle) as transports, open_home() as home:
        yield Clients(transports, home, ledger)


@asynccontextmanager
async def open_servers(count: int, **how: Any) -> AsyncIterator[list[ScriptedModelServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_model_server(**how)) for _ in range(count)]


async def ask(model: Model, text: str = "hi") -> str:
    return (await model.answer(ask_for(model, UserMessage(text)), lambda event: None)).message.text


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (Path is 5 times slower)


def endpoints_in_use(servers: Sequence[ScriptedModelServer]) -> int:
    """To how many of the servers a connection stands, as the kernel sees it."""
    ports = {URL(server.base_url).port for server in servers}
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    connections = [line.split()[2:4] for line in lines]  # the peer's address, the state
    peers = {int(peer.partition(":")[2], 16) for peer, state in connections if state == ESTABLISHED}
    return len(peers & ports)


class Watch:
    """How many servers were connected to at most; looked at all the time."""

    most = 0

    def __init__(self, servers: Sequence[ScriptedModelServer]) -> None:
        self._servers = servers

    async def run(self) -> None:
        while True:
            self.most = max(self.most, endpoints_in_use(self._servers))
            await anyio.sleep(0.02)


@asynccontextmanager
async def open_watch(servers: Sequence[ScriptedModelServer]) -> AsyncIterator[Watch]:
    watch = Watch(servers)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        yield watch
        group.cancel_scope.cancel()


async def in_threads(count: int, work: Callable[[int], Coroutine[Any, Any, Any]]) -> list[Any]:
    """What came of the work in so many threads at once, each with a new event loop."""
    outcomes: dict[int, Any] = {}

    def main(number: int) -> None:
        try:
            outcomes[number] = asyncio.run(work(number))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes[number] = error

    threads = [threading.Thread(target=main, args=[number], daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    await until(lambda: len(outcomes) == count, within=60)
    for thread in threads:
        thread.join()
    return [outcomes[number] for number in range(count)]


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Five hundred loops need three descriptors each; the gateway raises its limit at the start too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ── they don't multiply ─────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 9", "case 52")
@pytest.mark.parametrize("threads", [10, 500])
async def test_threads_with_loops_of_their_own_do_not_multiply_clients(threads: int, many_descriptors: None) -> None:
    """Case 52, invariant 9. Each opens a model at two of twenty endpoints; afterwards the descriptors come back."""
    async with open_servers(20) as servers, open_clients(idle=0.5) as clients:

        async def work(number: int) -> list[str]:
            answers = []
            for server in (servers[2 * number % 20], servers[(2 * number + 1) % 20]):
                async with clients.open(server) as model:
                    answers.append(await ask(model, str(number)))
            return answers

        before = descriptors()
        async with open_watch(servers) as watch:
            answers = await in_threads(threads, work)
        assert answers == [[f"You said: {number}"] * 2 for number in range(threads)]
        assert clients.ledger.most == LIMIT, "there were more endpoints than that, so the limit was put to the test"
        assert 0 < watch.most <= LIMIT
        await until(lambda: len(clients.transports) == len(clients.ledger) == 0)
        await until(lambda: descriptors() == before)


@pytest.mark.proves("invariant 9", "case 52")
async def test_threads_that_share_a_model_share_its_connections(many_descriptors: None) -> None:
    """Case 52, invariant 9. A hundred threads ask one model, again and again: one transport, and no connection each."""
    async with open_servers(1) as (server,), open_clients() as clients, clients.open(server) as model:

        async def work(number: int) -> set[str]:
            return {await ask(model) for _ in range(5)}

        assert await in_threads(100, work) == [{"You said: hi"}] * 100
        assert clients.ledger.most == 1
        assert len(server.requests) == 500
        assert server.connected <= 100


@pytest.mark.proves("case 55", "invariant 9")
async def test_a_hundred_different_endpoints_share_sixteen_transports() -> None:
    """Case 55. All are leased at once and asked at once; all answer, and never are more than sixteen open."""
    async with open_servers(100) as servers, open_clients() as clients, AsyncExitStack() as stack:
        models = [await stack.enter_async_context(clients.open(server)) for server in servers]
        answers: list[str] = []

        async def take(model: Model) -> None:
            answers.append(await ask(model))

        async with open_watch(servers) as watch:
            for _ in range(2):
                async with anyio.create_task_group() as group:
                    for model in models:
                        group.start_soon(take, model)
        assert answers == ["You said: hi"] * 200
        assert clients.ledger.most == LIMIT
        assert 0 < watch.most <= LIMIT


@pytest.mark.proves("case 55")
async def test_a_hundred_models_of_one_endpoint_share_one_transport() -> None:
    """Case 55. Models that differ in their names and keys alone need no transport of their own."""
    async with open_servers(1) as (server,), open_clients() as clients:
        for number in range(100):
            async with clients.open(server, name=f"model-{number}", key=f"key-{number}") as model:
                await ask(model)
        assert clients.ledger.most == 1
        assert server.connected == 1
        assert len({request.headers["authorization"] for request in server.requests}) == 100


# ── they belong to one loop ─────────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 9")
async def test_a_transport_is_never_bound_to_a_foreign_loop() -> None:
    """Invariant 9. Taken along to another thread it refuses, plainly, before it opens anything."""
    async with open_servers(1) as (server,), open_clients() as clients:
        choice = ModelChoice(provider="custom", name="scripted", base_url=server.base_url)
        async with openai_chat.open_model(choice, clients.transports) as model:  # without a way home

            async def use_as_it_is(number: int) -> str:
                return await ask(model)

            async def lease_there(number: int) -> None:
                async with openai_chat.open_model(choice, clients.transports):
                    raise AssertionError("it was leased")

            before = descriptors()
            for work in (use_as_it_is, lease_there):
                (refusal,) = await in_threads(1, work)
                assert isinstance(refusal, RuntimeError)
                assert "belong to another event loop" in str(refusal)
            assert descriptors() == before
            assert server.connected == clients.ledger.most == 0
            assert await ask(model) == "You said: hi"


@pytest.mark.proves("invariant 9")
async def test_a_client_never_outlives_its_loop() -> None:
    """Invariant 9. The loop's owner leaves while threads wait: each is told at once, and every socket is closed."""
    async with open_servers(2, otherwise=says("never", first_wait=60)) as servers:
        before = descriptors()

        outcomes: list[Any] = []

        async def wait_in_threads(clients: Clients) -> None:
            async def work(number: int) -> str:
                async with clients.open(servers[number % 2]) as model:
                    return await ask(model)

            outcomes.extend(await in_threads(20, work))

        async with anyio.create_task_group() as group:
            async with open_clients() as clients:
                group.start_soon(wait_in_threads, clients)
                for server in servers:
                    await server.until(lambda server: len(server.requests) == 10)
                left = time.monotonic()
            await until(lambda: len(outcomes) == 20)
        assert time.monotonic() - left < 2
        assert [(type(outcome), outcome.code) for outcome in outcomes] == [(GiveUp, "stopping")] * 20
        for server in servers:
            await server.until(lambda server: server.connections == 0)
        await until(lambda: descriptors() == before)


# ── they are closed ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.proves("case 53", "invariant 3")
async def test_an_evicted_client_is_closed_and_not_dropped() -> None:
    """Case 53. The server sees the connection end, although somebody still refers to the pool."""
    async with open_servers(2) as (first, second), open_clients(limit=1) as clients, AsyncExitStack() as stack:
        before = descriptors()
        evicted = await stack.enter_async_context(clients.open(first))
        newcomer = await stack.enter_async_context(clients.open(second))
        await ask(evicted)
        connector = pools(clients)[0].connector
        assert connector
        assert not connector.closed
        assert descriptors() == before + 2  # both ends are ours
        await ask(newcomer)
        assert connector.closed
        await first.until(lambda server: server.connections == 0)
        assert second.connections == 1
        await until(lambda: descriptors() == before + 2)
        assert await ask(evicted) == "You said: hi", "a lease outlives its pool"


@pytest.mark.proves("case 54", "invariant 9")
async def test_an_idle_client_is_closed_by_time_without_a_message() -> None:
    """Case 54. Nobody asks anything any more, and a moment later its sockets are gone."""
    async with open_servers(3) as servers, open_clients(idle=0.1) as clients:
        before = descriptors()
        for server in servers:
            async with clients.open(server) as model:
                await ask(model)
        assert len(clients.transports) > 0
        await until(lambda: len(clients.transports) == 0)
        for server in servers:
            await server.until(lambda server: server.connections == 0)
        await until(lambda: descriptors() == before)
        assert [len(server.requests) for server in servers] == [1, 1, 1]


@pytest.mark.proves("case 54")
async def test_a_leased_clients_idle_sockets_are_closed_by_time_too() -> None:
    """Case 54. A warm agent that is silent holds its lease, and no connection."""
    async with open_servers(1) as (server,), open_clients(idle=0.1) as clients, clients.open(server) as model:
        before = descriptors()
        await ask(model)
        await server.until(lambda server: server.connections == 0)
        await until(lambda: descriptors() == before)
        assert len(clients.transports) == 1
        assert await ask(model) == "You said: hi"


@pytest.mark.proves("invariant 3")
async def test_a_lease_is_released_and_its_transport_not_closed() -> None:
    """Invariant 3. Of two sessions at one endpoint one ends; the other's request goes on undisturbed."""
    async with open_model_server(otherwise=says("one two", stall_after=2)) as server, open_clients(idle=0) as clients:
        answers: list[str] = []

        async def take(model: Model) -> None:
            answers.append(await ask(model))

        async with clients.open(server) as staying, anyio.create_task_group() as group:
            async with clients.open(server) as leaving:
                group.start_soon(take, staying)
                await server.until(lambda server: server.stalled == 1)
            with pytest.raises(RuntimeError, match="released"):
                await ask(leaving)
            server.resume()
        assert answers == ["one two"]
        assert server.connected == 1
        await until(lambda: len(clients.transports) == 0)


@pytest.mark.proves("invariant 3")
async def test_three_hundred_changes_of_the_model_leave_no_descriptor() -> None:
    """Invariant 3. One session goes back and forth between two providers: one lease, two transports, no growth."""
    async with open_servers(2) as servers, open_clients() as clients:
        flat = 0
        for number in range(300):
            async with clients.open(servers[number % 2], name=f"model-{number}") as model:
                assert await ask(model) == "You said: hi"
                assert repr(clients.transports).count("1 leased") == 1
            if number == 1:
                flat = descriptors()
        assert descriptors() == flat
        assert clients.ledger.most == 2
        assert [server.connected for server in servers] == [1, 1]


@pytest.mark.virtual
@pytest.mark.proves("invariant 3", "invariant 14")
async def test_a_client_that_is_slow_to_close_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariants 3 and 14. One takes 10 s; all others, and its own session, go on at once; then it is cut short."""
    close = aiohttp.ClientSession.close
    closing: list[aiohttp.ClientSession] = []

    async def close_slowly(session: aiohttp.ClientSession) -> None:
        closing.append(session)
        if len(closing) == 1:
            await anyio.sleep(10)
        await close(session)

    monkeypatch.setattr(aiohttp.ClientSession, "close", close_slowly)
    with structlog.testing.capture_logs() as logs:
        async with open_servers(2) as servers, open_clients(idle=1) as clients:
            async with clients.open(servers[0]) as model:
                await ask(model)
            await anyio.sleep(1.5)
            assert len(closing) == 1
            began = anyio.current_time()
            for server in servers:
                async with clients.open(server) as model:
                    assert await ask(model) == "You said: hi"
            assert anyio.current_time() - began < 0.1
            await anyio.sleep(8)
            assert len(clients.transports) == 0
    assert [entry["event"] for entry in logs] == ["closing a socket pool took too long and was cut short"]
    await close(closing[0])


@pytest.mark.proves("invariant 14")
async def test_a_client_that_fails_to_close_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 14. Each close raises: the request of another endpoint goes on, all are closed, and it is logged."""
    close = aiohttp.ClientSession.close

    async def close_and_fail(session: aiohttp.ClientSession) -> None:
        await close(session)
        raise OSError("the wire broke")

    monkeypatch.setattr(aiohttp.ClientSession, "close", close_and_fail)
    with structlog.testing.capture_logs() as logs:
        async with open_servers(3) as servers:
            before = descriptors()
            async with open_clients(limit=2) as clients, AsyncExitStack() as stack:
                models = [await stack.enter_async_context(clients.open(server)) for server in servers]
                for model in (*models, *models):
                    assert await ask(model) == "You said: hi"
            await until(lambda: descriptors() == before)
    assert len(logs) == 6  # four for lack of room, two at the end
    assert {entry["event"] for entry in logs} == {"a socket pool failed to close"}


# ── they know no secret ─────────────────────────────────────────────────────────────────────────

# Where the search stops: what belongs to the program as a whole, and leads to everything in it.
WHOLE_PROGRAM = (
    ModuleType,
    type,
    FunctionType,
    MethodType,
    CodeType,
    FrameType,
    CoroutineType,
    GeneratorType,
    asyncio.AbstractEventLoop,
    asyncio.Future,
    anyio.abc.TaskGroup,
    anyio.CancelScope,
)


def reachable_from(*things: object) -> list[object]:
    """All objects that these lead to."""
    found: dict[int, object] = {}
    todo = list(things)
    while todo:
        thing = todo.pop()
        if id(thing) not in found and not isinstance(thing, WHOLE_PROGRAM):
            found[id(thing)] = thing
            todo.extend(gc.get_referents(thing))
    return list(found.values())


def pools(clients: Clients) -> list[aiohttp.ClientSession]:
    return [thing for thing in reachable_from(clients.transports) if isinstance(thing, aiohttp.ClientSession)]


def holds(things: Sequence[object], secret: str) -> bool:
    return any(
        (isinstance(thing, str) and secret in thing)
        or (isinstance(thing, bytes | bytearray) and secret.encode() in thing)
        for thing in things
    )


@pytest.mark.proves("invariant 10")
async def test_a_credential_never_gets_into_a_transport() -> None:
    """Invariant 10. It travels with the request: it is not in the pool, its connections, the ledger or a repr."""
    key = "sk-" + "".join(map(str, range(20)))
    async with (
        open_model_server(otherwise=says("one two", stall_after=2)) as server,
        open_clients() as clients,
        clients.open(server, key=key) as model,
        anyio.create_task_group() as group,
    ):
        for number in range(2):  # over a new connection, then over one that was there
            group.start_soon(ask, model)
            await server.until(lambda server: server.stalled == 1)
            _look_for(key, clients, server)
            server.resume()
            await until(lambda: "0 in flight" in repr(clients.transports))
            _look_for(key, clients, server)
            assert server.requests[number].headers["authorization"] == f"Bearer {key}"


def _look_for(key: str, clients: Clients, server: ScriptedModelServer) -> None:
    found = reachable_from(clients.transports, clients.ledger)
    (pool,) = pools(clients)
    assert any(isinstance(thing, aiohttp.client_proto.ResponseHandler) for thing in found), "connections are looked at"
    assert holds(found, server.base_url.removesuffix("/v1"))
    assert not holds(found, key)
    assert key not in repr(clients.transports) + repr(clients.ledger)
    pool.headers["X-Planted"] = key  # the search would find it
    assert holds(reachable_from(clients.transports), key)
    del pool.headers["X-Planted"]


# ── they don't stall the loop ───────────────────────────────────────────────────────────────────


@pytest.mark.proves("invariant 15")
async def test_a_name_server_that_sleeps_two_seconds_does_not_stall_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 15. Looking a name up happens elsewhere; meanwhile others are answered."""
    look_up = socket.getaddrinfo
    slept: list[int] = []

    def sleep_and_look_up(*args: Any, **more: Any) -> Any:
        time.sleep(2)
        slept.append(threading.get_ident())
        return look_up(*args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", sleep_and_look_up)
    async with open_servers(2) as (named, numbered), open_clients() as clients, open_heartbeat() as heart:
        by_name = named.base_url.replace("127.0.0.1", "localhost")
        async with clients.open(named, base_url=by_name) as slow, clients.open(numbered) as quick:
            answers: list[str] = []

            async def take(ask_it: Awaitable[str]) -> None:
                answers.append(await ask_it)

            async with anyio.create_task_group() as group:
                group.start_soon(take, ask(slow, "slow"))
                for _ in range(10):
                    await take(ask(quick, "quick"))
                assert slept == []
        assert answers == ["You said: quick"] * 10 + ["You said: slow"]
    assert slept
    assert threading.get_ident() not in slept
    assert heart.longest < LONGEST_GAP
