"""The leases that a bench's model gives, watched one by one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from holdfast.testing.gateways import Bench


class Leases:
    """Keeps every lease that a bench's model gives, in order: being opened, open, closing, closed or abandoned."""

    def __init__(self, bench: Bench, *, close: float = 0.0) -> None:
        self.states: list[str] = []
        self.most = 0
        """How many were there at once, opening and closing ones included."""
        self.closes = 0
        self.held_up = False
        """Whether the next one opens only on `go`."""
        self.go = anyio.Event()
        self._close = close
        bench.model.around = self._around

    @asynccontextmanager
    async def _around(self, name: str) -> AsyncIterator[None]:
        number = len(self.states)
        self.states.append("opening")
        self.most = max(self.most, sum(state in ("opening", "open", "closing") for state in self.states))
        held_up, self.held_up = self.held_up, False
        try:
            if held_up:
                await self.go.wait()
            self.states[number] = "open"
            yield
        finally:
            abandoned = self.states[number] == "opening"
            self.states[number] = "closing"
            self.closes += 1
            with anyio.CancelScope(shield=abandoned):
                await anyio.sleep(self._close)
            self.states[number] = "abandoned" if abandoned else "closed"
