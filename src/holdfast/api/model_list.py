"""GET /v1/models: the one model that answers, by its two names."""

from typing import Literal

import msgspec

from holdfast.api.asking import OWN_MODEL, check_model
from holdfast.api.exchange import Exchange
from holdfast.api.replies import Reply, json_reply
from holdfast.api.surface import Surface


class ModelEntry(msgspec.Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelEntry]
    object: Literal["list"] = "list"


async def list_models(exchange: Exchange) -> Reply:
    surface = exchange.surface
    names = dict.fromkeys((OWN_MODEL, surface.gateway.model.name))
    return json_reply(ModelList([_entry(surface, name) for name in names]))


async def get_model(exchange: Exchange) -> Reply:
    (name,) = exchange.values
    return json_reply(_entry(exchange.surface, check_model(exchange.surface, name)))


def _entry(surface: Surface, name: str) -> ModelEntry:
    owner = OWN_MODEL if name == OWN_MODEL else surface.gateway.model.provider
    return ModelEntry(name, int(surface.started), owner)
