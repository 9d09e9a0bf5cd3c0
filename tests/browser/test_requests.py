"""The page Requests: search, pages, new requests, and the detail of one request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.console import Console, expect_no_horizontal_scrollbar, find_violations, take_screenshot
from tests.browser.traffic import CONFIG, HOSTILE, MODEL, Traffic
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway in which requests can fall back to another model."""
    with Console(tmp_path_factory.mktemp("requests"), provider, CONFIG) as console:
        yield console


@pytest.fixture(scope="module")
def traffic(console: Console, provider: FakeProvider) -> Traffic:
    return Traffic(console, provider)


@pytest.fixture(scope="module")
def ids(traffic: Traffic, console: Console) -> dict[str, str]:
    """Send one request of each kind with the ordinary key, and return their ids."""
    hostile = traffic.create_key(HOSTILE, tags={"team": HOSTILE})
    sent = {
        "ok": traffic.send(console.user_key),
        "error": traffic.send_failing(console.user_key),
        "cut": traffic.send_interrupted(console.user_key),
        "fallback": traffic.send_with_fallback(console.user_key),
        "hostile": traffic.send(hostile["key"]),
    }
    traffic.wait_for(*sent.values())
    return sent


def rows(page: Page) -> Locator:
    return page.get_by_role("region", name="Requests").locator("tbody tr")


def open_requests(console: Console, page: Page, query: str = "", key: str = "") -> None:
    """Log in, and open the page with a query."""
    console.enter(page, key or console.admin_key, "Requests")
    if query:
        console.open(page, "Requests", query)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_detail_of_a_fallback_shows_attempts_cost_and_command(
    console: Console, page: Page, ids: dict[str, str], traffic: Traffic
) -> None:
    open_requests(console, page, f"?key={console.user_id}")
    expect(rows(page)).to_have_count(4)
    link = page.get_by_role("row", name="2 attempts").get_by_role("link")
    link.focus()
    page.keyboard.press("Enter")
    detail = page.get_by_role("dialog", name="Request")
    attempts = detail.get_by_role("region", name="Attempts").locator("tbody tr")
    expect(attempts).to_have_count(2)
    expect(attempts.nth(0)).to_contain_text("error")
    expect(attempts.nth(1)).to_contain_text(MODEL)
    expect(detail).to_contain_text("The request needed 2 attempts.")
    expect(detail).to_contain_text("not when each began")
    entry = traffic.entry(ids["fallback"])
    assert entry is not None
    expect(detail).to_contain_text(entry["cost_formula"])
    for term in entry["cost_terms"]:
        expect(detail.get_by_text(f"Cost of {term['name']}", exact=True)).to_be_visible()
    expect(detail).to_contain_text(f"svc usage --request {ids['fallback']}")
    take_screenshot(page, "requests-detail")
    assert not find_violations(page)
    expect(page).to_have_url(re.compile(f"request={ids['fallback']}"))
    address = page.url
    page.keyboard.press("Escape")
    expect(detail).to_have_count(0)
    expect(link).to_be_focused()
    page.go_forward()  # closing has left no entry behind which Back would open the request again
    expect(detail).to_be_visible()
    page.emulate_media(media="print")
    expect(detail).to_be_visible()
    expect(page.locator("nav, .top-bar, table.request-table").filter(visible=True)).to_have_count(0)
    page.emulate_media(media="screen")
    expect(page.locator("td.wrap").first).to_have_css("min-width", "90px")  # WebKit breaks short names without it
    page.goto(address)
    expect(page.get_by_role("dialog", name="Request")).to_contain_text(ids["fallback"])


@pytest.mark.parametrize(("kind", "text"), [("error", "The only attempt failed"), ("cut", "was interrupted")])
def test_detail_says_why_a_request_failed(
    console: Console, admin_page: Page, ids: dict[str, str], kind: str, text: str
) -> None:
    console.open(admin_page, "Requests", f"?request={ids[kind]}")
    expect(admin_page.get_by_role("dialog").locator(".notice.error")).to_contain_text(text)


def test_filters_are_in_the_address_and_another_browser_shows_the_same(
    console: Console, page: Page, context: BrowserContext, ids: dict[str, str]
) -> None:
    open_requests(console, page, f"?key={console.user_id}")
    page.get_by_label("Status", exact=True).select_option("error")
    expect(rows(page)).to_have_count(1)
    page.get_by_label("Error code").fill("provider_error")
    page.keyboard.press("Enter")
    page.get_by_label("Time range").select_option("1h")
    expect(rows(page)).to_have_count(1)
    expect(page).to_have_url(re.compile(r"status=error.*code=provider_error.*range=1h"))
    other = context.new_page()
    other.goto(page.url)
    expect(rows(other)).to_have_count(1)
    expect(rows(other)).to_contain_text("provider_error")
    expect(other.get_by_label("Status", exact=True)).to_have_value("error")
    expect(other.get_by_label("Error code")).to_have_value("provider_error")
    other.get_by_role("button", name="Clear filters").click()
    expect(other.get_by_label("Error code")).to_have_value("")
    expect(rows(other)).not_to_have_count(1)


def test_request_is_found_by_id_and_nothing_says_so(console: Console, page: Page, ids: dict[str, str]) -> None:
    open_requests(console, page)
    page.get_by_label("Request id").fill(ids["cut"])
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("Interrupted")
    page.get_by_label("Model", exact=True).fill("no-such-model")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No request matches")).to_be_visible()


def test_custom_range_selects_by_time_and_names_the_zone(console: Console, page: Page, ids: dict[str, str]) -> None:
    open_requests(console, page, "?range=custom&since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z")
    expect(page.get_by_text("No requests in this time")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    expect(page.get_by_text("Times are in your time zone")).to_be_visible()
    page.get_by_label("Until").fill("")
    expect(rows(page).first).to_be_visible()


def test_hostile_names_are_shown_as_text(console: Console, page: Page, ids: dict[str, str]) -> None:
    open_requests(console, page, f"?request={ids['hostile']}")
    expect(page.get_by_role("dialog")).to_contain_text(f"team={HOSTILE}")
    page.keyboard.press("Escape")
    page.get_by_label("Tag").fill(f"team={HOSTILE}")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(HOSTILE)
    expect(page).to_have_title("Requests · Console")


def test_tag_filter_separator_in_the_name_is_found_by_the_suggestion(
    console: Console, page: Page, traffic: Traffic
) -> None:
    key = traffic.create_key("tagged", tags={"a=b": "c=d"})
    traffic.wait_for(traffic.send(key["key"]))
    open_requests(console, page, f"?key={key['id']}")
    expect(rows(page)).to_have_count(1)
    suggestion = page.locator("datalist option[value*='a=b']").get_attribute("value")
    assert suggestion == '"a=b"=c=d'
    field = page.get_by_label("Tag", exact=True)
    field.fill(suggestion)
    field.press("Enter")
    expect(page).to_have_url(re.compile("tag=a%3Db%3Ac%3Dd"))
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(rows(page)).to_have_count(1)
    expect(field).to_have_value(suggestion)


def test_ordinary_key_sees_its_own_requests_alone(console: Console, page: Page, ids: dict[str, str]) -> None:
    open_requests(console, page, key=console.user_key)
    expect(rows(page)).to_have_count(4)
    expect(page.get_by_role("columnheader", name="Key")).to_have_count(0)
    console.open(page, "Requests", f"?request={ids['hostile']}")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("There is no request")


def test_refused_requests_are_found_with_the_reason_and_what_to_do(
    console: Console, page: Page, traffic: Traffic
) -> None:
    limited = traffic.create_key("limited", rpm=1)
    traffic.send(limited["key"])
    over_rate = traffic.send(limited["key"], HOSTILE)
    poor = traffic.create_key("poor", budget_usd=0.000006)
    traffic.send(poor["key"], max_tokens=2)
    over_budget = traffic.send(poor["key"], max_tokens=2)
    without_key = traffic.send("svc_sk_wrong")
    open_requests(console, page, "?status=refused")
    for id, status, action in [
        (over_rate, "429", "raise the key's rpm"),
        (over_budget, "429", "Raise the key's budget"),
        (without_key, "401", "Send a valid key"),
    ]:
        expect(page.locator(f"a[href*={id}]")).to_be_visible()
        page.locator(f"a[href*={id}]").click()
        detail = page.get_by_role("dialog", name="Request")
        expect(detail).to_contain_text(f"Refused {status}")
        expect(detail.locator(".notice.error")).to_contain_text(action)
        page.keyboard.press("Escape")
    console.open(page, "Requests", f"?key={limited['id']}")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).filter(has_text="(rpm)")).to_have_count(1)
    expect(page).to_have_title("Requests · Console")


def test_new_requests_appear_and_wait_while_paused(
    console: Console, page: Page, traffic: Traffic, ids: dict[str, str]
) -> None:
    key = traffic.create_key("tail")
    open_requests(console, page, f"?key={key['id']}")
    expect(page.get_by_text("No request matches")).to_be_visible()
    traffic.send(key["key"])
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    traffic.send(key["key"])
    expect(page.get_by_text("Paused. 1 waiting.")).to_be_visible()
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(rows(page)).to_have_count(2)
    rows(page).first.get_by_role("link").focus()
    traffic.send(key["key"])
    expect(page.get_by_text("1 waiting while you read")).to_be_visible()
    expect(rows(page)).to_have_count(2)
    page.get_by_role("button", name="Show 1 new").click()
    expect(rows(page)).to_have_count(3)


def test_more_pages_load_without_gaps(console: Console, page: Page, traffic: Traffic) -> None:
    key = traffic.create_key("pages")
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda _: traffic.send(key["key"]), range(55)))
    traffic.wait_for(*sent)
    open_requests(console, page, f"?key={key['id']}")
    expect(rows(page)).to_have_count(50)
    for _ in range(2):  # the tail finds the others too, which are as recent; the second response follows the first
        page.wait_for_event("response", lambda found: "since=" in found.url and "/v1/requests?" in found.url)
    expect(rows(page)).to_have_count(50)
    page.get_by_role("button", name="Load more").click()
    expect(rows(page)).to_have_count(55)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)


@pytest.mark.parametrize("width", [360, 3840])
def test_table_with_requests_fits_and_is_accessible(
    console: Console, admin_page: Page, ids: dict[str, str], width: int
) -> None:
    admin_page.set_viewport_size({"width": width, "height": 900})
    admin_page.emulate_media(color_scheme="dark" if width == 360 else "light")
    console.open(admin_page, "Requests", f"?key={console.user_id}")
    expect(rows(admin_page).first).to_be_visible()
    expect(admin_page.get_by_role("columnheader", name="Latency")).to_be_attached()
    hint = admin_page.get_by_text("Scroll the table sideways")
    expect(hint).to_have_count(1 if width == 360 else 0)
    take_screenshot(admin_page, f"requests-full-{width}")
    assert not find_violations(admin_page)
    expect_no_horizontal_scrollbar(admin_page)


def test_requests_stay_while_the_gateway_is_gone_and_it_recovers(
    console: Console, page: Page, ids: dict[str, str], traffic: Traffic
) -> None:
    open_requests(console, page, f"?key={console.user_id}")
    expect(rows(page)).to_have_count(4)
    console.gateway.keep_port()
    console.gateway.stop()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(rows(page)).to_have_count(4)
    console.restart()
    expect(page.get_by_role("alert")).to_have_count(0)
    traffic.send(console.user_key)
    expect(rows(page)).to_have_count(5)
