"""Asking a model again when that may help."""

import random
from collections.abc import Callable

import anyio
import structlog

from holdfast.core.errors import GiveUp, RetryModel
from holdfast.core.events import Reasoning, Text
from holdfast.core.protocols import Model, ModelAnswer, ModelRequest

log = structlog.get_logger(__name__)

FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
LONGEST_ASKED_FOR = 60.0
"""When the provider wants us to stay away for longer than this, its user is told so instead."""


async def ask(
    model: Model,
    request: ModelRequest,
    emit: Callable[[Text | Reasoning], None],
    *,
    on_retry: Callable[[str, float], None],
    chance: random.Random,
    attempts: int = 4,
) -> ModelAnswer:
    """Ask up to `attempts` times; `on_retry(reason, wait)` is called before each wait, and voids the text so far."""
    for attempt in range(1, attempts + 1):
        try:
            return await model.answer(request, emit)
        except RetryModel as error:
            log.warning(
                "the model did not answer",
                model=model.name,
                code=error.code,
                attempt=attempt,
                after=error.after,
                detail=error.detail,
            )
            if error.after is not None and error.after > LONGEST_ASKED_FOR:
                raise GiveUp(_come_back(error), code=error.code, detail=error.detail) from error
            if attempt == attempts:
                raise
            wait = _wait(attempt, error.after, chance)
            reason = str(error)
        on_retry(reason, wait)
        await anyio.sleep(wait)
    raise ValueError("a model is asked at least once")


def _wait(attempt: int, after: float | None, chance: random.Random) -> float:
    """Full jitter, so that those who failed together do not come back together; never before `after`."""
    spread = chance.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1)))
    return spread if after is None else after + min(spread, 1.0)


def _come_back(error: RetryModel) -> str:
    seconds = error.after or 0.0
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = -(-int(seconds) // size)
            return f"{str(error).rstrip('.')}; it asks to come back in {count} {unit}{'s' if count > 1 else ''}."
    return str(error)
