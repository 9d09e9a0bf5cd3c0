"""Fixtures of the browser tests: a gateway with the console, and pages in a real Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.console import TIMEOUT, Console
from tests.chromium import CHROMIUM, HEADLESS_SHELL, find_chromium
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider

expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="session")
def spoken_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that the browser's microphone plays, once for each start. Tests write to it."""
    return tmp_path_factory.mktemp("microphone") / "spoken.wav"


@pytest.fixture(scope="package")
def browser(spoken_file: Path) -> Iterator[Browser]:
    """Start a browser without a window, whose microphone is a file.

    Playwright runs an event loop in this thread until it stops, and tests of other folders run their own.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(HEADLESS_SHELL, CHROMIUM),
            args=[
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                "--use-fake-ui-for-media-stream",
                "--use-fake-device-for-media-stream",
                f"--use-file-for-fake-audio-capture={spoken_file}%noloop",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--in-process-gpu",  # a tenth less CPU time
            ],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """Start a provider of the OpenAI dialect."""
    with FakeProvider(OpenAIWire(), key="sk-upstream-a-secret") as fake:
        yield fake


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway with the console, an admin key and an ordinary key."""
    with Console(tmp_path_factory.mktemp("console"), provider) as console:
        yield console


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Open a browser profile without cookies."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["microphone"], reduced_motion="reduce"
    )
    context.set_default_timeout(TIMEOUT)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a tab. The test fails if a script throws, or if the content security policy blocks something."""
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield page
    assert not problems


@pytest.fixture
def admin_page(console: Console, page: Page) -> Page:
    """Open a tab that is logged in with the admin key."""
    console.enter(page, console.admin_key)
    return page
