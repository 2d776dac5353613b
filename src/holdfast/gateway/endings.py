"""The end of a conversation: stored once, and seen to once by whoever wants to know of it."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup

from holdfast.core.clock import Clock
from holdfast.core.errors import StoreError
from holdfast.core.protocols import SessionRow, Store

log = structlog.get_logger(__name__)

AtEnd = Callable[[SessionRow], Awaitable[None]]
"""Called once for every conversation that has ended. The entry point group `holdfast.at_end` has them."""

LONGEST = 60.0
"""How long one of them may take."""


class Endings:
    """Ends conversations. What is to happen afterwards happens in tasks of its own, which nobody waits for."""

    def __init__(self, store: Store, hooks: Sequence[AtEnd], clock: Clock, tasks: TaskGroup) -> None:
        self._store = store
        self._hooks = hooks
        self._clock = clock
        self._tasks = tasks

    async def end(self, row: SessionRow, reason: str, *, idle_since: float | None = None) -> bool:
        """Whether this call ended it. With `idle_since`, only one that was not used after that, and expects no mail."""
        now, hooks = self._clock.now(), bool(self._hooks)
        ended = await self._store.end(row.id, now, reason, idle_since=idle_since, hooks=hooks)
        if ended:
            log.info("a conversation ended", session=row.id, chat=str(row.chat), reason=reason)
            if hooks:
                self._tasks.start_soon(self._conclude, row)
        return ended

    async def recover(self) -> None:
        """See to the ends that an earlier process left."""
        if self._hooks:
            for row in await self._store.unconcluded():
                self._tasks.start_soon(self._conclude, row)

    async def _conclude(self, row: SessionRow) -> None:
        for hook in self._hooks:
            try:
                with anyio.fail_after(LONGEST):
                    await hook(row)
            except Exception:  # the edge of a hook: the others still run
                log.exception("what is to happen at a conversation's end failed", session=row.id, hook=repr(hook))
        try:
            await self._store.conclude(row.id, self._clock.now())
        except StoreError as error:
            log.error("the next start will see to a conversation's end again", session=row.id, cause=str(error))
