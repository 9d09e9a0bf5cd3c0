"""Starts Chromium, and serves the pages that it opens."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

from tests.chromium import CHROMIUM, find_chromium

WAIT = 90_000
"""Milliseconds for a speech model on a busy machine."""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[int]:
    """Serve a folder on a free port. The page has another origin than gateway and registry."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def launch(playwright: Playwright, *options: str) -> Browser:
    """Start Chromium. Its microphone is that of the machine unless the options say otherwise."""
    return playwright.chromium.launch(executable_path=find_chromium(CHROMIUM), args=_arguments(*options))


def launch_with_profile(playwright: Playwright, profile: Path) -> BrowserContext:
    """Start Chromium with files that the next start finds again."""
    return playwright.chromium.launch_persistent_context(
        profile, executable_path=find_chromium(CHROMIUM), args=_arguments()
    )


def open_checks(context: BrowserContext, address: str) -> Page:
    """Open a page with the checks of `sdk/typescript/test/platforms/browser.mjs`."""
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.wait_for_function("() => globalThis.capabilities !== undefined")
    return page


def reload(page: Page) -> None:
    page.reload()
    page.wait_for_function("() => globalThis.capabilities !== undefined")


def _arguments(*options: str) -> list[str]:
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [*sandbox, "--disable-dev-shm-usage", "--disable-gpu", *options]
