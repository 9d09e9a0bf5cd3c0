"""Colors that carry information in a browser with forced colors, such as the high contrast of Windows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.console import Console
from tests.browser.test_request_list import add_requests

pytestmark = pytest.mark.slow

COUNT_PIXELS = """(canvas, color) => {
  const wanted = color.match(/\\d+/g).map(Number);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (wanted.every((value, index) => data[at + index] === value) && data[at + 3] === 255) count += 1;
  }
  return count;
}"""


@pytest.fixture(params=["light", "dark"])
def forced_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open a tab with forced colors."""
    with contextlib.closing(browser.new_context(forced_colors="active", color_scheme=request.param)) as context:
        yield context.new_page()


def color_of(element: Locator, name: str = "background-color") -> str:
    return str(element.evaluate("(element, name) => getComputedStyle(element).getPropertyValue(name)", name))


def test_forced_colors_chart_has_the_colors_of_its_legend(console: Console, forced_page: Page) -> None:
    page = forced_page
    add_requests(console, "one", 3, model="model-one")
    add_requests(console, "one", 2, model="model-two")
    console.enter(page, console.admin_key, "Usage")
    canvas = page.locator(".chart canvas")
    expect(canvas).to_be_visible()
    swatches = page.locator(".legend .swatch")
    expect(swatches).to_have_count(2)
    colors = [color_of(swatch) for swatch in swatches.all()]
    assert len({*colors, color_of(page.locator("body"))}) == 3
    assert all(canvas.evaluate(COUNT_PIXELS, color) > 100 for color in colors)


def test_forced_colors_chosen_button_and_tab_differ_from_the_others(console: Console, forced_page: Page) -> None:
    page = forced_page
    console.enter(page, console.admin_key, "Connect")
    chosen, other = (page.locator(f"button[aria-pressed={state}]").first for state in ("true", "false"))
    assert color_of(chosen) != color_of(other)
    assert color_of(chosen, "color") != color_of(chosen)
    console.open(page, "Speech")
    selected, unselected = (page.locator(f"[role=tab][aria-selected={state}]").first for state in ("true", "false"))
    assert color_of(selected, "border-bottom-color") != color_of(unselected, "border-bottom-color")
