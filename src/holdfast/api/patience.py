"""How long requests wait: one timer for all who wait equally long.

A timer for each costs more than everything else that a request does here; most of them never go off.
"""

import asyncio
from typing import Protocol


class Waiter(Protocol):
    def interrupt(self) -> None:
        """It has waited long enough."""
        ...


class Patience:
    """Interrupts whoever has waited for so many seconds. Since all wait equally long, the first is due first."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Waiter, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Patience of {self.seconds:g} s: {len(self._due)} waiting>"

    def begin(self, waiter: Waiter) -> None:
        loop = asyncio.get_running_loop()
        due = self._due[waiter] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._look)

    def end(self, waiter: Waiter) -> None:
        """It waits no more. The timer goes on, and finds that out by itself."""
        self._due.pop(waiter, None)

    def run_out(self) -> None:
        """Nobody is going to wait any more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for waiter, due in list(self._due.items()):
            if due > loop.time():
                self._timer = loop.call_at(due, self._look)
                return
            del self._due[waiter]
            waiter.interrupt()
