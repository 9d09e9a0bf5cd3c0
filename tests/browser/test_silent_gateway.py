"""Pages of a gateway that accepts requests and does not respond, as after a change of networks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from svc.ledger_queries.process import LEDGER_QUERY_TIMEOUT_SECONDS
from tests.browser.console import Console

pytestmark = pytest.mark.slow

TIMEOUT_MILLISECONDS = 66_000
"""A little more than the page waits for a response."""


def enter_silently(console: Console, page: Page, path: str) -> None:
    """Enter the console. Requests to `path` then get no response, and the test can advance the clock."""
    console.enter(page, console.admin_key)
    page.clock.install()
    page.route(path, lambda route: None)


def test_page_session_gets_no_response_says_so_and_recovers(console: Console, page: Page) -> None:
    enter_silently(console, page, "**/console/session")
    console.open(page, "Keys")
    page.clock.run_for(1500)
    expect(page.get_by_text("Waiting for the gateway…")).to_be_visible()
    page.clock.run_for(TIMEOUT_MILLISECONDS)
    expect(page.get_by_role("alert")).to_contain_text("The gateway did not respond within 65 seconds.")
    page.unroute("**/console/session")
    page.clock.run_for(2500)
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()


@pytest.mark.parametrize(
    ("name", "path"),
    [("Overview", "**/v1/overview"), ("Requests", "**/v1/requests?*"), ("Keys", "**/v1/admin/keys?*")],
)
def test_page_data_gets_no_response_says_so_and_recovers(console: Console, page: Page, name: str, path: str) -> None:
    enter_silently(console, page, path)
    with page.expect_request(path):  # it can be sent before `open` returns
        console.open(page, name)
        page.clock.run_for(100)
    page.clock.run_for(TIMEOUT_MILLISECONDS)
    expect(page.get_by_role("alert")).to_contain_text("The gateway did not respond within 65 seconds.")
    page.unroute(path)
    page.clock.run_for(TIMEOUT_MILLISECONDS)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_change_gets_no_response_says_so_and_can_be_repeated(console: Console, page: Page) -> None:
    created = console.create_key("silent")
    path = f"**/v1/admin/keys/{created['id']}/revoke"
    enter_silently(console, page, path)
    console.open(page, "Keys")
    page.get_by_role("listitem").filter(has_text=created["id"]).get_by_role("button", name="Revoke").click()
    button = page.get_by_role("button", name="Revoke key")
    with page.expect_request(path):
        button.click()
    expect(button).to_have_attribute("aria-disabled", "true")
    page.clock.run_for(TIMEOUT_MILLISECONDS)
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("did not respond within 65 seconds")
    expect(alert).to_contain_text("The request may have taken effect.")
    page.unroute(path)
    button.click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_page_data_of_a_query_that_takes_as_long_as_it_may_is_shown(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key)
    page.clock.install()
    held: list[Route] = []
    page.route("**/v1/usage/series?*", lambda route: held.append(route))
    with page.expect_request("**/v1/usage/series?*"):
        console.open(page, "Usage")
    page.clock.run_for(LEDGER_QUERY_TIMEOUT_SECONDS * 1000)
    held[0].continue_()
    expect(page.get_by_text("No usage in this time")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
