"""Runs the SDK in Chromium: its capabilities, its storage of bundles, and errors of the microphone."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.typescript_sdk.browser import launch, open_checks, serve
from tests.typescript_sdk.capabilities import Results, check
from tests.typescript_sdk.node import SDK
from tests.typescript_sdk.opfs import STRICT_PAGE, STRICT_POLICY, check_storage

INSECURE_HOST = "page.example"
HTML = '<!doctype html><meta charset="utf-8"><title>Tests</title>{}<script type="module" src="checks.js"></script>'
OTHER_ORIGIN = """async ({ address }) => {
  try {
    await new sdk.Client({ gatewayUrl: address, apiKey: "k", retries: 0 }).chat("Hi");
  } catch ({ name, message }) {
    return { name, message };
  }
}"""
MICROPHONE = """async () => {
  try {
    (await sdk.microphone()).stop();
    return { name: "none", message: "" };
  } catch ({ name, message }) {
    return { name, message };
  }
}"""


def build(environment: Mapping[str, str], folder: Path) -> None:
    """Bundle the checks with the package, as an app does, and write the pages."""
    command = ["node_modules/.bin/rolldown", "test/platforms/browser.mjs", "--format", "esm", "--platform", "browser"]
    replaced = ["--transform.define", "process.env.NODE_ENV:'development'", "--transform.define", "global:globalThis"]
    subprocess.run(
        [*command, *replaced, "--file", str(folder / "checks.js"), "--log-level", "silent"],
        cwd=SDK,
        env=environment,
        check=True,
    )
    (folder / "index.html").write_text(HTML.format(""), encoding="utf-8")
    (folder / STRICT_PAGE).write_text(HTML.format(STRICT_POLICY), encoding="utf-8")


def run_chromium(environment: Mapping[str, str], variables: Mapping[str, str]) -> Results:
    """Run all checks in Chromium, and return its capabilities."""
    clip = variables["TEST_CLIP"]
    fake = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={clip}%noloop")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        build(environment, folder)
        shutil.copyfile(clip, folder / "clip.wav")
        with serve(folder) as port:
            address = f"http://127.0.0.1:{port}/"
            browser = launch(playwright, *fake, f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1")
            page = open_checks(browser.new_context(permissions=["microphone"]), address)
            results: list[dict[str, str]] = page.evaluate("(settings) => capabilities(settings)", _settings(variables))
            found = check("Chromium", {each["capability"]: each["result"] for each in results})
            _check_microphone(open_checks(browser.new_context(), address), "PermissionDenied", "Allow it")
            insecure = open_checks(browser.new_context(), f"http://{INSECURE_HOST}:{port}/")
            _check_microphone(insecure, "UsageError", "https://")
            _check_blocked_origin(page, f"http://{INSECURE_HOST}:{port}")
            browser.close()
            browser = launch(playwright)
            page = open_checks(browser.new_context(permissions=["microphone"]), address)
            _check_microphone(page, "UsageError", "Connect one")
            browser.close()
            check_storage(playwright, address, variables)
    return found


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        "gatewayUrl": variables["TEST_GATEWAY"],
        "key": variables["TEST_KEY"],
        "faults": variables["TEST_FAULTS"],
        "registryUrl": variables["TEST_REGISTRY"],
        "publicKey": variables["TEST_PUBLIC_KEY"],
    }


def _check_blocked_origin(page: Page, address: str) -> None:
    """A gateway that does not allow the page's origin is an error that names the setting."""
    error = page.evaluate(OTHER_ORIGIN, {"address": address})
    assert error["name"] == "GatewayFailed", error
    assert "cors_origins" in error["message"], error


def _check_microphone(page: Page, name: str, advice: str) -> None:
    """The error of the microphone says what to do."""
    error = page.evaluate(MICROPHONE)
    assert error["name"] == name, error
    assert advice in error["message"], error
