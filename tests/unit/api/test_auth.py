"""The token."""

import pytest

from holdfast.api.auth import Doorkeeper
from holdfast.api.errors import Refusal
from holdfast.api.operations import OPERATIONS

pytestmark = pytest.mark.anyio

OPEN = {"/healthz", "/readyz", "/openapi.json", "/", "/{file}"}


@pytest.mark.parametrize(
    "shown", [b"", b"the-token", b"Bearer", b"Bearer ", b"Bearer the-toke", b"Bearer the-token2", b"Basic the-token"]
)
def test_a_missing_or_wrong_token_is_refused(shown):
    with pytest.raises(Refusal) as refused:
        Doorkeeper("the-token").check({b"authorization": shown})
    assert refused.value.status == 401
    assert "the-token" not in str(refused.value)


@pytest.mark.parametrize("shown", [b"Bearer the-token", b"bearer the-token", b"BEARER  the-token "])
def test_the_right_token_passes(shown):
    Doorkeeper("the-token").check({b"authorization": shown})


def test_an_empty_token_would_let_everybody_in():
    with pytest.raises(ValueError, match="everybody"):
        Doorkeeper("")


async def test_every_operation_but_the_open_ones_asks_for_the_token(serve):
    assert {operation.path for operation in OPERATIONS if operation.is_open} == OPEN
    async with serve() as api:
        for operation in OPERATIONS:
            path = operation.path.replace("{", "x").replace("}", "x").replace("*", "x")
            headers = {"Authorization": "Bearer wrong"}
            async with api.client.request(operation.method, path, headers=headers) as response:
                assert (response.status == 401) is not operation.is_open, operation.path
                if response.status == 401:
                    assert response.headers["WWW-Authenticate"].startswith("Bearer")
                    assert (await response.json())["error"]["code"] == "invalid_api_key"
