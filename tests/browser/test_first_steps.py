"""An administrator creates a key, sends a prompt, and sees its request and cost."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.console import Console
from tests.browser.test_keys import read_secret
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse


def open_page(page: Page, name: str) -> None:
    """Follow the link to a page."""
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_created_key_sends_a_prompt_and_its_request_and_cost_are_shown(
    console: Console, admin_page: Page, provider: FakeProvider
) -> None:
    page = admin_page
    expect(page.get_by_text("Three steps to the first request")).to_be_visible()
    open_page(page, "Keys")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("first-app")
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    secret = read_secret(page)
    page.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    console.log_in(page, secret, "Playground")
    provider.always_plays(sse(openai_wire.stream("The answer is **42**.")))
    page.get_by_label("Prompt", exact=True).fill("What is the answer?")
    page.get_by_label("Prompt", exact=True).press("Enter")
    response = page.get_by_role("article", name="Answer of gpt-4o", exact=True)
    expect(response).to_contain_text("The answer is 42.")
    expect(response).to_contain_text("Complete")
    assert provider.requests[-1].json["messages"][-1]["content"] == "What is the answer?"
    open_page(page, "Requests")
    expect(page.get_by_role("row").filter(has_text="gpt-4o")).to_contain_text("OK")
    open_page(page, "Usage")
    for label, value in (("Requests", "1"), ("Cost", "$0.000098")):
        expect(page.locator(f'.figures .card:has(dt:text-is("{label}")) .figure')).to_have_text(value)
