"""Writes that must not fail: a store that can't take one holds up who waits for it, until it works again."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from holdfast.core.errors import StoreError

T = TypeVar("T")


async def insist(
    write: Callable[[], Awaitable[T]], failed: Callable[[StoreError], object], *, longest_wait: float = 30.0
) -> T:
    """Write until it is done; each failure is told to `failed`."""
    wait = 0.5
    while True:
        try:
            return await write()
        except StoreError as error:
            failed(error)
        await anyio.sleep(wait)
        wait = min(wait * 2, longest_wait)
