"""Every page as an admin and as an ordinary key, in both themes and at several widths."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import PAGES, Console, expect_no_horizontal_scrollbar, find_violations, take_screenshot


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pages_have_no_accessibility_violations(console: Console, admin_page: Page, theme: str) -> None:
    admin_page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    problems = {}
    for name in PAGES:
        admin_page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(admin_page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(admin_page.locator("[aria-busy=true]")).to_have_count(0)
        take_screenshot(admin_page, f"{name.lower()}-{theme}")
        if violations := find_violations(admin_page):
            problems[name] = violations
    assert not problems


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 3840])
def test_pages_fit_the_width(console: Console, admin_page: Page, width: int) -> None:
    admin_page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES:
        console.open(admin_page, name)
        expect(admin_page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(admin_page.locator("[aria-busy=true]")).to_have_count(0)
        take_screenshot(admin_page, f"{name.lower()}-{width}")
        expect_no_horizontal_scrollbar(admin_page)


def test_pages_of_an_ordinary_key_show_no_error(console: Console, page: Page) -> None:
    console.enter(page, console.user_key)
    for name in PAGES:
        page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
        take_screenshot(page, f"{name.lower()}-user")
