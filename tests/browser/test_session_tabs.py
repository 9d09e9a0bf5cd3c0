"""Login and logout in one tab while another tab of the browser is open."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.console import Console
from tests.browser.test_session import log_in_elsewhere

pytestmark = pytest.mark.slow


@pytest.fixture
def other_tab(context: BrowserContext) -> Page:
    """Open another tab of the browser."""
    return context.new_page()


def log_in_here(page: Page, key: str) -> None:
    """Log in with the form of an open page."""
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()


def begin_key(console: Console, page: Page) -> None:
    """Log in with the admin key, and type a part of a new key."""
    console.enter(page, console.admin_key, "Keys")
    page.get_by_role("button", name="Create key").click()
    page.get_by_label("Name", exact=True).fill("half-written")


def test_logout_in_another_tab_ends_the_session_of_this_tab_and_a_login_returns_it(
    console: Console, page: Page, other_tab: Page
) -> None:
    begin_key(console, page)
    console.open(other_tab, "Connect")
    other_tab.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    log_in_here(other_tab, console.admin_key)
    expect(page.get_by_role("heading", name="Log in")).to_have_count(0)
    expect(page.get_by_label("Name", exact=True)).to_have_value("half-written")
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    expect(page.get_by_role("dialog")).to_contain_text("svc_sk_")


def test_login_with_another_key_in_another_tab_is_told_in_this_tab(
    console: Console, page: Page, other_tab: Page, context: BrowserContext
) -> None:
    begin_key(console, page)
    log_in_elsewhere(console, context, console.user_key)
    console.open(other_tab, "Overview")
    notice = page.get_by_text("Another tab has logged in with the key user.")
    expect(notice).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("half-written")
    log_in_elsewhere(console, context, console.admin_key)
    other_tab.reload()
    expect(notice).to_have_count(0)
    log_in_elsewhere(console, context, console.user_key)
    other_tab.reload()
    expect(notice).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Reload the page").click()
    expect(page.locator(".key-name")).to_have_text("user")


def test_login_with_another_key_in_another_tab_keeps_the_page_of_an_ended_session(
    console: Console, page: Page, other_tab: Page
) -> None:
    begin_key(console, page)
    console.open(other_tab, "Overview")
    other_tab.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    with page.expect_response("**/console/session"):
        log_in_here(other_tab, console.user_key)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    log_in_here(page, console.admin_key)
    expect(page.get_by_label("Name", exact=True)).to_have_value("half-written")
