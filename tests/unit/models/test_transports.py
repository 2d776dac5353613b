"""Connection pools: shared, counted, bounded, and closed by time."""

import re
import ssl
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest
from yarl import URL

from holdfast.core.errors import AskUser, GiveUp
from holdfast.core.ledger import Ledger
from holdfast.core.messages import UserMessage
from holdfast.models import openai_chat
from holdfast.models.providers import ModelChoice
from holdfast.models.transports import Lease, open_transports
from holdfast.testing.models import ScriptedModelServer, ask_for, open_model_server
from holdfast.testing.replies import Reply, says

pytestmark = pytest.mark.anyio

CERTIFICATE = Path(__file__).with_name("localhost.pem")
BODY = b'{"messages":[{"content":"hi"}]}'


async def post(lease: Lease, server: ScriptedModelServer) -> bytes:
    timeout = aiohttp.ClientTimeout(sock_read=60)
    url = URL(server.base_url) / "chat/completions"
    async with lease.request("POST", url, headers={}, timeout=timeout, body=BODY) as response:
        return await response.read()


def pools(ledger: Ledger) -> list[str]:
    return [entry.name for entry in ledger if entry.kind == "socket pool"]


async def test_a_hundred_leases_of_one_endpoint_share_one_pool() -> None:
    ledger = Ledger()
    async with open_model_server() as server, open_transports(ledger) as transports, AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(transports.lease(f"{server.base_url}/{n}")) for n in range(100)]
        assert pools(ledger) == []
        for lease in leases:
            await post(lease, server)
        assert pools(ledger) == [server.base_url.removesuffix("/v1")]
        assert server.connected == 1
    assert pools(ledger) == []


async def test_the_ledger_knows_which_descriptors_are_a_pools() -> None:
    ledger = Ledger()
    async with (
        open_model_server(otherwise=says("x", stall_after=0)) as server,
        open_transports(ledger) as transports,
        transports.lease(server.base_url) as lease,
    ):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(post, lease, server)
            await server.until(lambda server: server.stalled == 5)
            assert len(ledger.holders()) == 5
            assert {entry.name for entry in ledger.holders().values()} == set(pools(ledger))
            group.cancel_scope.cancel()
        await server.until(lambda server: server.connections == 0)
        assert ledger.holders() == {}, "a request that was broken off took its connection with it"


async def test_the_representation_shows_what_is_going_on() -> None:
    async with open_model_server(says("x", first_wait=60)) as server, open_transports(Ledger(), limit=3) as transports:
        assert repr(transports) == "<Transports 0/3: none>"
        endpoint = server.base_url.removesuffix("/v1")
        async with transports.lease(server.base_url) as lease, anyio.create_task_group() as group:
            assert repr(transports) == f"<Transports 0/3: <Transport {endpoint}: closed, 1 leased, 0 in flight>>"
            group.start_soon(post, lease, server)
            await server.until(lambda server: len(server.requests) == 1)
            assert repr(transports) == f"<Transports 1/3: <Transport {endpoint}: open, 1 leased, 1 in flight>>"
            group.cancel_scope.cancel()
        assert repr(transports) == f"<Transports 1/3: <Transport {endpoint}: open, 0 leased, 0 in flight>>"
        assert re.fullmatch(r"<Lease released from <Transport .*>>", repr(lease))


@pytest.mark.virtual
async def test_a_pool_nobody_leases_closes_by_time_without_traffic() -> None:
    ledger = Ledger()
    async with open_model_server() as server, open_transports(ledger, idle=60) as transports:
        async with transports.lease(server.base_url) as lease:
            await post(lease, server)
        await anyio.sleep(59)
        assert len(pools(ledger)) == len(transports) == 1
        await anyio.sleep(2)
        assert pools(ledger) == []
        assert len(transports) == 0
        assert repr(transports) == "<Transports 0/16: none>"
        await server.until(lambda server: server.connections == 0)


@pytest.mark.virtual
async def test_a_leased_pool_stays_and_a_lease_in_time_saves_an_idle_one() -> None:
    ledger = Ledger()
    async with open_model_server() as server, open_transports(ledger, idle=60) as transports:
        async with transports.lease(server.base_url) as lease:
            await post(lease, server)
            await anyio.sleep(10_000)
            assert len(pools(ledger)) == 1
        await anyio.sleep(59)
        async with transports.lease(server.base_url) as lease:
            await anyio.sleep(10_000)
            assert len(pools(ledger)) == 1
            await post(lease, server)
        await anyio.sleep(61)
        assert pools(ledger) == []


@pytest.mark.virtual
async def test_a_pool_that_closed_opens_again_when_it_is_needed() -> None:
    ledger = Ledger()
    async with open_model_server() as server, open_transports(ledger, idle=60) as transports:
        for _ in range(3):
            async with transports.lease(server.base_url) as lease:
                assert b"hi" in await post(lease, server)
            await anyio.sleep(100)
            assert pools(ledger) == []
        assert server.connected == 3


async def test_there_are_never_more_pools_than_the_limit() -> None:
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(open_model_server()) for _ in range(12)]
        transports = await stack.enter_async_context(open_transports(ledger, limit=3))
        leases = [await stack.enter_async_context(transports.lease(server.base_url)) for server in servers]
        for _ in range(2):
            for lease, server in zip(leases, servers, strict=True):
                assert b"hi" in await post(lease, server)  # a lease outlives its pool
                assert len(pools(ledger)) <= 3
        assert [server.connected for server in servers] == [2] * 12


async def test_the_least_recently_used_pool_makes_room_and_one_without_a_lease_first() -> None:
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        first, second, third, fourth = [await stack.enter_async_context(open_model_server()) for _ in range(4)]
        transports = await stack.enter_async_context(open_transports(ledger, limit=2))
        for server in (first, second, first):
            lease = await stack.enter_async_context(transports.lease(server.base_url))
            await post(lease, server)
        async with transports.lease(third.base_url) as lease:
            await post(lease, third)
        assert {URL(name).port for name in pools(ledger)} == {URL(first.base_url).port, URL(third.base_url).port}
        async with transports.lease(fourth.base_url) as lease:
            await post(lease, fourth)
        assert {URL(name).port for name in pools(ledger)} == {URL(first.base_url).port, URL(fourth.base_url).port}


async def test_when_all_pools_are_busy_a_newcomer_waits_for_the_first_to_fall_quiet() -> None:
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        slow = says("one two", stall_after=1)
        busy = [await stack.enter_async_context(open_model_server(otherwise=slow)) for _ in range(2)]
        late = await stack.enter_async_context(open_model_server())
        transports = await stack.enter_async_context(open_transports(ledger, limit=2))
        leases = [await stack.enter_async_context(transports.lease(server.base_url)) for server in (*busy, late)]
        async with anyio.create_task_group() as group:
            for lease, server in zip(leases, (*busy, late), strict=True):
                group.start_soon(post, lease, server)
            for server in busy:
                await server.until(lambda server: server.stalled == 1)
            assert late.requests == []
            assert len(pools(ledger)) == 2
            busy[1].resume()
            await late.until(lambda server: len(server.requests) == 1)
            assert len(pools(ledger)) == 2
            busy[0].resume()


async def test_whoever_gives_up_waiting_for_a_place_takes_none() -> None:
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(open_model_server(otherwise=says("one two", stall_after=1)))
        late = await stack.enter_async_context(open_model_server())
        transports = await stack.enter_async_context(open_transports(Ledger(), limit=1))
        first = await stack.enter_async_context(transports.lease(busy.base_url))
        second = await stack.enter_async_context(transports.lease(late.base_url))
        async with anyio.create_task_group() as group:
            group.start_soon(post, first, busy)
            await busy.until(lambda server: server.stalled == 1)
            with anyio.move_on_after(0.02) as impatience:
                await post(second, late)
            assert impatience.cancelled_caught
            busy.resume()
        assert b"hi" in await post(second, late)
        assert len(transports) == 1


@pytest.mark.virtual
async def test_a_pool_released_while_another_makes_room_still_closes_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    close = aiohttp.ClientSession.close

    async def close_slowly(session: aiohttp.ClientSession) -> None:
        await anyio.sleep(1)
        await close(session)

    monkeypatch.setattr(aiohttp.ClientSession, "close", close_slowly)
    async with AsyncExitStack() as stack:
        *servers, newcomer = [await stack.enter_async_context(open_model_server()) for _ in range(4)]
        transports = await stack.enter_async_context(open_transports(Ledger(), limit=3, idle=60))

        async def ask_newcomer() -> None:
            async with transports.lease(newcomer.base_url) as lease:
                await post(lease, newcomer)

        for server in servers[:2]:
            async with transports.lease(server.base_url) as lease:
                await post(lease, server)
        async with anyio.create_task_group() as group, transports.lease(servers[2].base_url) as lease:
            await post(lease, servers[2])
            group.start_soon(ask_newcomer)
            await anyio.sleep(0.5)
            assert newcomer.requests == []  # it waits for the first one's place
        await anyio.sleep(62)
        assert repr(transports) == "<Transports 0/3: none>"


async def test_on_a_foreign_loop_neither_a_lease_nor_a_request_is_made() -> None:
    async def lease_there() -> None:
        async with transports.lease(server.base_url):
            raise AssertionError("it was leased")

    async with (
        open_model_server() as server,
        open_transports(Ledger()) as transports,
        transports.lease(server.base_url) as lease,
    ):
        for use in (lease_there, partial(post, lease, server)):
            with pytest.raises(RuntimeError, match="belong to another event loop"):
                await anyio.to_thread.run_sync(anyio.run, use)
        assert server.connected == 0
        assert re.search("closed, 1 leased, 0 in flight", repr(transports))
        assert b"hi" in await post(lease, server)


async def test_a_released_lease_makes_no_request() -> None:
    async with open_model_server() as server, open_transports(Ledger()) as transports:
        async with transports.lease(server.base_url) as lease:
            pass
        with pytest.raises(RuntimeError, match="released"):
            await post(lease, server)
        assert server.requests == []


async def test_leaving_closes_everything_even_with_a_request_under_way() -> None:
    ledger = Ledger()
    async with open_model_server(says("x", first_wait=60)) as server, anyio.create_task_group() as group:
        async with open_transports(ledger) as transports, transports.lease(server.base_url) as lease:
            group.start_soon(post, lease, server)
            await server.until(lambda server: len(server.requests) == 1)
            group.cancel_scope.cancel()
        assert pools(ledger) == []
        with anyio.CancelScope(shield=True):
            await server.until(lambda server: server.connections == 0)


async def test_an_error_of_the_block_comes_out_as_it_went_in() -> None:
    with pytest.raises(GiveUp):
        async with open_transports(Ledger()):
            raise GiveUp("enough")


async def test_proxies_cookies_and_redirects_of_others_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_model_server() as elsewhere:
        moved = Reply(status=307, headers={"location": elsewhere.base_url, "set-cookie": "a=b"}, body=b"{}")
        async with (
            open_model_server(moved) as server,
            open_transports(Ledger()) as transports,
            transports.lease(server.base_url) as lease,
        ):
            for _ in range(2):
                await post(lease, server)
            assert elsewhere.requests == []
            assert "cookie" not in server.requests[1].headers


async def test_tls_endpoints_are_verified_against_the_one_context() -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(CERTIFICATE)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with open_model_server(tls=serving) as server:
        choice = ModelChoice(provider="custom", name="m", base_url=server.base_url)
        async with (
            open_transports(Ledger(), tls=trusting) as transports,
            openai_chat.open_model(choice, transports) as model,
        ):
            request = ask_for(model, UserMessage("secretly"))
            assert (await model.answer(request, lambda event: None)).message.text == "You said: secretly"
        async with open_transports(Ledger()) as transports, openai_chat.open_model(choice, transports) as model:
            with pytest.raises(AskUser) as caught:
                await model.answer(request, lambda event: None)
            assert caught.value.code == "bad_certificate"
