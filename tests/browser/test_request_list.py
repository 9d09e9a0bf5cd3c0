"""The list of the page Requests while many requests arrive. The entries are written to the gateway's database."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from svc.stores.database.base import StoredKey
from svc.stores.database.factory import open_database
from tests.browser.console import Console
from tests.contracts.test_database import make_entry

pytestmark = pytest.mark.slow

MAX_TAIL_ROWS = 1000
MAX_ROWS = 2000
PAGE_ROWS = 50
LISTED_KEYS = 1000
"""The keys among which the page looks for a name before it asks the gateway."""
RETRY_MILLISECONDS = 2600
"""A little more than the time after which the page loads again after an error."""


def add_requests(console: Console, key_id: str, count: int, **fields: object) -> None:
    """Add entries of the last milliseconds to the ledger."""
    newest_ms = int(time.time() * 1000)
    entries = [
        make_entry(
            f"req_{uuid.uuid4().hex[:24]}",
            time=datetime.fromtimestamp((newest_ms - age) / 1000, UTC).isoformat(timespec="milliseconds")[:23] + "Z",
            key_id=key_id,
            **fields,
        )
        for age in range(count)
    ]
    with contextlib.closing(open_database(f"sqlite:///{console.home / 'svc' / 'svc.db'}")) as database:
        assert database.insert_entries(entries) == count


def add_keys(console: Console, names: dict[str, str]) -> None:
    """Add keys by their ids to the gateway's database."""
    with contextlib.closing(open_database(f"sqlite:///{console.home / 'svc' / 'svc.db'}")) as database:
        for id, name in names.items():
            database.put_key(StoredKey(id=id, name=name, prefix="svc_sk_x", digest=id, created=time.time()))


def open_list(console: Console, page: Page, query: str) -> Locator:
    """Open the page with a query, and return the rows."""
    console.enter(page, console.admin_key, "Requests")
    console.open(page, "Requests", query)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    return page.get_by_role("region", name="Requests").locator("tbody tr")


def test_request_list_many_requests_at_once_shows_them_all(console: Console, page: Page) -> None:
    add_requests(console, "many", 60)
    rows = open_list(console, page, "?key=many")
    expect(rows).to_have_count(PAGE_ROWS)
    add_requests(console, "many", 600)
    expect(rows).to_have_count(PAGE_ROWS + 600)
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(60 + 600)


def test_request_list_more_requests_than_it_adds_offers_the_newest(console: Console, page: Page) -> None:
    rows = open_list(console, page, "?key=behind&live=off")
    expect(page.get_by_text("No request matches")).to_be_visible()
    add_requests(console, "behind", MAX_TAIL_ROWS + 1)
    expect(page.get_by_text("There are more new requests than can be added to this list.")).to_be_visible()
    expect(rows).to_have_count(0)
    page.get_by_role("button", name="Show the newest").click()
    expect(rows).to_have_count(PAGE_ROWS)
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(2 * PAGE_ROWS)


def test_request_list_full_loads_the_rows_that_were_cut_off(console: Console, page: Page) -> None:
    add_requests(console, "full", MAX_ROWS + 40)
    page.route(
        lambda url: "cursor=" in url or "until=" in url,
        lambda route: route.continue_(url=f"{route.request.url}&limit=500"),  # fewer responses
    )
    rows = open_list(console, page, "?key=full")
    more = page.get_by_role("button", name="Load more")
    for loaded in (550, 1050, 1550, MAX_ROWS + 40):
        more.click()
        expect(rows).to_have_count(loaded)
    expect(more).to_have_count(0)
    page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
    add_requests(console, "full", 1)
    expect(rows).to_have_count(MAX_ROWS)
    more.click()
    expect(rows).to_have_count(MAX_ROWS + 41)
    expect(more).to_have_count(0)


def test_numbers_german_viewer_have_the_same_format(console: Console, browser: Browser) -> None:
    add_requests(console, "german", 1, cost_usd=2.4e-8, latency_ms=1500, prompt_tokens=6450)
    with contextlib.closing(browser.new_context(locale="de-DE")) as context:
        page = context.new_page()
        row = open_list(console, page, "?key=german")
        for text in ("0,000000024 $", "1,50 s", "6.450"):
            expect(row).to_contain_text(text)
        console.open(page, "Usage", "?key=german")
        group = page.get_by_role("region", name="Totals").locator("tbody tr")
        for text in ("0,000000024 $", "100,0 %", "6.450"):
            expect(group).to_contain_text(text)


def test_key_filter_name_beyond_the_listed_keys_is_found(console: Console, page: Page) -> None:
    listed = {f"key_0{number:04}": f"listed {number}" for number in range(LISTED_KEYS)}
    add_keys(console, {**listed, "key_00007": "twin", "key_zzz1": "twin", "key_zzz2": "last"})
    add_requests(console, "key_zzz2", 3)
    add_requests(console, "key_00007", 2)
    rows = open_list(console, page, "")
    field = page.get_by_label("Key", exact=True)
    expect(page.locator("datalist option[value='listed 5 (key_00005)']")).to_have_count(1)
    field.fill("last")
    field.press("Enter")
    expect(rows).to_have_count(3)
    expect(field).to_have_value("last (key_zzz2)")
    assert page.url.endswith("key=key_zzz2")
    field.fill("twin")
    field.press("Enter")
    expect(page.get_by_text("2 keys have this name. Enter the id of one: key_00007, key_zzz1")).to_be_visible()
    expect(rows).to_have_count(0)
    field.fill("key_00007")
    field.press("Enter")
    expect(rows).to_have_count(2)
    field.fill("nobody")
    field.press("Enter")
    expect(page.get_by_text("No key has this name or id.")).to_be_visible()


def abort(route: Route) -> None:
    route.abort()


def respond_500(route: Route) -> None:
    route.fulfill(status=500, json={"error": {"message": "The test fails.", "code": "internal_error"}})


def respond_with_cut_json(route: Route) -> None:
    route.fulfill(status=200, content_type="application/json", body='{"object":"list","data":[')


@pytest.mark.parametrize("fail", [abort, respond_500, respond_with_cut_json])
def test_request_list_filter_fails_shows_no_other_rows_and_recovers(
    console: Console, page: Page, fail: Callable[[Route], None]
) -> None:
    model = f"filter-{fail.__name__}"
    add_requests(console, "filter", 3, model=model)
    add_requests(console, "filter", 1, model=model, status="error")
    rows = open_list(console, page, f"?model={model}")
    expect(rows).to_have_count(4)
    page.route(re.compile(r"/v1/requests\?"), fail)
    page.get_by_label("Status", exact=True).select_option("error")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(rows).to_have_count(0)
    page.unroute(re.compile(r"/v1/requests\?"))
    expect(rows).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_request_list_tail_fails_says_so_and_recovers(console: Console, page: Page) -> None:
    add_requests(console, "tail", 2, model="tail")
    rows = open_list(console, page, "?model=tail")
    expect(rows).to_have_count(2)
    page.route(re.compile(r"/v1/requests\?"), respond_500)
    expect(page.get_by_role("alert")).to_contain_text("The test fails.")
    expect(page.get_by_text("New requests are missing.")).to_be_visible()
    expect(rows).to_have_count(2)
    add_requests(console, "tail", 1, model="tail")
    page.unroute(re.compile(r"/v1/requests\?"))
    expect(rows).to_have_count(3)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_request_list_first_page_is_slow_after_an_error_is_awaited(console: Console, page: Page) -> None:
    add_requests(console, "slow", 2, model="slow")
    console.enter(page, console.admin_key, "Requests")
    page.clock.install()
    path = re.compile(r"/v1/requests\?")
    page.route(path, abort)
    console.open(page, "Requests", "?model=slow")
    expect(page.get_by_role("alert")).to_be_visible()
    page.unroute(path)
    held: list[Route] = []
    page.route(path, lambda route: held.append(route))
    with page.expect_request(path):
        page.clock.run_for(RETRY_MILLISECONDS)
    page.clock.run_for(2 * RETRY_MILLISECONDS)
    held[0].continue_()
    expect(page.get_by_role("region", name="Requests").locator("tbody tr")).to_have_count(2)


def test_request_list_session_ends_during_a_filter_loads_after_the_login(console: Console, page: Page) -> None:
    add_requests(console, "login", 2, model="login")
    rows = open_list(console, page, "?model=login")
    expect(rows).to_have_count(2)
    held: list[Route] = []
    page.route(re.compile(r"/v1/requests\?.*status=ok"), lambda route: held.append(route))
    page.get_by_label("Status", exact=True).select_option("ok")
    while not held:  # without this order, the page could notice the end of the session before the filter changes
        page.wait_for_timeout(20)
    page.context.clear_cookies()
    for route in held:
        route.continue_()
    page.unroute_all()
    page.get_by_label("API key").fill(console.admin_key)
    page.get_by_role("button", name="Log in").click()
    expect(rows).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)
