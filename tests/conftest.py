"""What all tests share: each proves that it left nothing behind, and each may run on virtual time."""

import pytest

pytest_plugins = ["holdfast.testing.leaks", "holdfast.testing.virtual"]


@pytest.fixture(scope="session")
def anyio_backend() -> object:
    """Asynchronous tests run on asyncio; a test that wants another loop parametrizes this."""
    return "asyncio"
