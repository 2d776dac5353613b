"""For operators."""

import pytest
from msgspec.structs import replace

from holdfast.core.errors import SettingsError
from holdfast.core.settings import ResidentSettings, TurnSettings
from holdfast.testing.scripted import Gate, until

pytestmark = pytest.mark.anyio


async def test_probes_need_no_token_and_tell_when_the_gateway_leaves(serve):
    async with serve() as api:
        open_client = {"headers": {"Authorization": ""}}
        assert await api.get("/healthz", **open_client) == (200, "ok")
        assert await api.get("/readyz", **open_client) == (200, "ready")
        await api.bench.gateway.drain(0)
        assert (await api.get("/readyz", **open_client))[0] == 503
        assert (await api.get("/healthz", **open_client))[0] == 200
        async with api.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        ) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0


async def test_status_names_what_is_awake_and_what_is_open(serve):
    async with serve() as api:
        await api.chat("hello", "ann")
        _, status = await api.get("/admin/status")
    assert [session["chat"] for session in status["sessions"]] == ["api:ann"]
    assert status["sessions"][0]["state"] == "resident"
    assert [entry["kind"] for entry in status["resources"]] == ["listener"]
    assert status["version"] == "1.2.3"


async def test_settings_are_read_again_and_what_came_of_it_is_told(serve):
    def reread(settings):
        return replace(
            settings, residents=ResidentSettings(limit=1), server=replace(settings.server, request_timeout=7.0)
        )

    async with serve(reread=reread) as api:
        for chat in ("ann", "bob"):
            await api.chat("hello", chat)
        assert len(api.bench.gateway.residents) == 2
        assert await api.post("/admin/reload") == (
            200,
            {"changed": ["residents.limit"], "needs_restart": ["server.request_timeout"]},
        )
        await until(lambda: len(api.bench.gateway.residents) == 1)


async def test_wrong_settings_are_refused_and_the_old_ones_stay(serve):
    def reread(settings):
        raise SettingsError("holdfast.toml:2: it is wrong")

    async with serve(reread=reread) as api:
        status, body = await api.post("/admin/reload")
        assert (status, body["error"]["code"]) == (422, "invalid_settings")
        assert body["error"]["message"] == "holdfast.toml:2: it is wrong"
        assert api.bench.gateway.settings.turn == TurnSettings()
        assert (await api.post("/admin/reload", headers={"Authorization": ""}))[0] == 401


async def test_an_idle_agent_is_evicted_and_a_busy_one_is_not(serve):
    gate = Gate()
    async with serve(gate) as api:
        assert (await api.post("/admin/sessions/nothing/evict"))[0] == 404
        await api.post("/api/chats/web/a/messages", {"text": "x", "id": "1"})
        await gate.has(1)
        _, status = await api.get("/admin/status")
        session = status["sessions"][0]["id"]
        code, answer = await api.post(f"/admin/sessions/{session}/evict")
        assert (code, answer["error"]["code"]) == (409, "mid_turn")
        gate.open()
        await until(lambda: api.bench.gateway.unanswered == 0)
        assert await api.post(f"/admin/sessions/{session}/evict") == (200, {"evicted": True})
        await until(lambda: len(api.bench.gateway.residents) == 0)
        assert (await api.post(f"/admin/sessions/{session}/evict"))[0] == 404


async def test_a_conversation_is_ended_in_the_middle_of_a_turn(serve):
    gate = Gate()

    async def script(messages, emit):
        return "first" if len(messages) == 1 else await gate(messages, emit)

    async with serve(script) as api:
        for number in ("1", "2"):
            await api.post("/api/chats/web/a/messages", {"text": "x", "id": number})
        await gate.has(1)
        _, status = await api.get("/admin/status")
        session = status["sessions"][0]["id"]
        assert await api.post(f"/admin/sessions/{session}/end") == (200, {"ended": True})
        assert gate.inside == 0
        assert (await api.get("/api/chats/web/a"))[1]["session"] is None
        assert (await api.post("/admin/sessions/nothing/end"))[0] == 404
