"""Checks how Chromium stores bundles: over reloads and crashes, with two pages, and on a page that allows no worker."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import BrowserContext, Error, Page, Playwright

from tests.typescript_sdk.browser import launch_with_profile, open_checks, reload

STRICT_PAGE = "strict.html"
STRICT_POLICY = '<meta http-equiv="Content-Security-Policy" content="worker-src \'none\'">'
BYTES = 1_000_000
"""The bytes that arrive before a download is interrupted. The bundles have 3 MB."""
COMPLETE = "toy/1.0.0/any/toy.xyb"

COUNT_COPIES = """() => {
  globalThis.copies = 0;
  const { createWritable } = FileSystemFileHandle.prototype;
  FileSystemFileHandle.prototype.createWritable = function (options) {
    globalThis.copies++;
    return createWritable.call(this, options);
  };
}"""
# Passes some bytes of a bundle on, and then nothing, as a network that was lost.
STALLED_DOWNLOAD = """async ({ folder, registryUrl, bytes }) => {
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
  const storage = sdk.opfsStorage(folder);
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
ABORTED_DOWNLOAD = """async ({ folder, registryUrl, bytes }) => {
  const storage = sdk.opfsStorage(folder);
  const controller = new AbortController();
  const onProgress = ({ receivedBytes }) => receivedBytes >= bytes && controller.abort();
  const options = { storage, onProgress, signal: controller.signal };
  await new sdk.Client({ registryUrl }).bundle("toy@1.0.0", options).catch(() => {});
  return storage.size("toy/1.0.0/any/toy.xyb.partial");
}"""
WHOLE_DOWNLOAD = """async ({ folder, registryUrl, publicKey }) => {
  const progress = [];
  const bundle = await new sdk.Client({ registryUrl }).bundle("toy@1.0.0", {
    storage: sdk.opfsStorage(folder),
    trustedKeys: [publicKey],
    onProgress: ({ receivedBytes }) => progress.push(receivedBytes),
  });
  return { first: progress[0], files: bundle.files.sort() };
}"""
OFFLINE_READ = """async ({ folder }) => {
  const storage = sdk.opfsStorage(folder);
  const client = new sdk.Client({ registryUrl: "http://127.0.0.1:9", retries: 0 });
  const bundle = await client.bundle("toy@1", { storage });
  const weights = await bundle.read("weights.bin");
  const hash = await crypto.subtle.digest("SHA-256", weights);
  const hex = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { type: bundle.metadata.execution_template.type, hex, names: await storage.list("toy") };
}"""
DAMAGED_DOWNLOAD = """async ({ folder, registryUrl }) => {
  const damage = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith(".xyb")) return response;
    const bytes = new Uint8Array(await response.arrayBuffer());
    bytes[1_000_000] ^= 1;
    return new Response(bytes, { status: 200 });
  };
  const storage = sdk.opfsStorage(folder);
  try {
    await new sdk.Client({ registryUrl, fetch: damage }).bundle("toy@1.0.0", { storage });
  } catch (error) {
    return { name: error.name, names: await storage.list("toy") };
  }
}"""
RENAME = """async ({ folder }) => {
  const storage = sdk.opfsStorage(folder);
  await storage.append("a/old", Uint8Array.of(1, 2));
  await storage.append("a/old", Uint8Array.of(3));
  await storage.append("b/new", Uint8Array.of(9, 9, 9, 9));
  await storage.rename("a/old", "b/new");
  await storage.remove("a/none");
  return [await storage.list("a"), await storage.list("b"), [...(await storage.read("b/new", 1, 5))]];
}"""


def check_storage(playwright: Playwright, address: str, variables: Mapping[str, str]) -> None:
    """Run all checks in a profile of their own, on the page of the capabilities at `address`."""
    settings = {"registryUrl": variables["TEST_REGISTRY"], "publicKey": variables["TEST_PUBLIC_KEY"], "bytes": BYTES}
    stored = {"type": "Toy", "hex": variables["TEST_WEIGHTS_SHA256"], "names": [COMPLETE]}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        context = launch_with_profile(playwright, Path(profile))
        page = open_checks(context, address)
        _check_interruption(page, {**settings, "folder": "reloads"}, stored)
        _check_two_pages(page, open_checks(context, address), {**settings, "folder": "pages"}, stored)
        damaged = page.evaluate(DAMAGED_DOWNLOAD, {**settings, "folder": "damaged"})
        assert damaged == {"name": "InvalidBundle", "names": []}
        strict = open_checks(context, address + STRICT_PAGE)
        _check_without_worker(strict, {**settings, "folder": "strict"}, stored)
        for each in (page, strict):
            assert each.evaluate(RENAME, {"folder": "names"}) == [[], ["b/new"], [2, 3]]
        crashing = {**settings, "folder": "crashes"}
        before = page.evaluate(STALLED_DOWNLOAD, crashing)
        _crash(context, page)
        context = launch_with_profile(playwright, Path(profile))
        _check_continuation(open_checks(context, address), before, crashing, stored)
        context.close()


def _crash(context: BrowserContext, page: Page) -> None:
    """End the browser without giving pages time to close files."""
    session = context.new_cdp_session(page)
    try:
        session.send("Browser.crash")
    except Error:
        return
    raise AssertionError("the browser did not crash")


def _check_interruption(page: Page, settings: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """A page that is reloaded in the middle of a download continues it. No step copies the file."""
    before = page.evaluate(STALLED_DOWNLOAD, settings)
    reload(page)
    page.evaluate(COUNT_COPIES)
    _check_continuation(page, before, settings, stored)
    assert page.evaluate("() => copies") == 0
    reload(page)
    assert page.evaluate(OFFLINE_READ, settings) == stored


def _check_continuation(page: Page, before: int, settings: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """The next call continues a download, verifies it, and reads the bundle without a network."""
    continued = page.evaluate(WHOLE_DOWNLOAD, settings)
    assert continued["first"] > before >= BYTES, (continued, before)
    assert continued["files"] == ["model_metadata.json", "weights.bin", "words.txt"]
    assert page.evaluate(OFFLINE_READ, settings) == stored


def _check_two_pages(one: Page, other: Page, settings: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """A page that downloads what another page is downloading uses a file of its own."""
    assert one.evaluate(STALLED_DOWNLOAD, settings) >= BYTES
    whole = other.evaluate(WHOLE_DOWNLOAD, settings)
    assert whole["first"] < BYTES, whole
    read = other.evaluate(OFFLINE_READ, settings)
    assert read == {**stored, "names": read["names"]}
    assert sorted(read["names"]) == [COMPLETE, f"{COMPLETE}.partial"]
    other.close()
    reload(one)


def _check_without_worker(page: Page, settings: Mapping[str, object], stored: Mapping[str, object]) -> None:
    """Where no worker is allowed, each call makes one copy of the file. An aborted download continues."""
    page.evaluate(COUNT_COPIES)
    before = page.evaluate(ABORTED_DOWNLOAD, settings)
    assert page.evaluate("() => copies") == 1
    _check_continuation(page, before, settings, stored)
    assert page.evaluate("() => copies") == 2
