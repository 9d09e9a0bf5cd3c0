"""The labels of charts, which are drawn on a canvas."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console
from tests.browser.test_request_list import add_requests

pytestmark = pytest.mark.slow

DRAWN_TEXTS = """
  window.drawnTexts = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.drawnTexts.push(text);
    return draw.call(this, text, ...place);
  };
"""


def test_axis_of_costs_is_not_rounded_to_cents(console: Console, page: Page) -> None:
    add_requests(console, "axis", 1, model="axis", cost_usd=0.02)
    page.add_init_script(DRAWN_TEXTS)
    console.enter(page, console.admin_key, "Usage")
    console.open(page, "Usage", "?model=axis")
    expect(page.locator(".chart canvas")).to_be_visible()
    assert {"$0", "$0.005", "$0.01", "$0.015", "$0.02"} <= set(page.evaluate("window.drawnTexts"))
