"""The page Overview: first steps, live numbers, and what is degraded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.console import Console, expect_no_horizontal_scrollbar, find_violations, take_screenshot, wait_until
from tests.browser.traffic import CONFIG, OTHER_MODEL, Traffic
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway that has never served a request."""
    with Console(tmp_path_factory.mktemp("overview"), provider, CONFIG) as console:
        yield console


@pytest.fixture(scope="module")
def traffic(console: Console, provider: FakeProvider) -> Traffic:
    return Traffic(console, provider)


MAX_FIRST_PAGE_BYTES = 250_000


def figure(page: Page, label: str) -> Locator:
    return page.locator(f'.figures .card:has(dt:text-is("{label}")) .figure')


def test_empty_system_guides_to_the_first_request_and_then_shows_it(
    console: Console, page: Page, context: BrowserContext, traffic: Traffic
) -> None:
    console.enter(page, console.admin_key)
    for link, heading in [
        ("Open the playground", "Playground"),
        ("Open the keys", "Keys"),
        ("Show the lines to paste", "Connect"),
    ]:
        page.get_by_role("link", name=link).click()
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
        page.go_back()
    expect(page.get_by_text("Healthy")).to_be_visible()
    take_screenshot(page, "overview-empty")
    assert not find_violations(page)
    others = [context.new_page() for _ in range(7)]  # a browser has 6 connections for each host
    for tab in others:
        console.open(tab, "Overview")
        expect(tab.get_by_text("Three steps to the first request")).to_be_visible()
    other = others[-1]
    traffic.send(console.user_key)
    traffic.send_failing(console.user_key)
    for tab in (page, other):
        expect(figure(tab, "Requests")).to_have_text("2")
        tab.bring_to_front()
    expect(figure(other, "Errors")).to_have_text("1")
    expect(figure(other, "Latency p99")).to_contain_text("ms")
    expect(other.get_by_role("img", name="2 requests in the last hour")).to_be_visible()


def test_first_page_is_small_over_the_wire(console: Console, admin_page: Page) -> None:
    admin_page.wait_for_function("performance.getEntriesByType('resource').some(({name}) => name.endsWith('.js'))")
    expect(admin_page.locator("[aria-busy=true]")).to_have_count(0)
    sizes: dict[str, int] = admin_page.evaluate(
        """() => Object.fromEntries(
          ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
            .filter(({name}) => name.includes("/console/")).map(({name, transferSize}) => [name, transferSize]))"""
    )
    assert any(name.endswith(".css") for name in sizes)
    assert 0 < sum(sizes.values()) <= MAX_FIRST_PAGE_BYTES, sizes


def test_ordinary_key_sees_its_own_numbers(console: Console, page: Page, traffic: Traffic) -> None:
    key = traffic.create_key("own")["key"]
    console.enter(page, key)
    expect(page.get_by_text("Look at your key")).to_be_visible()
    traffic.send(key)
    expect(figure(page, "Requests")).to_have_text("1")
    expect(page.get_by_text("in flight")).to_have_count(0)
    expect(page.get_by_text("also sees the health of the gateway")).to_be_visible()
    expect(page.get_by_text("Healthy")).to_have_count(0)


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1280, "light"), (3840, "light")])
def test_page_with_numbers_fits_the_width(
    console: Console, admin_page: Page, traffic: Traffic, width: int, theme: str
) -> None:
    traffic.send(console.user_key)
    admin_page.set_viewport_size({"width": width, "height": 900})
    admin_page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    console.open(admin_page, "Overview")
    expect(admin_page.locator("canvas")).to_be_visible()
    take_screenshot(admin_page, f"overview-full-{width}")
    assert not find_violations(admin_page)
    expect_no_horizontal_scrollbar(admin_page)


def test_failing_provider_is_named_with_what_to_do(console: Console, admin_page: Page, traffic: Traffic) -> None:
    for _ in range(24):
        traffic.send_failing(console.user_key)
    wait_until(
        lambda: "open" in {m["breaker"] for p in traffic.get("/v1/admin/providers")["data"] for m in p["models"]}
    )
    console.open(admin_page, "Overview")
    degraded = admin_page.get_by_role("region", name="Degraded")
    expect(degraded).to_contain_text("its circuit breaker is open")
    take_screenshot(admin_page, "overview-degraded")
    assert not find_violations(admin_page)
    degraded.get_by_role("link", name="Test the provider").click()
    expect(admin_page.get_by_role("heading", name="Providers", level=1)).to_be_visible()


def test_numbers_stay_while_the_gateway_is_gone_and_it_recovers(
    console: Console, page: Page, traffic: Traffic, provider: FakeProvider
) -> None:
    key = traffic.create_key("stays")["key"]
    provider.forget()
    traffic.wait_for(traffic.send(key, OTHER_MODEL))  # the breaker of MODEL can be open
    console.enter(page, key)
    expect(figure(page, "Requests")).to_have_text("1")
    console.gateway.keep_port()
    console.gateway.stop()
    expect(page.get_by_role("alert")).to_contain_text("last known numbers")
    expect(figure(page, "Requests")).to_have_text("1")
    console.restart()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_visible_tab_is_live_again_although_a_hidden_tab_reads_the_stream(
    console: Console, page: Page, context: BrowserContext, traffic: Traffic, provider: FakeProvider
) -> None:
    provider.forget()
    key = traffic.create_key("two tabs")["key"]
    traffic.wait_for(traffic.send(key, OTHER_MODEL))
    console.enter(page, key)  # the first tab reads the stream
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    # Chromium slows the timers of a tab down that has been hidden for minutes.
    page.evaluate("window.setTimeout = () => 0")
    second = context.new_page()
    console.open(second, "Overview")
    expect(second.get_by_text("Live", exact=True)).to_be_visible()
    console.gateway.keep_port()
    console.gateway.stop()
    expect(second.get_by_text("Polling", exact=True)).to_be_visible()
    console.restart()
    expect(second.get_by_text("Live", exact=True)).to_be_visible()
