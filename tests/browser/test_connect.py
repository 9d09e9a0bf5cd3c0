"""The page Connect: the lines are those of the documentation, and they work with the key that the page makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console, find_violations, take_screenshot
from tests.documentation.pages import blocks
from tests.fakes.provider import FakeProvider

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "Claude Code": "how-to/use-claude-code.md",
    "Codex": "how-to/use-codex.md",
    "opencode": "how-to/use-opencode.md",
    "openai-python": "how-to/use-openai-python.md",
    "openai-node": "how-to/use-openai-node.md",
    "Anthropic, Python": "how-to/use-anthropic-python.md",
    "Anthropic, TypeScript": "how-to/use-anthropic-typescript.md",
    "LangChain": "how-to/use-langchain.md",
    "Vercel AI SDK": "how-to/use-the-vercel-ai-sdk.md",
    "curl": "how-to/call-the-api-with-curl.md",
    "svc, Python": "reference/sdk.md",
}
MODELS = re.compile(r"claude-[a-z0-9-]+|gpt-[a-z0-9.-]+|smollm2-135m")


def normal_lines(code: str, address: str) -> set[str]:
    """Return the lines of code with the same address, key and model."""
    code = (
        code.replace(address, "http://ADDRESS").replace("$(cat ~/.svc/api_key)", "KEY").replace("YOUR_API_KEY", "KEY")
    )
    return {line.strip() for line in MODELS.sub("MODEL", code).splitlines() if line.strip()}


def documented_lines(page: str) -> set[str]:
    fences = [block.text for block in blocks((DOCS / page).read_text(encoding="utf-8")) if block.kind == "fence"]
    return normal_lines("\n".join(fences), "http://127.0.0.1:3000")


@pytest.fixture
def connect(console: Console, page: Page) -> Page:
    console.enter(page, console.admin_key, "Connect")
    expect(page.get_by_role("heading", name="1. Choose the client")).to_be_visible()
    return page


def code_on(page: Page) -> list[str]:
    expect(page.locator(".code-part pre").first).to_be_visible()
    return list(page.locator(".code-part pre").all_inner_texts())


def test_lines_of_each_client_are_those_of_the_documentation(console: Console, connect: Page) -> None:
    clients = connect.get_by_role("region", name="1. Choose the client").get_by_role("button")
    expect(clients).to_have_text(list(PAGES))
    for name, page in PAGES.items():
        connect.get_by_role("button", name=name, exact=True).click()
        expect(connect.get_by_role("heading", name=f"3. Paste the lines for {name}")).to_be_visible()
        unknown = normal_lines("\n".join(code_on(connect)), console.gateway.url) - documented_lines(page)
        assert not unknown, f"{name}: not in docs/{page}"
        assert console.gateway.url in "\n".join(code_on(connect))


def test_key_with_budget_is_made_and_works_in_the_lines(
    console: Console, connect: Page, provider: FakeProvider, tmp_path: Path
) -> None:
    connect.get_by_role("button", name="openai-python").click()
    connect.get_by_label("Name").fill("from the page")
    connect.get_by_label("Budget in USD").fill("nothing")
    connect.get_by_role("button", name="Make a key").click()
    expect(connect.get_by_text("Enter an amount above 0")).to_be_visible()
    connect.get_by_label("Budget in USD").fill("1")
    connect.get_by_label("Models", exact=True).fill("gpt-4o-mini")
    connect.get_by_label("Models", exact=True).press("Enter")
    connect.get_by_role("button", name="Make a key").click()
    expect(connect.get_by_role("region", name="API key")).to_contain_text("svc_")
    secret = connect.get_by_role("region", name="API key").inner_text()
    assert secret.startswith("svc_")
    assert not find_violations(connect)
    take_screenshot(connect, "connect-key")

    connect.get_by_role("button", name="Test the key").click()
    expect(connect.get_by_role("status").filter(has_text="It works")).to_contain_text("gpt-4o-mini answered in")

    setup, program = code_on(connect)
    assert f"export SVC_API_KEY={secret}" in setup
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SVC_API_KEY": secret},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert provider.requests[-1].json["model"] == "gpt-4o-mini"

    keys = console.gateway.request("GET", "/v1/admin/keys", key=console.admin_key).json["data"]
    (made,) = [key for key in keys if key["name"] == "from the page"]
    assert (made["budget_usd"], made["budget_period"], made["models"]) == (1.0, "total", ["gpt-4o-mini"])
    connect.reload()
    expect(connect.get_by_role("heading", name="1. Choose the client")).to_be_visible()
    assert secret not in connect.content() + connect.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")


def test_ordinary_key_gets_a_placeholder(console: Console, page: Page) -> None:
    console.enter(page, console.user_key, "Connect")
    expect(page.get_by_text("Only a key with the scope admin makes others")).to_be_visible()
    expect(page.get_by_role("button", name="Make a key")).to_have_count(0)
    page.get_by_role("button", name="curl").click()
    expect(page.locator(".code-part pre").first).to_have_text("export SVC_API_KEY=YOUR_API_KEY")
    expect(page).to_have_url(re.compile("client=curl$"))
    page.reload()
    expect(page.get_by_role("heading", name="3. Paste the lines for curl")).to_be_visible()


def test_refused_key_form_keeps_the_input_and_says_why(connect: Page) -> None:
    connect.get_by_label("Name").fill("   ")
    connect.get_by_role("button", name="Make a key").click()
    expect(connect.get_by_role("alert")).to_be_visible()
    expect(connect.get_by_role("button", name="Make a key")).to_be_enabled()
