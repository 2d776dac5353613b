from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.ledger import Ledger
from holdfast.core.protocols import Store
from holdfast.storage import open_store

Opener = Callable[..., AbstractAsyncContextManager[Store]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
def opened(path: Path) -> Opener:
    """Opens the store at `path`, as often as a test likes."""

    def opener(**options: Any) -> AbstractAsyncContextManager[Store]:
        return open_store(path, **{"ledger": Ledger(), "clock": SystemClock(), "patience": 0.2} | options)

    return opener


@pytest.fixture(params=[False, True], ids=["threads", "inline"])
def opened_either_way(opened: Opener, request: pytest.FixtureRequest) -> Opener:
    return partial(opened, inline=request.param)
