"""From paths to endpoints."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.api import errors
from holdfast.api.operations import OPERATIONS
from holdfast.core.errors import NotFound, Stopping, StoreFull

pytestmark = pytest.mark.anyio


async def test_what_is_not_there_is_not_found_in_the_common_form(serve):
    async with serve() as api:
        for path in ("/v2/models", "/v1/", "/api/chats", "/admin/sessions/x/nothing", "/v1/models/"):
            status, answer = await api.get(path)
            assert status == 404, path
            assert answer["error"]["code"] == "not_found"


async def test_a_wrong_method_is_told_the_right_ones(serve):
    async with serve() as api:
        for method, path, allowed in (
            ("DELETE", "/v1/models", "GET, HEAD"),
            ("GET", "/v1/chat/completions", "POST"),
            ("PUT", "/api/chats/web/a/messages", "POST"),
            ("POST", "/", "GET, HEAD"),
        ):
            async with api.client.request(method, path) as response:
                assert response.status == 405
                assert response.headers["Allow"] == allowed


async def test_a_models_name_may_have_slashes(serve):
    async with serve() as api:
        assert (await api.get("/v1/models/holdfast"))[1]["id"] == "holdfast"
        assert (await api.get("/v1/models/scripted"))[0] == 200
        for name in ("some/other", "some%2Fother", "%00", "x" * 5000):
            status, answer = await api.get(f"/v1/models/{name}")
            assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_the_list_of_models_has_both_names(serve):
    async with serve() as api:
        _, models = await api.get("/v1/models")
    assert [model["id"] for model in models["data"]] == ["holdfast", "scripted"]
    assert models["object"] == "list"


async def test_a_bug_costs_one_request_and_shows_nothing_of_itself(serve, monkeypatch, capsys):
    async with serve() as api:

        def broken(*_):
            raise ZeroDivisionError("a secret of the inside")

        monkeypatch.setattr(api.bench.gateway, "attach", broken)
        status, answer = await api.get("/api/chats/web/a/events")
        assert status == 500
        assert "secret" not in str(answer)
        assert "ZeroDivisionError" in capsys.readouterr().out
        assert (await api.get("/healthz"))[0] == 200


async def test_a_store_that_can_not_store_is_told_with_503(serve, monkeypatch):
    async with serve() as api:

        async def full(*_, **__):
            raise StoreFull("The disk is full: /somewhere/secret")

        monkeypatch.setattr(api.bench.gateway, "accept", full)
        async with api.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}
        ) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert "/somewhere" not in await response.text()


def test_errors_become_statuses():
    assert errors.refusal(NotFound("no")).status == 404
    assert errors.refusal(Stopping()).status == 503


def test_every_operation_stands_in_the_reference():
    reference = (Path(holdfast.__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    for operation in OPERATIONS:
        path = re.sub(r"\*\}", "}", operation.path)
        assert f"`{operation.method} {path}`" in reference, (
            f"{operation.method} {path} is not in docs/reference/http.md"
        )
