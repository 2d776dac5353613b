"""What an operation of the HTTP side is: enough to route it and to describe it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.api.exchange import Exchange
from holdfast.api.replies import Reply, Stream

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[Reply | Stream]]

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"
ANY = "*/*"


class Parameter(msgspec.Struct, frozen=True):
    """Something that a request may say in its query or its headers."""

    name: str
    type: Any
    description: str
    place: str = "query"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """With `{name}` for one part of it, and `{name*}` for all the rest."""
    endpoint: Endpoint
    tag: str
    summary: str
    body: Any = None
    """The struct that a request's body must be."""
    parameters: tuple[Parameter, ...] = ()
    replies: Mapping[int, Mapping[str, Any]]
    """By status and content type: a struct, or None for what has no schema."""
    errors: tuple[int, ...] = ()
    """Statuses with the common error body, beyond those that every operation may have."""
    is_open: bool = False
    """No token is asked for."""
