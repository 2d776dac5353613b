"""The contract of `core.protocols.Store`, as checks that any implementation can be run through.

`await check_store(opener)` runs them all; `STORE_CHECKS` has them one by one, for a parametrized test. The
opener gets a name and opens the store of that name: a new name is an empty store, the same name again is
the same store with what was put there before.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from inspect import iscoroutinefunction, signature

from holdfast.core.protocols import Store
from holdfast.testing.stores import commits, conversations, endings, mail, search, upkeep
from holdfast.testing.stores.commits import write_methods
from holdfast.testing.stores.rows import (
    CHAT,
    CONVERSATION,
    MAIL,
    SESSION,
    OpenStore,
    StoreCheck,
    a_mail,
    a_row,
    a_session,
    an_answer,
)

__all__ = [
    "CHAT",
    "CONVERSATION",
    "MAIL",
    "SESSION",
    "STORE_CHECKS",
    "OpenStore",
    "StoreCheck",
    "StoreOpener",
    "a_mail",
    "a_row",
    "a_session",
    "an_answer",
    "check_store",
    "write_methods",
]

StoreOpener = Callable[[str], AbstractAsyncContextManager[Store]]

STORE_CHECKS: tuple[StoreCheck, ...] = tuple(
    function
    for module in (mail, conversations, endings, commits, search, upkeep)
    for function in vars(module).values()
    if iscoroutinefunction(function) and list(signature(function).parameters) == ["open_store"]
)


async def check_store(open_named: StoreOpener) -> None:
    """Run every check, each on a store of its own."""
    for check in STORE_CHECKS:
        await check(partial(open_named, check.__name__))
