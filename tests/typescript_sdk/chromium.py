"""Runs the SDK in Chromium: its capabilities, its storage of bundles over reloads, and errors of the microphone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.typescript_sdk.capabilities import Results, check
from tests.typescript_sdk.node import SDK

WAIT = 90_000
"""Milliseconds for a speech model on a busy machine."""
INSECURE_HOST = "page.example"
HTML = '<!doctype html><meta charset="utf-8"><title>Tests</title><script type="module" src="checks.js"></script>'

# Passes some bytes of a bundle on, and then nothing, as a network that was lost.
STALLED_DOWNLOAD = """async ({ registryUrl, bytes }) => {
  const stall = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith(".xyb")) return response;
    let sent = 0;
    const passing = new TransformStream({
      transform(part, controller) {
        if (sent >= bytes) return new Promise(() => {});
        sent += part.length;
        controller.enqueue(part);
      },
    });
    return new Response(response.body.pipeThrough(passing), { status: response.status, headers: response.headers });
  };
  const storage = sdk.opfsStorage("reloads");
  let failure;
  new sdk.Client({ registryUrl, fetch: stall }).bundle("toy@1.0.0", { storage }).catch((error) => (failure = error));
  const file = "toy/1.0.0/any/toy.xyb.partial";
  const end = Date.now() + 60_000;
  while (!((await storage.size(file)) >= bytes)) {
    if (failure) throw failure;
    if (Date.now() > end) throw new Error(`only ${await storage.size(file)} bytes in 60 s`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return storage.size(file);
}"""
CONTINUED_DOWNLOAD = """async ({ registryUrl, publicKey }) => {
  const progress = [];
  const bundle = await new sdk.Client({ registryUrl }).bundle("toy@1.0.0", {
    storage: sdk.opfsStorage("reloads"),
    trustedKeys: [publicKey],
    onProgress: ({ receivedBytes }) => progress.push(receivedBytes),
  });
  return { first: progress[0], files: bundle.files.sort() };
}"""
OTHER_ORIGIN = """async ({ address }) => {
  try {
    await new sdk.Client({ gatewayUrl: address, apiKey: "k", retries: 0 }).chat("Hi");
  } catch ({ name, message }) {
    return { name, message };
  }
}"""
OFFLINE_READ = """async () => {
  const storage = sdk.opfsStorage("reloads");
  const client = new sdk.Client({ registryUrl: "http://127.0.0.1:9", retries: 0 });
  const bundle = await client.bundle("toy@1", { storage });
  const weights = await bundle.read("weights.bin");
  const hash = await crypto.subtle.digest("SHA-256", weights);
  const hex = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { type: bundle.metadata.execution_template.type, hex, names: await storage.list("toy") };
}"""
DAMAGED_DOWNLOAD = """async ({ registryUrl }) => {
  const damage = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith(".xyb")) return response;
    const bytes = new Uint8Array(await response.arrayBuffer());
    bytes[1_000_000] ^= 1;
    return new Response(bytes, { status: 200 });
  };
  const storage = sdk.opfsStorage("damaged");
  try {
    await new sdk.Client({ registryUrl, fetch: damage }).bundle("toy@1.0.0", { storage });
  } catch (error) {
    return { name: error.name, names: await storage.list("toy") };
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
    """Bundle the checks with the package, as an app does, and write the page."""
    command = ["node_modules/.bin/rolldown", "test/platforms/browser.mjs", "--format", "esm", "--platform", "browser"]
    replaced = ["--transform.define", "process.env.NODE_ENV='development'", "--transform.define", "global=globalThis"]
    subprocess.run(
        [*command, *replaced, "--file", str(folder / "checks.js"), "--log-level", "silent"],
        cwd=SDK,
        env=environment,
        check=True,
    )
    (folder / "index.html").write_text(HTML, encoding="utf-8")


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[int]:
    """Serve a folder on a free port. The page has another origin than gateway and registry."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def launch(playwright: Playwright, *options: str) -> Browser:
    """Start Chromium. Its microphone is that of the machine unless the options say otherwise."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "the test needs Chromium: apt-get install chromium"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(
        executable_path=chromium, args=[*sandbox, "--disable-dev-shm-usage", "--disable-gpu", *options]
    )


def run_chromium(environment: Mapping[str, str], variables: Mapping[str, str]) -> Results:
    """Run all checks in Chromium, and return its capabilities."""
    clip = variables["TEST_CLIP"]
    fake = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={clip}%noloop")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        build(environment, folder)
        shutil.copyfile(clip, folder / "clip.wav")
        with serve(folder) as port:
            browser = launch(playwright, *fake, f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1")
            page = _open(browser.new_context(permissions=["microphone"]), f"http://127.0.0.1:{port}/")
            results: list[dict[str, str]] = page.evaluate("(settings) => capabilities(settings)", _settings(variables))
            found = check("Chromium", {each["capability"]: each["result"] for each in results})
            _check_storage(page, variables)
            _check_microphone(_open(browser.new_context(), f"http://127.0.0.1:{port}/"), "PermissionDenied", "Allow it")
            insecure = _open(browser.new_context(), f"http://{INSECURE_HOST}:{port}/")
            _check_microphone(insecure, "UsageError", "https://")
            _check_blocked_origin(page, f"http://{INSECURE_HOST}:{port}")
            browser.close()
            browser = launch(playwright)
            page = _open(browser.new_context(permissions=["microphone"]), f"http://127.0.0.1:{port}/")
            _check_microphone(page, "UsageError", "Connect one")
            browser.close()
    return found


def _settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        "gatewayUrl": variables["TEST_GATEWAY"],
        "key": variables["TEST_KEY"],
        "faults": variables["TEST_FAULTS"],
        "registryUrl": variables["TEST_REGISTRY"],
        "publicKey": variables["TEST_PUBLIC_KEY"],
    }


def _open(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.wait_for_function("() => globalThis.capabilities !== undefined")
    return page


def _check_storage(page: Page, variables: Mapping[str, str]) -> None:
    """A page that is reloaded in the middle of a download continues it, and reads the bundle without a network."""
    settings = _settings(variables)
    before = page.evaluate(STALLED_DOWNLOAD, {**settings, "bytes": 1_000_000})
    _reload(page)
    continued = page.evaluate(CONTINUED_DOWNLOAD, settings)
    assert continued["first"] > before >= 1_000_000, (continued, before)
    assert continued["files"] == ["model_metadata.json", "weights.bin", "words.txt"]
    _reload(page)
    read = page.evaluate(OFFLINE_READ)
    assert read == {"type": "Toy", "hex": variables["TEST_WEIGHTS_SHA256"], "names": ["toy/1.0.0/any/toy.xyb"]}
    assert page.evaluate(DAMAGED_DOWNLOAD, settings) == {"name": "InvalidBundle", "names": []}


def _check_blocked_origin(page: Page, address: str) -> None:
    """A gateway that does not allow the page's origin is an error that names the setting."""
    error = page.evaluate(OTHER_ORIGIN, {"address": address})
    assert error["name"] == "GatewayFailed", error
    assert "cors_origins" in error["message"], error


def _reload(page: Page) -> None:
    page.reload()
    page.wait_for_function("() => globalThis.capabilities !== undefined")


def _check_microphone(page: Page, name: str, advice: str) -> None:
    """The error of the microphone says what to do."""
    error = page.evaluate(MICROPHONE)
    assert error["name"] == name, error
    assert advice in error["message"], error
