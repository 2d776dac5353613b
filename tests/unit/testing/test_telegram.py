"""The local Bot API answers as Telegram does: to the letter where clients look."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest

from holdfast.testing.telegram import ANNA, BotApi, bad_gateway, flood, open_bot_api

pytestmark = pytest.mark.anyio


class Client:
    def __init__(self, api: BotApi, session: aiohttp.ClientSession) -> None:
        self.api = api
        self._session = session

    async def call(self, method: str, *, token: str = "", **parameters: Any) -> dict[str, Any]:
        url = f"{self.api.url}/bot{token or self.api.token}/{method}"
        async with self._session.post(url, data=parameters) as response:
            body: dict[str, Any] = await response.json()
            assert body.get("error_code", 200) == response.status
            return body

    async def updates(self, **parameters: Any) -> list[int]:
        return [update["update_id"] for update in (await self.call("getUpdates", **parameters))["result"]]


@pytest.fixture
async def client(anyio_backend: object) -> AsyncIterator[Client]:
    each_its_own = aiohttp.TCPConnector(force_close=True)
    async with open_bot_api() as api, aiohttp.ClientSession(connector=each_its_own) as session:
        yield Client(api, session)


async def test_only_a_higher_offset_confirms_an_update(client: Client) -> None:
    one, two = client.api.say("one"), client.api.say("two")
    assert await client.updates() == [one, two]
    assert await client.updates(offset=one) == [one, two]
    assert await client.updates(offset=two, limit=1) == [two]
    assert await client.updates() == [two]
    assert await client.updates(offset=two + 1) == []
    assert client.api.unconfirmed == 0


async def test_a_poll_waits_for_a_message(client: Client) -> None:
    async with anyio.create_task_group() as group:

        async def poll() -> None:
            assert await client.updates(timeout=30) == [700_000_001]
            group.cancel_scope.cancel()

        group.start_soon(poll)
        await anyio.sleep(0.02)
        client.api.say("hello")


async def test_of_two_polls_the_older_one_ends(client: Client) -> None:
    async with anyio.create_task_group() as group:

        async def poll() -> None:
            answer = await client.call("getUpdates", timeout=30)
            assert answer["error_code"] == 409
            assert "other getUpdates" in answer["description"]

        group.start_soon(poll)
        await anyio.sleep(0.1)
        assert await client.updates() == []


async def test_a_message_has_its_limits(client: Client) -> None:
    client.api.say("hello")
    assert (await client.call("sendMessage", chat_id=ANNA.id, text="\U0001f600" * 2048))["ok"]
    too_long = await client.call("sendMessage", chat_id=ANNA.id, text="\U0001f600" * 2048 + "!")
    assert too_long == {"ok": False, "error_code": 400, "description": "Bad Request: message is too long"}
    assert (await client.call("sendMessage", chat_id=ANNA.id, text=" \n"))["error_code"] == 400
    assert (await client.call("sendMessage", chat_id=4711, text="x"))["description"] == "Bad Request: chat not found"
    client.api.blocked.add(ANNA.id)
    assert (await client.call("sendMessage", chat_id=ANNA.id, text="x"))["error_code"] == 403
    assert len(client.api.heard()) == 1


async def test_who_may_ask_and_for_what(client: Client) -> None:
    assert (await client.call("getMe"))["result"]["id"] == 123456
    assert (await client.call("getMe", token="123456:wrong"))["error_code"] == 401
    assert (await client.call("getWhatever"))["error_code"] == 404
    client.api.webhook = "https://example.org"
    assert (await client.call("getUpdates"))["error_code"] == 409
    assert (await client.call("deleteWebhook"))["result"] is True
    assert (await client.call("getUpdates"))["ok"]
    client.api.say("hello")
    assert (await client.call("sendChatAction", chat_id=ANNA.id, action="typing"))["result"] is True


async def test_trouble_comes_when_told_and_goes(client: Client) -> None:
    client.api.will("getMe", flood(7))
    assert (await client.call("getMe"))["parameters"] == {"retry_after": 7}
    with client.api.failing(bad_gateway()), pytest.raises(aiohttp.ContentTypeError):
        await client.call("getMe")
    async with client.api.refusing():
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.call("getMe")
    assert (await client.call("getMe"))["ok"]
    assert [call.status for call in client.api.made("getMe")] == [429, 502, 200]
