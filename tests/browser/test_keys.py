"""The page Keys: creation, change, rotation and revocation of keys, and their limits in use."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.browser.console import Console, find_violations, take_screenshot
from tests.e2e import harness

pytestmark = pytest.mark.slow

IS_ERROR_ON_TOP = """
() => {
  const error = document.querySelector("dialog .field-error");
  const { left, width, top, bottom } = error.getBoundingClientRect();
  const isOnTop = (y) => error.contains(document.elementFromPoint(left + width / 2, y));
  return isOnTop(top + 1) && isOnTop(bottom - 1);
}
"""
"""Whether nothing covers the error of a field, in a low window."""


@pytest.fixture
def keys_page(console: Console, page: Page) -> Page:
    """Open the page Keys with the admin key."""
    console.enter(page, console.admin_key, "Keys")
    expect(page.get_by_role("list", name="Keys", exact=True)).to_be_visible()
    return page


def card(page: Page, name: str) -> Locator:
    """Return the entry of a key."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name, exact=True))


def read_secret(page: Page) -> str:
    """Return the secret that the open dialog shows."""
    expect(page.get_by_role("region", name="Secret")).to_contain_text("svc_sk_")
    return page.get_by_role("region", name="Secret").inner_text()


def test_create_shows_the_secret_once_and_the_key_works(console: Console, keys_page: Page) -> None:
    page = keys_page
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Create a key")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("made <b>here</b>")
    dialog.get_by_label("speech speech and voices").uncheck()
    dialog.get_by_label("Models", exact=True).fill("model-a, other-model")
    dialog.get_by_label("Models", exact=True).press("Enter")
    dialog.get_by_role("button", name="Remove other-model").click()
    dialog.get_by_label("Requests a minute").fill("7")
    dialog.get_by_label("Budget in USD").fill("1.5")
    dialog.get_by_label("Budget period").select_option("day")
    dialog.get_by_label("Expires").fill("2099-01-02T03:04")
    dialog.get_by_label("Tags").fill("team=search\nregion=eu=1")
    take_screenshot(page, "keys-create")
    assert not find_violations(page)
    dialog.get_by_label("Tags").press("Tab")
    dialog.get_by_role("button", name="Create key").click()

    secret = read_secret(page)
    assert secret.startswith("svc_sk_")
    assert not find_violations(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("never shown again")
    take_screenshot(page, "keys-secret")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert secret not in page.content()

    entry = card(page, "made <b>here</b>")
    for text in ("chat, registry:read", "model-a", "team=search, region=eu=1", "0 of 7", "$0.00 of $1.50", "2099"):
        expect(entry).to_contain_text(text)
    assert console.gateway.request("GET", "/v1/models", key=secret).status == 200


def test_key_links_to_its_usage_also_from_the_secret(console: Console, keys_page: Page) -> None:
    page = keys_page
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Create a key")
    dialog.get_by_label("Name").fill("linked")
    dialog.get_by_label("Tags").fill('"a=b"=c')
    dialog.get_by_role("button", name="Create key").click()
    read_secret(page)
    with page.expect_popup() as opened:
        page.get_by_role("dialog").get_by_role("link", name="Usage of linked").click()
    listed = console.gateway.request("GET", "/v1/admin/keys?search=linked", key=console.admin_key).json["data"]
    assert listed[0]["tags"] == {"a=b": "c"}
    assert opened.value.url.endswith(f"/console/usage?key={listed[0]['id']}")
    expect(opened.value.get_by_label("Only key")).to_have_value("linked")
    assert read_secret(page).startswith("svc_sk_")
    page.get_by_role("button", name="Done").click()
    expect(card(page, "linked")).to_contain_text('"a=b"=c')
    card(page, "linked").get_by_role("link", name="Requests of linked").click()
    expect(page.get_by_label("Key", exact=True)).to_have_value("linked")


def test_secret_back_warns_first_and_then_goes_back(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key)
    page.get_by_role("link", name="Keys", exact=True).click()
    for name in ("closed", "left"):
        page.get_by_role("button", name="Create key").click()
        page.get_by_role("dialog").get_by_label("Name").fill(name)
        page.get_by_role("dialog").get_by_role("button", name="Create key").click()
        secret = read_secret(page)
        page.go_back()
        expect(page.get_by_role("alert")).to_contain_text("never shown again")
        assert read_secret(page) == secret
        if name == "closed":
            page.get_by_role("button", name="Done").click()
            expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


def test_error_of_a_field_is_shown_at_the_field(keys_page: Page) -> None:
    page = keys_page
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("kept")
    dialog.get_by_label("Requests a minute").fill("many")
    dialog.get_by_role("button", name="Create key").click()
    field = dialog.get_by_label("Requests a minute")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    dialog.get_by_label("Budget in USD").fill("0")
    dialog.get_by_label("Tags").fill("no value")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_role("alert")).to_have_text(
        [
            "Enter a whole number of at least 1.",
            "Enter an amount above 0, such as 1.50.",
            "Write each tag as name=value.",
        ]
    )
    dialog.get_by_label("Budget in USD").fill("")
    dialog.get_by_label("Tags").fill("")
    expect(field).to_have_accessible_description(re.compile("hole number"))
    field.fill("")
    page.set_viewport_size({"width": 900, "height": 420})
    dialog.get_by_label("Expires").fill("2001-01-01T00:00")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_label("Expires")).to_have_accessible_description(re.compile("in the past"))
    expect(dialog.get_by_label("Name")).to_have_value("kept")
    page.wait_for_function(IS_ERROR_ON_TOP)
    take_screenshot(page, "keys-field-error")


def test_edit_changes_only_the_changed_fields(console: Console, page: Page) -> None:
    created = console.create_key("to edit", "--rpm", "5", "--tpm", "1000", "--expires", "2098-01-01T00:00:07Z")
    console.enter(page, console.admin_key, "Keys")
    page.get_by_role("button", name="Edit to edit").click()
    dialog = page.get_by_role("dialog", name="Edit to edit")
    dialog.get_by_label("Requests a minute").fill("9")
    dialog.get_by_label("Tokens a minute").fill("")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(card(page, "to edit")).to_contain_text("0 of 9")
    shown = console.gateway.request("GET", f"/v1/admin/keys/{created['id']}", key=console.admin_key).json
    assert (shown["rpm"], shown["tpm"], shown["expires"]) == (9, None, "2098-01-01T00:00:07Z")


def test_limits_in_use_and_spend_follow_the_requests(console: Console, page: Page) -> None:
    key = console.create_key("busy", "--rpm", "4", "--budget-usd", "1", "--budget-period", "month")["key"]
    body = {"model": harness.GPT, "messages": [{"role": "user", "content": "hello"}]}
    for _ in range(4):
        assert console.gateway.request("POST", "/v1/chat/completions", body, key=key).status == 200
    console.enter(page, console.admin_key, "Keys")
    meter = card(page, "busy").get_by_role("meter", name="Requests a minute")
    expect(meter).to_have_attribute("aria-valuetext", "4 of 4")
    assert meter.evaluate("(bar) => bar.value > bar.high"), "the bar of a reached limit has the color of errors"
    expect(card(page, "busy")).to_contain_text("Spent this month")
    expect(card(page, "busy")).not_to_contain_text("Never")


def test_rotate_shows_a_new_secret_and_ends_the_previous_one(console: Console, page: Page) -> None:
    created = console.create_key("to rotate")
    console.enter(page, console.admin_key, "Keys")
    page.get_by_role("button", name="Rotate to rotate").click()
    page.get_by_label("The previous secret stays valid for").select_option("It ends now")
    page.get_by_role("button", name="Rotate key").click()
    secret = read_secret(page)
    assert secret != created["key"]
    console.wait_until_refused(created["key"])
    assert console.gateway.request("GET", "/v1/models", key=secret).status == 200


def test_rotating_the_own_key_keeps_the_session_and_shows_the_secret(console: Console, page: Page) -> None:
    created = console.create_key("rotates itself", "--scope", "admin,chat")
    console.log_in(page, created["key"], "Keys")
    page.get_by_role("button", name="Rotate rotates itself").click()
    page.get_by_label("The previous secret stays valid for").select_option("It ends now")
    page.get_by_role("button", name="Rotate key").click()
    secret = read_secret(page)
    console.wait_until_refused(created["key"])
    page.get_by_role("button", name="Done").click()
    page.reload()
    expect(card(page, "rotates itself")).to_be_visible()
    assert console.gateway.request("GET", "/v1/models", key=secret).status == 200


def test_key_revoked_in_one_tab_is_revoked_in_the_other(console: Console, page: Page, context: BrowserContext) -> None:
    console.create_key("to revoke")
    console.enter(page, console.admin_key, "Keys")
    other = context.new_page()
    console.open(other, "Keys")
    expect(card(other, "to revoke")).to_contain_text("Active")
    page.bring_to_front()
    page.get_by_role("button", name="Revoke to revoke").click()
    dialog = page.get_by_role("dialog", name="Revoke to revoke?")
    expect(dialog).to_be_visible()
    assert not find_violations(page)
    dialog.get_by_role("button", name="Cancel").click()
    expect(card(page, "to revoke")).to_contain_text("Active")
    page.get_by_role("button", name="Revoke to revoke").click()
    page.get_by_role("button", name="Revoke key").click()
    expect(card(page, "to revoke")).to_contain_text("Revoked")
    expect(page.get_by_role("button", name="Edit to revoke")).to_have_count(0)
    other.bring_to_front()
    other.reload()
    expect(card(other, "to revoke")).to_contain_text("Revoked")
    page.bring_to_front()
    page.get_by_label("Show revoked keys").uncheck()
    expect(card(page, "to revoke")).to_have_count(0)


def test_search_finds_keys_and_is_in_the_address(console: Console, page: Page) -> None:
    console.create_key("needle one", "--tag", "team=haystack")
    console.enter(page, console.admin_key, "Keys")
    page.get_by_label("Search").fill("HAYSTACK")
    expect(page.get_by_role("list", name="Keys", exact=True).get_by_role("heading")).to_have_text(["needle one"])
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("HAYSTACK")
    expect(page.get_by_role("list", name="Keys", exact=True).get_by_role("heading")).to_have_text(["needle one"])
    page.get_by_label("Search").fill("no such key")
    expect(page.get_by_text("No key matches")).to_be_visible()
    console.open(page, "Keys", "?after=key_zzz")  # as after the revocation of the last key of a page
    expect(page.get_by_text("No key matches")).to_be_visible()


TYPE_AT_ONCE = """
  new MutationObserver((_, observer) => {
    const field = document.querySelector("input[type=search]");
    if (!field) return;
    observer.disconnect();
    field.value = "admin";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }).observe(document, { childList: true, subtree: true });
"""


def test_search_that_is_typed_as_soon_as_its_field_appears_is_kept(console: Console, page: Page) -> None:
    page.add_init_script(TYPE_AT_ONCE)
    console.enter(page, console.admin_key, "Keys")
    expect(page.get_by_role("list", name="Keys", exact=True).get_by_role("heading")).to_have_text(["admin"])
    expect(page.get_by_label("Search")).to_have_value("admin")


def test_next_page_waits_for_the_keys_of_a_changed_filter(console: Console, page: Page) -> None:
    for number in range(51):
        body = {"name": f"filtered {number:02}"}
        assert console.gateway.request("POST", "/v1/admin/keys", body, key=console.admin_key).status == 201
    console.enter(page, console.admin_key, "Keys")
    next_page = page.get_by_role("button", name="Next page")
    expect(next_page).to_be_enabled()
    held: list[Route] = []
    page.route(re.compile(r"/v1/admin/keys\?.*search=filtered"), lambda route: held.append(route))
    page.get_by_label("Search").fill("filtered")
    expect(next_page).to_be_disabled()
    for route in held:
        route.continue_()
    page.unroute_all()
    expect(next_page).to_be_enabled()


def test_pages_follow_each_other(console: Console, page: Page) -> None:
    for number in range(51):
        body = {"name": f"bulk {number:02}"}
        assert console.gateway.request("POST", "/v1/admin/keys", body, key=console.admin_key).status == 201
    console.enter(page, console.admin_key, "Keys")
    page.get_by_label("Search").fill("bulk")
    headings = page.get_by_role("list", name="Keys", exact=True).get_by_role("heading")
    expect(headings).to_have_count(50)
    page.get_by_role("button", name="Next page").click()
    expect(headings).to_have_count(1)
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()
    page.reload()
    expect(headings).to_have_count(1)
    page.get_by_role("button", name="Previous page").click()
    expect(headings).to_have_count(50)
    expect(page.get_by_role("button", name="Previous page")).to_be_disabled()
    page.get_by_role("button", name="Next page").click()
    expect(headings).to_have_count(1)
    page.get_by_role("button", name="First page").click()
    expect(headings).to_have_count(50)


def test_expired_session_keeps_the_open_dialog(console: Console, keys_page: Page, context: BrowserContext) -> None:
    page = keys_page
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("typed before the session ended")
    context.clear_cookies()
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    page.get_by_label("API key").fill(console.admin_key)
    expect(page.get_by_text("The session has ended")).to_be_visible()
    assert not find_violations(page)
    page.get_by_role("button", name="Log in").click()
    dialog = page.get_by_role("dialog", name="Create a key")
    expect(dialog.get_by_label("Name")).to_have_value("typed before the session ended")
    dialog.get_by_role("button", name="Create key").click()
    assert read_secret(page).startswith("svc_sk_")


def test_login_over_an_ended_session_escape_keeps_the_form_and_the_dialog(
    console: Console, keys_page: Page, context: BrowserContext
) -> None:
    page = keys_page
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("typed before Escape")
    context.clear_cookies()
    login = page.get_by_role("heading", name="Log in")
    expect(login).to_be_visible()
    for _ in range(3):  # Chromium closes a dialog at the second one, whatever the page says
        page.keyboard.press("Escape")
    page.get_by_label("API key").click()
    page.get_by_label("API key").press("Escape")
    page.get_by_label("API key").press("Escape")
    expect(login).to_be_visible()
    page.evaluate("() => document.querySelector('.login-overlay').close()")  # as the back gesture of a phone does
    expect(login).to_be_visible()
    page.get_by_label("API key").fill(console.admin_key)
    page.get_by_role("button", name="Log in").click()
    name = page.get_by_role("dialog", name="Create a key").get_by_label("Name")
    expect(name).to_have_value("typed before Escape")
    page.keyboard.press("Escape")
    expect(page.get_by_text("Close again to discard it")).to_be_visible()


def test_ordinary_key_sees_only_itself(console: Console, page: Page) -> None:
    failed: list[str] = []
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    console.enter(page, console.user_key)
    failed.clear()
    console.open(page, "Keys")
    expect(page.get_by_role("heading", name="Your key")).to_be_visible()
    expect(page.locator("main")).to_contain_text("chat, speech")
    expect(page.get_by_role("button", name="Create key")).to_have_count(0)
    assert not failed
