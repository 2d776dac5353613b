"""A tool from a typed function: its schema, its validation and its page come from the signature."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, cast, get_type_hints

import msgspec

from holdfast.core.errors import ToolFailed
from holdfast.core.protocols import ToolContext, ToolSpec
from holdfast.tools.threads import in_thread

Function: TypeAlias = Callable[..., Awaitable[str]] | Callable[..., str]
Probe: TypeAlias = Callable[[], bool]


class FunctionTool:
    """A function `(context, **arguments) -> str` that a model can call.

    An `async def` runs on the loop and must not block it; a plain `def` may block, and runs in a thread.
    """

    # No others, and no method may be replaced: all sessions share it.
    __slots__ = ("_arguments", "_call", "_concurrent", "_module", "_probe", "_spec", "_takes", "_toolset")

    def __init__(self, function: Function, *, toolset: str, concurrent: bool, available: Probe | None = None) -> None:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        _, *parameters = inspect.signature(function).parameters.values()
        fields: list[Any] = [
            (p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default) for p in parameters
        ]
        self._call = _awaitable(function)
        self._module = function.__module__
        self._arguments = msgspec.defstruct(f"{name}_arguments", fields, frozen=True, forbid_unknown_fields=True)
        self._takes = ", ".join(p.name if p.default is p.empty else f"{p.name}?" for p in parameters) or "nothing"
        self._spec = ToolSpec(name, inspect.getdoc(function) or "", msgspec.Raw(_schema(self._arguments)))
        self._toolset = toolset
        self._concurrent = concurrent
        self._probe = available

    def __repr__(self) -> str:
        return f"<FunctionTool {self._toolset}/{self._spec.name} of {self._module}>"

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def toolset(self) -> str:
        return self._toolset

    @property
    def concurrent(self) -> bool:
        return self._concurrent

    def available(self) -> bool:
        return self._probe is None or self._probe()

    async def run(self, context: ToolContext, arguments: str) -> str:
        self._insist_on_being_available()
        try:
            # Not strict: models write "3" where they mean 3.
            values = msgspec.json.decode(arguments or "{}", type=self._arguments, strict=False)
        except msgspec.ValidationError as wrong:
            raise ToolFailed(f"The arguments don't fit: {wrong}. {self._spec.name} takes: {self._takes}.") from None
        except (msgspec.DecodeError, UnicodeError) as wrong:
            raise ToolFailed(
                f"The arguments are not valid JSON ({wrong}). {self._spec.name} takes an object with: {self._takes}."
            ) from None
        return await self._call(context, **msgspec.structs.asdict(values))

    def _insist_on_being_available(self) -> None:
        """A conversation keeps the tools that it began with, also when one can't work any more."""
        sorry = ToolFailed(f"{self._spec.name} is not available at the moment; do without it.")
        try:
            available = self.available()
        except Exception as cause:  # a probe that breaks says no
            raise sorry from cause
        if not available:
            raise sorry


def tool(
    *, toolset: str, concurrent: bool = False, available: Probe | None = None
) -> Callable[[Function], FunctionTool]:
    """Make a tool of a function; its docstring is what the model reads.

    `available` says whether it can work here and now. It is asked often, so it must be quick.
    """
    return lambda function: FunctionTool(function, toolset=toolset, concurrent=concurrent, available=available)


def _awaitable(function: Function) -> Callable[..., Awaitable[str]]:
    if inspect.iscoroutinefunction(function):
        return function
    blocking = cast(Callable[..., str], function)

    async def call(*args: Any, **arguments: Any) -> str:
        return await in_thread(partial(blocking, *args, **arguments))

    return call


def _schema(arguments: type[Any]) -> bytes:
    (reference,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = components.pop(reference["$ref"].removeprefix("#/$defs/"))
    del own["title"]
    if not own["required"]:
        del own["required"]
    if components:
        own["$defs"] = components
    return msgspec.json.encode(own)
