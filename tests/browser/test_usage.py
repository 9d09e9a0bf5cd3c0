"""The page Usage: totals, chart and table from one aggregate, and the download."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.browser.console import Console, expect_no_horizontal_scrollbar, find_violations, take_screenshot
from tests.browser.traffic import CONFIG, HOSTILE, MODEL, Traffic
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway in which requests can fall back to another model."""
    with Console(tmp_path_factory.mktemp("usage"), provider, CONFIG) as console:
        yield console


@pytest.fixture(scope="module")
def traffic(console: Console, provider: FakeProvider) -> Traffic:
    """Send requests of several keys: 3 of the ordinary key, of which one fails, and 2 of a key with a hostile tag."""
    traffic = Traffic(console, provider)
    hostile = traffic.create_key(HOSTILE, tags={"team": HOSTILE})["key"]
    user = console.user_key
    ids = [traffic.send(user), traffic.send(user, "gpt-4o"), traffic.send_failing(user)]
    traffic.wait_for(*ids, traffic.send(hostile), traffic.send(hostile))
    return traffic


def totals(page: Page) -> Locator:
    return page.get_by_role("region", name="Totals")


def figure(page: Page, label: str) -> Locator:
    return page.locator(f'.figures .card:has(dt:text-is("{label}")) .figure')


def test_totals_equal_the_ledger_and_feed_chart_and_table(console: Console, page: Page, traffic: Traffic) -> None:
    console.enter(page, console.admin_key, "Usage")
    entries = traffic.get("/v1/usage?limit=100")["data"]
    cost = sum(entry["cost_usd"] or 0 for entry in entries)
    tokens = sum(entry["prompt_tokens"] or 0 for entry in entries)
    expect(figure(page, "Requests")).to_have_text("5")
    expect(figure(page, "Errors")).to_have_text("1")
    expect(figure(page, "Tokens in")).to_have_text(str(tokens))
    shown_cost = f"${cost:.2g}"
    expect(figure(page, "Cost")).to_have_text(shown_cost)
    expect(totals(page).locator("tfoot")).to_contain_text(shown_cost)
    expect(totals(page).locator("tbody tr")).to_have_count(2)
    expect(totals(page).get_by_role("row", name=MODEL)).to_contain_text("4")
    expect(page.get_by_text(re.compile(r"^From .* until now, in whole hours\.$"))).to_be_visible()
    chart = page.get_by_role("img", name="Cost per hour")
    expect(chart.locator("canvas")).to_be_visible()
    expect(page.locator(".chart .legend")).to_contain_text(MODEL)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("region", name="Cost per hour").locator("tbody tr").first).to_contain_text("$")
    take_screenshot(page, "usage-full")
    assert not find_violations(page)
    totals(page).get_by_role("link", name=MODEL).click()
    expect(page.get_by_role("region", name="Requests").locator("tbody tr")).to_have_count(4)


def test_choices_are_in_the_address_and_another_browser_shows_the_same(
    console: Console, page: Page, context: BrowserContext, traffic: Traffic
) -> None:
    console.enter(page, console.admin_key, "Usage")
    page.get_by_label("Group by").select_option("key")
    page.get_by_label("Show").select_option("requests")
    page.get_by_label("Time range").select_option("7d")
    page.get_by_label("Only key").fill("user")
    page.keyboard.press("Enter")
    expect(figure(page, "Requests")).to_have_text("3")
    other = context.new_page()
    other.goto(page.url)
    expect(figure(other, "Requests")).to_have_text("3")
    expect(other.get_by_role("heading", name="Requests per hour")).to_be_visible()
    expect(totals(other).locator("tbody tr")).to_contain_text(f"user ({console.user_id})")
    expect(other.get_by_label("Only key")).to_have_value("user")


@pytest.mark.parametrize("is_complete", [False, True])
def test_key_that_is_typed_before_the_names_arrive_is_used(
    console: Console, admin_page: Page, traffic: Traffic, is_complete: bool
) -> None:
    held: list[Route] = []
    admin_page.route("**/v1/admin/keys*", lambda route: held.append(route))
    with admin_page.expect_request("**/v1/admin/keys*"):
        console.open(admin_page, "Usage")
    field = admin_page.get_by_label("Only key")
    field.press_sequentially("user")
    if is_complete:
        field.press("Enter")
    held[0].continue_()
    expect(admin_page.locator("datalist option[value='user']")).to_have_count(1)
    expect(field).to_have_value("user")
    if not is_complete:
        field.press("Enter")
    expect(figure(admin_page, "Requests")).to_have_text("3")
    expect(admin_page).to_have_url(re.compile(f"key={console.user_id}"))


@pytest.mark.parametrize(("range", "heading"), [("1h", "Cost per minute"), ("30d", "Cost per day")])
def test_interval_follows_the_range(
    console: Console, admin_page: Page, traffic: Traffic, range: str, heading: str
) -> None:
    console.open(admin_page, "Usage", f"?range={range}")
    expect(admin_page.get_by_role("heading", name=heading)).to_be_visible()
    expect(figure(admin_page, "Requests")).to_have_text("5")


def test_groups_of_a_tag_show_hostile_values_as_text(console: Console, page: Page, traffic: Traffic) -> None:
    console.enter(page, console.admin_key, "Usage")
    page.get_by_label("Group by").select_option("tag")
    expect(page.get_by_text("Which tag?")).to_be_visible()
    page.get_by_label("Tag name").fill("team")
    page.keyboard.press("Enter")
    expect(totals(page).get_by_role("rowheader", name=HOSTILE)).to_be_visible()
    expect(totals(page).get_by_role("rowheader", name="Without this tag")).to_be_visible()
    page.get_by_label("Only tag").fill(f"team={HOSTILE}")
    page.keyboard.press("Enter")
    expect(figure(page, "Requests")).to_have_text("2")
    expect(page).to_have_title("Usage · Console")


def test_download_has_the_points_of_the_page(console: Console, page: Page, traffic: Traffic) -> None:
    console.enter(page, console.admin_key, "Usage")
    page.get_by_label("Group by").select_option("provider")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    assert download.value.suggested_filename.startswith("usage_20")
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
    assert sum(int(row["requests"]) for row in rows) == 5
    assert {row["provider"] for row in rows} == {"openai"}


def test_ordinary_key_sees_its_own_usage(console: Console, page: Page, traffic: Traffic) -> None:
    console.enter(page, console.user_key, "Usage")
    expect(figure(page, "Requests")).to_have_text("3")
    expect(page.get_by_label("Only key")).to_have_count(0)


def test_range_in_the_future_says_so(console: Console, admin_page: Page) -> None:
    console.open(admin_page, "Usage", "?range=custom&since=2099-01-02T03:04:00Z")
    expect(admin_page.get_by_text("The time range begins in the future, at Jan 2, 2099")).to_be_visible()
    start, end = (admin_page.get_by_label(label).bounding_box() for label in ("From", "Until"))
    assert start
    assert end
    assert start["x"] + start["width"] <= end["x"], "a field covers the next one"


def test_range_without_usage_says_so_and_a_wrong_filter_names_its_field(
    console: Console, page: Page, traffic: Traffic
) -> None:
    console.enter(page, console.admin_key, "Usage")
    console.open(page, "Usage", "?range=custom&since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z")
    expect(page.get_by_text("No usage in this time")).to_be_visible()
    console.open(page, "Usage", "?tag=nothing")
    expect(page.get_by_role("alert")).to_contain_text("tag must be NAME:VALUE")


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (3840, "light")])
def test_page_with_usage_fits_the_width(
    console: Console, admin_page: Page, traffic: Traffic, width: int, theme: str
) -> None:
    made = traffic.create_key("W" * 150)
    traffic.wait_for(traffic.send(made["key"]))
    admin_page.set_viewport_size({"width": width, "height": 900})
    admin_page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    console.open(admin_page, "Usage", f"?measure=tokens&by=key&key={made['id']}")
    expect(admin_page.locator("canvas")).to_be_visible()
    take_screenshot(admin_page, f"usage-full-{width}")
    assert not find_violations(admin_page)
    expect_no_horizontal_scrollbar(admin_page)
