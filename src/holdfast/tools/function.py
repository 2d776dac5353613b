"""A tool from a typed function: its schema, its validation and its page come from the signature."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import msgspec

from holdfast.core.errors import ToolFailed
from holdfast.core.protocols import ToolContext, ToolSpec

Function = Callable[..., Awaitable[str]]


class FunctionTool:
    """An async function `(context, **arguments) -> str` that a model can call."""

    def __init__(self, function: Function, *, toolset: str, concurrent: bool) -> None:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        _, *parameters = inspect.signature(function).parameters.values()
        fields: list[Any] = [
            (p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default) for p in parameters
        ]
        self._function = function
        self._arguments = msgspec.defstruct(f"{name}_arguments", fields, frozen=True, forbid_unknown_fields=True)
        self._takes = ", ".join(p.name if p.default is p.empty else f"{p.name}?" for p in parameters) or "nothing"
        self.spec = ToolSpec(name, inspect.getdoc(function) or "", msgspec.Raw(_schema(self._arguments)))
        self.toolset = toolset
        self.concurrent = concurrent

    def __repr__(self) -> str:
        return f"<FunctionTool {self.toolset}/{self.spec.name} of {self._function.__module__}>"

    async def run(self, context: ToolContext, arguments: str) -> str:
        try:
            # Not strict: models write "3" where they mean 3.
            values = msgspec.json.decode(arguments or "{}", type=self._arguments, strict=False)
        except msgspec.ValidationError as wrong:
            raise ToolFailed(f"The arguments don't fit: {wrong}. {self.spec.name} takes: {self._takes}.") from None
        except (msgspec.DecodeError, UnicodeError) as wrong:
            raise ToolFailed(
                f"The arguments are not valid JSON ({wrong}). {self.spec.name} takes an object with: {self._takes}."
            ) from None
        return await self._function(context, **msgspec.structs.asdict(values))


def tool(*, toolset: str, concurrent: bool = False) -> Callable[[Function], FunctionTool]:
    """Make a tool of an async function; its docstring is what the model reads."""
    return lambda function: FunctionTool(function, toolset=toolset, concurrent=concurrent)


def _schema(arguments: type[Any]) -> bytes:
    _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = components.pop(arguments.__name__)
    del own["title"]
    if not own["required"]:
        del own["required"]
    if components:
        own["$defs"] = components
    return msgspec.json.encode(own)
