"""The page Providers: health, breakers, what is missing, and tests of providers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.console import Console, find_violations, take_screenshot
from tests.e2e import harness
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway that does not retry."""
    with Console(tmp_path_factory.mktemp("providers"), provider, "[routing]\nretries = 0\n") as console:
        yield console


@pytest.fixture(autouse=True)
def fresh(provider: FakeProvider) -> Iterator[None]:
    """Reset the provider after each test."""
    yield
    provider.forget()


def card(page: Page, name: str) -> Locator:
    """Return the card of a provider."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name, exact=True))


def show_models(card: Locator) -> None:
    """Open the models of a provider. Few models are open at once."""
    card.locator("details").evaluate("element => { element.open = true; }")
    expect(card.get_by_role("region")).to_be_visible()


def test_test_of_a_working_provider_shows_its_latency(console: Console, page: Page, provider: FakeProvider) -> None:
    console.enter(page, console.admin_key, "Providers")
    page.get_by_role("button", name="Test now openai").click()
    expect(card(page, "openai")).to_contain_text(re.compile(r"works\. It responded in \d"))
    assert provider.requests
    assert not find_violations(page)
    take_screenshot(page, "providers-test")


@pytest.mark.parametrize(("status", "advice"), [(401, "refuses the API key"), (500, "has a fault")])
def test_test_of_a_failing_provider_says_what_to_do(
    console: Console, page: Page, provider: FakeProvider, status: int, advice: str
) -> None:
    problem = {"error": {"message": "<b>no</b>", "type": "x", "code": "x"}}
    provider.always_plays(answer(status, json.dumps(problem).encode()))
    console.enter(page, console.admin_key, "Providers")
    page.get_by_label("Search").fill(harness.GPT)
    openai = card(page, "openai")
    show_models(openai)
    openai.get_by_role("button", name=f"Test {harness.GPT}", exact=True).click()
    expect(openai).to_contain_text(advice)
    expect(openai).to_contain_text(f"Status {status}")
    assert not find_violations(page)
    take_screenshot(page, f"providers-test-{status}")


def test_failing_model_shows_error_rate_and_open_breaker(console: Console, page: Page, provider: FakeProvider) -> None:
    provider.always_plays(answer(500, b'{"error": {"message": "down"}}'))
    for _ in range(25):
        console.gateway.chat()
    console.enter(page, console.admin_key, "Providers")
    openai = card(page, "openai")
    expect(openai.get_by_text("Degraded")).to_be_visible()
    expect(openai).to_contain_text("100%")
    expect(openai).to_contain_text("Last error")
    show_models(openai)
    row = openai.get_by_role("row").filter(has=page.get_by_role("rowheader", name=harness.GPT, exact=True))
    expect(row.get_by_text("open", exact=True)).to_be_visible()
    take_screenshot(page, "providers-degraded")


def test_provider_without_a_key_names_the_variable(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Providers")
    missing = page.get_by_role("region", name="Without an API key")
    expect(missing.get_by_role("listitem").filter(has_text="groq")).to_contain_text("GROQ_API_KEY")
    page.get_by_label("Search").fill("groq")
    expect(missing.get_by_role("listitem").first).to_contain_text("groq")
    expect(card(page, "openai")).to_have_count(0)
    page.get_by_label("Search").fill("nothing like it")
    expect(page.get_by_text("No provider matches")).to_be_visible()


def test_ordinary_key_gets_no_state_of_providers(console: Console, page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    console.enter(page, console.user_key, "Providers")
    expect(page.get_by_text("This needs the scope admin")).to_be_visible()
    assert not [url for url in requested if "/v1/admin/" in url]
