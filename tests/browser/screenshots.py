"""Takes the screenshots of the documentation: `make screenshots`. A real gateway, and traffic to scripted providers."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.console import PAGES, Console
from tests.chromium import CHROMIUM, HEADLESS_SHELL, find_chromium
from tests.e2e.accounts.test_admin_bundles import make_bundle
from tests.e2e.harness import provider_environment
from tests.fakes import openai_wire
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, reset, sse
from tests.speech import material

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "console"
SIZE = {"width": 1280, "height": 800}
MODELS = ("gpt-4o-mini", "gpt-4o", "claude-3-5-sonnet-20241022")
BUNDLES = (("keyword-spotter", "1.4.0"), ("keyword-spotter", "1.5.0"), ("intent-classifier", "0.9.2"))
ANSWER = "A gateway is one address in front of many models: it keeps keys, limits and costs in one place."
QUERIES = {"Requests": "?range=1h", "Usage": "?range=24h"}


def main() -> int:
    try:
        program = find_chromium(HEADLESS_SHELL, CHROMIUM)
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as console, sync_playwright() as playwright:
        make_traffic(console)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        console.log_in(page, console.admin_key)
        for name in PAGES:
            take(console, page, name)
        browser.close()
    return 0


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Console]:
    registry = folder / "registry"
    shutil.copytree(material.make_voices(), registry, symlinks=True)
    with (
        FakeProvider(OpenAIWire(), key="sk-upstream-a-secret") as openai,
        FakeProvider(AnthropicWire(), key="sk-ant-upstream-b-secret") as anthropic,
    ):
        fakes = {"B": anthropic}
        environment = {**provider_environment(fakes), "SVC_REGISTRY_ROOT": str(registry)}
        with Console(folder, openai, "[routing]\nretries = 1\n", environment) as console:
            yield console


def make_traffic(console: Console) -> None:
    """Send requests of three keys: most succeed, some fail, some are refused."""
    chance = random.Random(7)
    keys = [
        console.create_key("mobile-app", "--budget-usd", "20", "--budget-period", "day", "--tag", "team=mobile"),
        console.create_key("web", "--rpm", "600", "--tag", "team=web"),
        console.create_key("nightly-reports", "--rpm", "12", "--tpm", "200000", "--tag", "team=data"),
    ]
    for number in range(90):
        if number % 17 == 5:
            overloaded = answer(503, openai_wire.error("The provider is overloaded.", "server_error"))
            console.provider.plays(overloaded, overloaded)
        elif number % 29 == 7:
            console.provider.plays(sse(openai_wire.stream("This answer ends in the")[:4], end=reset()))
        key = chance.choice(keys)["key"]
        stream = number % 29 == 7 or chance.random() < 0.5
        model = MODELS[0] if number % 29 == 7 else chance.choice(MODELS)
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "What is a gateway?"}]}
        console.gateway.request("POST", "/v1/chat/completions", body, key=key)
    for model_id, version in (
        ("keyword-spotter", "1.4.0"),
        ("keyword-spotter", "1.5.0"),
        ("intent-classifier", "0.9.2"),
    ):
        path = f"/v1/admin/bundles/{model_id}/{version}/any"
        bundle = make_bundle(model_id, version, os.urandom(300_000), description="A small model for devices")
        console.gateway.request("PUT", path, bundle, key=console.admin_key)


def take(console: Console, page: Page, name: str) -> None:
    console.open(page, name, QUERIES.get(name, ""))
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    if name == "Playground":
        ask(console, page)
    page.wait_for_timeout(1500)
    page.screenshot(path=FOLDER / f"{name.lower()}.png")


def ask(console: Console, page: Page) -> None:
    """Put one question to two models, so that the page has their answers."""
    console.provider.plays(sse(openai_wire.stream(ANSWER), every=0.05), sse(openai_wire.stream(ANSWER), every=0.08))
    page.get_by_role("button", name="Add a model").click()
    page.get_by_label("Prompt", exact=True).fill("What is a gateway?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_text("Complete", exact=True)).to_have_count(2)
    expect(page.locator("dd", has_text="$0.0")).to_have_count(2)


if __name__ == "__main__":
    sys.exit(main())
