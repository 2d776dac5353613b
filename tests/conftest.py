"""What all tests share: each proves that it left nothing behind, and each may run on virtual time."""

import signal

import pytest

pytest_plugins = ["holdfast.testing.leaks", "holdfast.testing.virtual"]


@pytest.fixture(scope="session")
def anyio_backend() -> object:
    """Asynchronous tests run on asyncio; a test that wants another loop parametrizes this."""
    return "asyncio"


def pytest_configure() -> None:
    """Started in the background, a shell lets its children ignore Ctrl-C; tests that send it need it to work."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
