"""The real gateway as a process of its own, and a real browser to look at it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from holdfast.testing.processes import PATIENCE, GatewayProcess, running_gateway

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The system's browser; where there is none, the one that Playwright installed."""
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for a module's tests, each of which talks in a conversation of its own."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that the test may kill."""
    with running_gateway(tmp_path) as process:
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: Playwright's loop would be in the way of other modules' own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


def watch(page: Page) -> list[str]:
    """What goes wrong in the page from now on: an error in a script, a dialog, anything its policy had to block."""
    mishaps: list[str] = []

    def note_dialog(dialog: Dialog) -> None:
        mishaps.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def note_blocked(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "Trusted" in message.text:
            mishaps.append(f"blocked: {message.text}")

    page.on("pageerror", lambda error: mishaps.append(f"script: {error}"))
    page.on("dialog", note_dialog)
    page.on("console", note_blocked)
    return mishaps


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages, each with a storage of its own; in none of them may anything go wrong."""
    with ExitStack() as contexts:
        watched: list[list[str]] = []

        def open_one(url: str = "", **options: Any) -> Page:
            context = contexts.enter_context(browser.new_context(**options))
            context.set_default_timeout(PATIENCE * 1000)
            page = context.new_page()
            watched.append(watch(page))
            if url:
                page.goto(url)
            return page

        yield open_one
        assert not any(watched), watched
