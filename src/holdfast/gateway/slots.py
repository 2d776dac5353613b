"""How many turns may be in flight. Whoever is accepted finds a slot, but for what an earlier process left: that may be
more than there are slots. The one past the limit waits, in order, and can be called away."""

import asyncio
from collections import deque

from holdfast.gateway.chats import AwakeChat


class Slots:
    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._queue: deque[asyncio.Future[bool]] = deque()

    def __repr__(self) -> str:
        return f"<Slots: {self._free} free, {len(self._queue)} waiting>"

    async def take(self, chat: AwakeChat) -> bool:
        """Wait for a slot; false when the chat has something better to do than to wait for one."""
        if self._free > 0:
            self._free -= 1
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        chat.waits_for_slot = waiter
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give_back()
            raise
        finally:
            chat.waits_for_slot = None

    def give_back(self) -> None:
        self._free += 1
        self._fill()

    def change(self, most: int) -> None:
        self._free += most - self._most
        self._most = most
        self._fill()

    def _fill(self) -> None:
        while self._free > 0 and self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                self._free -= 1
                waiter.set_result(True)
