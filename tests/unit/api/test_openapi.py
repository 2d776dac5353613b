"""The OpenAPI document says what is there."""

import pytest

from holdfast.api.openapi import names_in, plain
from holdfast.api.operations import OPERATIONS, PATH_VALUES

pytestmark = pytest.mark.anyio


async def test_every_operation_is_described_and_every_description_is_routed(serve):
    async with serve() as api:
        status, document = await api.get("/openapi.json", headers={"Authorization": ""})
        assert status == 200
        assert document["openapi"].startswith("3.1")
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        assert described == {(operation.method, plain(operation.path)) for operation in OPERATIONS}
        for method, path in described:
            for name in names_in(path):
                path = path.replace(f"{{{name}}}", "x")
            async with api.client.request(method, path, json={}) as response:
                known = response.status not in (404, 405) or (await response.json())["error"]["code"] != "not_found"
                assert known or "nothing at this address; /openapi" not in await response.text()


def test_names_are_unique_and_every_value_in_a_path_has_a_schema():
    names = [operation.endpoint.__name__ for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert {name for operation in OPERATIONS for name in names_in(operation.path)} == set(PATH_VALUES)


async def test_references_resolve_and_only_open_operations_lack_the_token(serve):
    async with serve() as api:
        _, document = await api.get("/openapi.json")
    schemas = document["components"]["schemas"]

    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    found = set(references(document))
    assert found
    assert all(reference.removeprefix("#/components/schemas/") in schemas for reference in found)
    for operation in OPERATIONS:
        described = document["paths"][plain(operation.path)][operation.method.lower()]
        assert (described.get("security") == []) is operation.is_open
        assert ("401" in described["responses"]) is not operation.is_open
