"""Responses of a proxy in place of those of the gateway."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (502, "A proxy before the gateway responded with status 502."),
        (200, "The response is not from the gateway. A proxy before it, or the login page of a network, has sent it."),
    ],
)
def test_page_response_of_a_proxy_is_named_as_such(console: Console, page: Page, status: int, message: str) -> None:
    console.enter(page, console.admin_key)
    page.route(
        "**/v1/overview", lambda route: route.fulfill(status=status, content_type="text/html", body="<h1>Proxy</h1>")
    )
    console.open(page, "Overview")
    expect(page.get_by_role("alert")).to_contain_text(message)
