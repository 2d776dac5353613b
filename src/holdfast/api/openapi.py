"""The OpenAPI document, made from the table of operations and the structs that it names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from holdfast.api.errors import ErrorBody
from holdfast.api.operation import JSON, Operation

EVERYWHERE = (503,)
"""Too many connections, or the gateway is stopping."""


def openapi(operations: Sequence[Operation], path_values: Mapping[str, Any], version: str) -> dict[str, Any]:
    types = list(dict.fromkeys((*path_values.values(), *_types(operations))))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        in_path = {name: schema_of[path_values[name]] for name in names_in(operation.path)}
        described = _described(operation, in_path, schema_of)
        paths.setdefault(plain(operation.path), {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "summary": "A self-hosted gateway for AI agents in many chats.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def plain(path: str) -> str:
    return path.replace("*}", "}")


def names_in(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\*?\}", path)


def _types(operations: Iterable[Operation]) -> Iterable[Any]:
    yield ErrorBody
    for operation in operations:
        if operation.body:
            yield operation.body
        yield from (parameter.type for parameter in operation.parameters)
        for contents in operation.replies.values():
            yield from (shape for shape in contents.values() if shape is not None)


def _described(operation: Operation, in_path: Mapping[str, Any], schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.endpoint.__name__,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": schema} for name, schema in in_path.items()),
            *(
                {
                    "name": parameter.name,
                    "in": parameter.place,
                    "description": parameter.description,
                    "schema": schema_of[parameter.type],
                }
                for parameter in operation.parameters
            ),
        ],
        "responses": _responses(operation, schema_of),
    }
    if operation.body:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[operation.body]}}}
    if operation.is_open:
        described["security"] = []
    return described


def _responses(operation: Operation, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, contents in operation.replies.items():
        responses[str(status)] = _response(
            status, {kind: {} if shape is None else {"schema": schema_of[shape]} for kind, shape in contents.items()}
        )
    errors = {*operation.errors, *EVERYWHERE, *(() if operation.is_open else (401,))}
    for status in sorted(errors):
        known = responses.setdefault(str(status), _response(status, {}))
        known["content"][JSON] = {"schema": schema_of[ErrorBody]}
    return responses


def _response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": content}
    if status in (429, 503):
        seconds = {"type": "integer", "minimum": 0}
        response["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": seconds}}
    return response
