"""A real gateway with the console, and how a person uses it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.e2e import harness
from tests.fakes.provider import FakeProvider

PAGES = (
    *("Overview", "Playground", "Speech", "Requests", "Usage"),
    *("Keys", "Providers", "Bundles", "Pipelines", "Connect"),
)
SCREENSHOTS = Path(__file__).parents[2] / ".cache" / "screenshots"
"""Screenshots for whoever builds a page, which SVC_SCREENSHOTS=1 turns on. No test looks at them."""
AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
TIMEOUT = 20_000
"""Milliseconds for any action and any expectation, on a busy machine."""
START_SECONDS = 60.0
"""The timeout for the start of a gateway, on a busy machine."""
WCAG_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


class Console:
    """`svc gateway` with `[console] enabled`, one provider, and two issued keys."""

    def __init__(
        self, home: Path, provider: FakeProvider, config: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.provider = provider
        self._cookies: dict[str, Any] = {}
        self.gateway = harness.Gateway(
            home,
            env={**harness.provider_environment({"A": provider}), **(env or {})},
            config=f"[console]\nenabled = true\n{config}",
            is_forked=True,
        )
        self.admin_key = self.create_key("admin", "--scope", "admin,chat,speech,registry:read,registry:write")["key"]
        user = self.create_key("user", "--scope", "chat,speech")
        self.user_key, self.user_id = user["key"], user["id"]

    def __enter__(self) -> Console:
        self.gateway.start(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.gateway.stop()

    def enter(self, page: Page, key: str, name: str = "Overview") -> None:
        """Open a page with the session of a key. Only the first call for a key logs in, as logins are limited."""
        if cookies := self._cookies.get(key):
            page.context.add_cookies(cookies)
            self.open(page, name)
            expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        else:
            self.log_in(page, key, name)

    def create_key(self, name: str, *options: str) -> dict[str, Any]:
        """Create a key with `svc keys create`."""
        done = harness.run("keys", "create", "--name", name, "--json", *options, home=self.home)
        assert done.returncode == 0, done.stderr
        created: dict[str, Any] = json.loads(done.stdout)
        return created

    def open(self, page: Page, name: str, query: str = "") -> None:
        """Open a page of the console by its address."""
        page.goto(f"{self.gateway.url}/console/{name.lower()}{query}")

    def log_in(self, page: Page, key: str, name: str = "Overview") -> None:
        """Open a page, and log in with a key."""
        self.open(page, name)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        self._cookies[key] = [
            {"name": cookie["name"], "value": cookie["value"], "url": self.gateway.url}
            for cookie in page.context.cookies()
        ]

    def restart(self) -> None:
        """Start the gateway again at the same port."""
        self.gateway.start(START_SECONDS)

    def wait_until_refused(self, key: str) -> None:
        """Wait until a change of a key has taken effect. It takes up to 1 s."""
        wait_until(lambda: self.gateway.request("GET", "/v1/models", key=key).status == 401)


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def expect_no_horizontal_scrollbar(page: Page) -> None:
    """Wait until the page is not wider than the window."""
    page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")


def find_violations(page: Page) -> list[str]:
    """Return what axe finds against WCAG 2.2 AA on the current page."""
    # Playwright evaluates outside of the content security policy.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", WCAG_TAGS)
    return [
        f"{violation['id']}: {node['html'][:160]} ({node['failureSummary'][:200]})"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]


def write_spoken_file(clip: Path, spoken_file: Path) -> None:
    """Write a WAV file of 32-bit floats for the microphone, with 1 s of silence for its start on a busy machine."""
    header, _, data = clip.read_bytes().partition(b"data")
    rate, samples = int.from_bytes(header[24:28], "little"), data[4:]
    silence = bytes(4 * rate)
    size = len(silence) + len(samples)
    header = header[:4] + (len(header) + size).to_bytes(4, "little") + header[8:]
    spoken_file.write_bytes(header + b"data" + size.to_bytes(4, "little") + silence + samples)


def take_screenshot(page: Page, name: str) -> None:
    """With SVC_SCREENSHOTS=1, write a screenshot for whoever builds the page."""
    if os.environ.get("SVC_SCREENSHOTS") != "1":
        return
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
