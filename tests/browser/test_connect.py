"""The page Connect: the lines are those of the documentation, and they work with the key that the page makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.console import Console, find_violations, take_screenshot
from tests.documentation.pages import blocks
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow

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
    "svc SDK, Python": "reference/sdk.md",
    "svc SDK, TypeScript": "how-to/use-the-typescript-sdk.md",
}
MODELS = re.compile(r"claude-[a-z0-9-]+|gpt-[a-z0-9.-]+|smollm2-135m")

LIMITS = re.compile(r'"context": \d+, "output": \d+')
UNLIMITED = "model-without-limits"
CONFIG = f'''
[[providers]]
name = "plain"
dialect = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key_env = "HOME"
models = [{{ id = "{UNLIMITED}" }}]
'''


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway with a model whose maximum output is unknown, and providers without a key."""
    with Console(tmp_path_factory.mktemp("connect"), provider, CONFIG) as console:
        yield console


def normal_lines(code: str, address: str) -> set[str]:
    """Return the lines of code with the same address, key and model."""
    code = (
        code.replace(address, "http://ADDRESS").replace("$(cat ~/.svc/api_key)", "KEY").replace("YOUR_API_KEY", "KEY")
    )
    code = LIMITS.sub('"context": N, "output": N', MODELS.sub("MODEL", code))
    return {line.strip() for line in code.splitlines() if line.strip()}


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
    expect(page.get_by_text("Only a key with the scope admin can make others")).to_be_visible()
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


def test_models_are_those_of_providers_with_a_key_and_opencode_gets_their_limits(
    console: Console, connect: Page
) -> None:
    listed = console.gateway.request("GET", "/v1/models", key=console.admin_key).json["data"]
    chat = {model["id"]: model for model in listed if model.get("kind", "chat") == "chat"}
    choice = connect.get_by_label("Model", exact=True)
    expect(choice.locator("option")).to_have_text(list(chat))
    assert not [name for name in chat if "llama" in name]
    connect.get_by_role("button", name="opencode").click()
    choice.select_option("gpt-4o")
    known = chat["gpt-4o"]
    limits = f'"limit": {{ "context": {known["context_window"]}, "output": {known["max_output_tokens"]} }}'
    expect(connect.locator(".code-part pre").first).to_contain_text(limits)
    choice.select_option(UNLIMITED)
    expect(connect.locator(".code-part pre").first).to_contain_text(f'"models": {{ "{UNLIMITED}": {{}} }}')


def test_existing_key_completes_the_lines_and_is_kept_in_memory_alone(
    console: Console, connect: Page, provider: FakeProvider, tmp_path: Path
) -> None:
    narrow = console.create_key("narrow", "--scope", "chat", "--models", "gpt-4o")["key"]
    connect.get_by_role("button", name="svc SDK, Python").click()
    connect.get_by_label("Use a key that exists").check()
    field = connect.get_by_label("Existing API key")
    field.fill("svc_sk_wrong")
    field.press("Enter")
    expect(connect.get_by_role("alert")).to_contain_text("not valid")
    assert not find_violations(connect)
    field.fill(f" {narrow} ")
    field.press("Enter")
    expect(connect.get_by_text("The gateway accepts the key. It may use one chat model.")).to_be_visible()
    expect(connect.get_by_role("alert")).to_have_count(0)
    expect(connect.get_by_label("Model", exact=True).locator("option")).to_have_text(["gpt-4o"])
    setup, program = code_on(connect)
    assert f"export SVC_API_KEY={narrow}\n" in f"{setup}\n"
    take_screenshot(connect, "connect-existing-key")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(tmp_path),
            "SVC_API_KEY": narrow,
            "SVC_GATEWAY_URL": f"{console.gateway.url}/v1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert provider.requests[-1].json["model"] == "gpt-4o"
    assert narrow not in connect.url + connect.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    connect.reload()
    expect(connect.get_by_role("heading", name="1. Choose the client")).to_be_visible()
    connect.get_by_label("Use a key that exists").check()
    expect(connect.get_by_label("Existing API key")).to_have_value("")


def test_key_without_a_usable_model_is_told_so(console: Console, page: Page) -> None:
    key = console.create_key("no-model", "--scope", "chat", "--models", "llama-3.1-8b-instant")["key"]
    console.enter(page, key, "Connect")
    page.get_by_role("button", name="curl").click()
    expect(page.get_by_text("This gateway has no chat model that you may use")).to_be_visible()
    expect(page.get_by_label("Model", exact=True)).to_have_count(0)
    expect(page.get_by_text("Replace YOUR_API_KEY and YOUR_MODEL")).to_be_visible()
    assert "YOUR_MODEL" in "\n".join(code_on(page))
    page.get_by_label("Existing API key").fill(console.user_key)
    page.get_by_label("Existing API key").press("Enter")
    expect(page.get_by_label("Model", exact=True)).to_be_visible()
    expect(page.get_by_text("YOUR_MODEL")).to_have_count(0)


def test_new_key_stays_when_the_models_are_loaded_again(console: Console, page: Page) -> None:
    page.route("**/v1/models", lambda route: route.fulfill(status=500, json={"error": {"message": "The test fails."}}))
    console.enter(page, console.admin_key, "Connect")
    page.get_by_role("button", name="Make a key").click()
    expect(page.get_by_role("region", name="API key")).to_contain_text("svc_sk_")
    secret = page.get_by_role("region", name="API key").inner_text()
    page.unroute("**/v1/models")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_label("Model", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="API key")).to_have_text(secret)
