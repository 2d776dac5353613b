"""The parameters that OpenAI's endpoints have in common."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.api.bodies import check_text
from holdfast.api.errors import bad
from holdfast.core.messages import Sampling

Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
TopP: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
MaxTokens: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
StopWord: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Stop: TypeAlias = StopWord | Annotated[list[StopWord], Meta(max_length=4)]


def sampling(
    temperature: float | None, top_p: float | None, max_tokens: int | None, stop: str | list[str] | None = None
) -> Sampling:
    words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    check_text(words, "stop")
    return Sampling(temperature, top_p, max_tokens, words)


class Unsupported:
    """Parameters that would change the answer's meaning: each with values that ask for nothing, and advice."""

    def __init__(self, **parameters: tuple[Sequence[Any], str]) -> None:
        self._parameters = parameters
        self._values = attrgetter(*parameters)
        self._absent = (None,) * len(parameters)

    def check(self, request: msgspec.Struct) -> None:
        """Raises a `Refusal` that names the parameter."""
        values = self._values(request)
        if values == self._absent:
            return
        for (name, (harmless, advice)), value in zip(self._parameters.items(), values, strict=True):
            if value is not None and value not in harmless:
                raise bad(f"The parameter {name} is not supported: {advice}", name, code="unsupported_parameter")
