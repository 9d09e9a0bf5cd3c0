"""Login, logout and the end of sessions, in a real browser."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.console import Console, expect_no_horizontal_scrollbar


def test_login_with_wrong_key_says_so_and_keeps_the_form(console: Console, page: Page) -> None:
    console.open(page, "Keys")
    page.get_by_label("API key").fill("svc_sk_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    expect(page.get_by_text("svc keys create")).to_have_count(1)
    expect(page.get_by_label("API key")).to_be_focused()


def test_login_keeps_the_requested_page_and_a_reload_keeps_the_session(console: Console, page: Page) -> None:
    console.log_in(page, console.admin_key, "Keys")
    page.reload()
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()
    expect(page.locator(".key-name")).to_have_text("admin")


def test_session_cookie_is_hidden_from_scripts(console: Console, page: Page, context: BrowserContext) -> None:
    console.log_in(page, console.admin_key)
    (cookie,) = context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert not cookie["secure"]
    assert console.admin_key not in page.content()
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)").find("svc_") == -1


def test_logout_ends_the_session_in_this_browser(console: Console, page: Page) -> None:
    console.log_in(page, console.admin_key)
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.set_viewport_size({"width": 320, "height": 700})
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.locator(":root")).to_have_attribute("data-theme", "light")
    expect_no_horizontal_scrollbar(page)


def test_page_of_a_revoked_key_asks_for_a_key_again(console: Console, page: Page) -> None:
    created = console.create_key("short-lived", "--scope", "admin")
    console.log_in(page, created["key"])
    console.gateway.request("POST", f"/v1/admin/keys/{created['id']}/revoke", {}, key=console.admin_key)
    console.wait_until_refused(created["key"])
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


@pytest.mark.parametrize("name", ["<img src=x onerror=document.title='hacked'>", '"><script>document.title=1</script>'])
def test_hostile_key_name_is_shown_as_text(console: Console, page: Page, name: str) -> None:
    console.log_in(page, console.create_key(name, "--scope", "admin")["key"])
    expect(page.locator(".key-name")).to_have_text(name)
    expect(page).to_have_title("Overview · Console")


def log_in_elsewhere(console: Console, context: BrowserContext, key: str) -> None:
    """Log in as another tab of the browser does: it replaces the cookie."""
    response = context.request.post(f"{console.gateway.url}/console/session", data={"key": key})
    assert response.ok


def create_key(page: Page, name: str) -> None:
    page.get_by_role("button", name="Create key").first.click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()


def test_change_after_a_new_login_in_another_tab_succeeds(
    console: Console, page: Page, context: BrowserContext
) -> None:
    console.enter(page, console.admin_key, "Keys")
    log_in_elsewhere(console, context, console.admin_key)
    create_key(page, "made-in-the-first-tab")
    expect(page.get_by_role("dialog")).to_contain_text("svc_sk_")


def test_login_with_another_key_in_another_tab_changes_this_tab(
    console: Console, page: Page, context: BrowserContext
) -> None:
    console.enter(page, console.admin_key, "Keys")
    log_in_elsewhere(console, context, console.create_key("second-admin", "--scope", "admin")["key"])
    create_key(page, "never-made")
    expect(page.locator(".key-name")).to_have_text("second-admin")
    listed = console.gateway.request("GET", "/v1/admin/keys?search=never-made", key=console.admin_key)
    assert json.loads(listed.body)["data"] == []


def test_logout_without_a_connection_says_that_the_session_continues(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Keys")
    page.context.set_offline(True)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("alert").first).to_contain_text("You are still logged in")
    page.context.set_offline(False)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
