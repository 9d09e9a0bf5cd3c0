"""The page Bundles: list, upload, details, pull command, yank and unyank."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.browser.console import Console, find_violations, take_screenshot, wait_until
from tests.e2e import harness
from tests.e2e.accounts.test_admin_bundles import make_bundle
from tests.fakes.provider import FakeProvider

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=document.title='hacked'>"
BIG = 5 << 20
"""Bytes of a bundle of three chunks."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway that trusts one key, with signed and unsigned bundles."""
    pytest.importorskip("cryptography")
    home = tmp_path_factory.mktemp("bundles")
    trusted = harness.run("registry", "sign-key", home=home).stdout.split()[-1]
    with Console(home, provider, env={"SVC_TRUSTED_KEYS": trusted}) as console:
        described = {"description": HOSTILE, "metadata": {"task": "asr", "languages": ["en", "de"], "license": "MIT"}}
        (home / "signed.xyb").write_bytes(make_bundle("signed", **described))
        added = harness.run("registry", "add", "signed.xyb", "--sign", home=home)
        assert added.returncode == 0, added.stderr
        (home / "other").mkdir()
        harness.run("registry", "sign-key", home=home / "other")
        (home / "stranger.xyb").write_bytes(make_bundle("stranger"))
        registry = str(home / "svc/registry")
        added = harness.run(
            "registry", "add", str(home / "stranger.xyb"), "--sign", "--root", registry, home=home / "other"
        )
        assert added.returncode == 0, added.stderr
        publish(console, "plain", "1.0")
        publish(console, "plain", "1.10")
        publish(console, "forged", "1.0", {"x-svc-signature": f"{trusted} AAAA"})
        yield console


def publish(console: Console, model_id: str, version: str, headers: dict[str, str] | None = None) -> None:
    """Publish a bundle through the API."""
    path = f"/v1/admin/bundles/{model_id}/{version}/any"
    bundle = make_bundle(model_id, version)
    got = console.gateway.request("PUT", path, bundle, key=console.admin_key, headers=headers or {})
    assert got.status == 201


@pytest.fixture
def bundles_page(console: Console, page: Page) -> Page:
    """Open the page Bundles with the admin key."""
    console.enter(page, console.admin_key, "Bundles")
    expect(page.get_by_role("list", name="Models")).to_be_visible()
    return page


def model(page: Page, name: str) -> Locator:
    """Return the card of a model."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name, exact=True))


def choose_file(page: Page, file: Path, content: bytes) -> None:
    """Choose a file to upload."""
    file.write_bytes(content)
    page.get_by_label("Bundle file").set_input_files(file)


def test_list_shows_versions_signatures_and_hostile_text(bundles_page: Page) -> None:
    page = bundles_page
    expect(model(page, "signed")).to_contain_text(HOSTILE)
    expect(model(page, "signed")).to_contain_text("en, de")
    expect(model(page, "signed").get_by_text("Valid", exact=True)).to_be_visible()
    expect(model(page, "plain").get_by_text("Unsigned")).to_have_count(2)
    expect(model(page, "forged").get_by_text("Invalid", exact=True)).to_be_visible()
    expect(model(page, "stranger").get_by_text("Unknown key", exact=True)).to_be_visible()
    expect(model(page, "plain").get_by_role("rowheader")).to_have_text([re.compile("1.10"), re.compile("1.0")])
    expect(page).to_have_title("Bundles · Console")
    assert not find_violations(page)
    take_screenshot(page, "bundles-list")
    page.get_by_label("Search").fill("asr")
    expect(page.get_by_role("list", name="Models").get_by_role("heading")).to_have_text(["signed"])
    page.reload()
    expect(page.get_by_role("list", name="Models").get_by_role("heading")).to_have_text(["signed"])
    page.get_by_label("Search").fill("nothing")
    expect(page.get_by_text("No bundle matches")).to_be_visible()


def test_details_show_digest_files_metadata_and_a_pull_command_that_works(
    console: Console, bundles_page: Page, tmp_path: Path
) -> None:
    page = bundles_page
    page.get_by_role("button", name="Details of signed/1.0/any").click()
    dialog = page.get_by_role("dialog", name="signed/1.0/any")
    expect(dialog).to_contain_text("w.bin")
    expect(dialog.get_by_text(re.compile("^[0-9a-f]{64}$"))).to_be_visible()
    expect(dialog.get_by_role("region", name="Metadata")).to_contain_text('"model_id": "signed"')
    assert not find_violations(page)
    take_screenshot(page, "bundles-details")
    expect(dialog.get_by_role("region", name="Pull command")).to_contain_text("svc")
    command = dialog.get_by_role("region", name="Pull command").inner_text().split()
    assert command[0] == "svc"
    pulled = harness.run(*command[1:], home=console.home)
    assert pulled.returncode == 0, pulled.stderr
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_yank_and_unyank_ask_first(console: Console, bundles_page: Page) -> None:
    page = bundles_page
    page.get_by_role("button", name="Yank plain/1.10/any", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(model(page, "plain").get_by_text("Yanked")).to_have_count(0)
    page.get_by_role("button", name="Yank plain/1.10/any", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert not find_violations(page)
    page.get_by_role("button", name="Yank bundle").click()
    expect(model(page, "plain").get_by_text("Yanked")).to_be_visible()
    state = console.gateway.request("GET", "/v1/admin/bundles/plain/1.10/any", key=console.admin_key).json
    assert state["yanked"]
    page.get_by_role("button", name="Unyank plain/1.10/any").click()
    page.get_by_role("button", name="Unyank bundle").click()
    expect(model(page, "plain").get_by_text("Yanked")).to_have_count(0)


def test_dropped_file_is_published_under_the_name_in_it(bundles_page: Page, tmp_path: Path) -> None:
    page = bundles_page
    described = {"model_id": "dropped", "version": "2.0", "execution_template": {"type": "X"}, "files": ["w.bin"]}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_metadata.json").write_text(json.dumps(described | {"description": "long " * 50}))
    (tmp_path / "model" / "w.bin").write_bytes(b"weights")
    packed = harness.run("bundle", "pack", "model", "-o", "dropped.xyb", home=tmp_path)
    assert packed.returncode == 0, packed.stderr
    bundle = (tmp_path / "dropped.xyb").read_bytes()
    transfer = page.evaluate_handle(
        """bytes => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "some file.xyb"));
          return transfer;
        }""",
        list(bundle),
    )
    page.locator(".drop-zone").dispatch_event("drop", {"dataTransfer": transfer})
    expect(page.get_by_label("Model", exact=True)).to_have_value("dropped")
    expect(page.get_by_label("Version", exact=True)).to_have_value("2.0")
    take_screenshot(page, "bundles-upload")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("status").filter(has_text="dropped/2.0/any is published")).to_be_visible()
    expect(model(page, "dropped")).to_be_visible()
    assert not find_violations(page)


def test_file_that_is_no_bundle_is_refused_before_the_upload(bundles_page: Page, tmp_path: Path) -> None:
    for content, message in (
        (b"just a text", "is not a bundle"),
        (make_bundle("cut")[:-30], "is cut off"),
        (b"", "is not a bundle"),
    ):
        choose_file(bundles_page, tmp_path / "notes.xyb", content)
        expect(bundles_page.get_by_role("alert")).to_contain_text(message)


def test_errors_of_the_server_say_what_to_do(bundles_page: Page, tmp_path: Path) -> None:
    page = bundles_page
    choose_file(page, tmp_path / "plain.xyb", make_bundle("plain", "1.0", weights=b"other"))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("use another version")
    page.get_by_label("Version", exact=True).fill("9.0")
    page.get_by_role("button", name="Upload again").click()
    expect(page.get_by_role("alert")).to_contain_text("svc bundle pack")
    page.get_by_label("Version", exact=True).fill("../x")
    page.get_by_role("button", name="Upload again").click()
    expect(page.get_by_role("alert")).to_contain_text("Version '../x' is not valid")
    take_screenshot(page, "bundles-upload-error")


def test_upload_without_a_session_continues_after_the_login(
    console: Console, bundles_page: Page, context: BrowserContext, tmp_path: Path
) -> None:
    page = bundles_page
    choose_file(page, tmp_path / "patient.xyb", make_bundle("patient"))
    context.clear_cookies()
    page.get_by_role("button", name="Upload").click()
    page.get_by_label("API key").fill(console.admin_key)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("patient")
    page.get_by_role("button", name="Upload again").click()
    expect(page.get_by_role("status").filter(has_text="patient/1.0/any is published")).to_be_visible()


def test_interrupted_upload_continues(console: Console, bundles_page: Page, tmp_path: Path) -> None:
    page = bundles_page
    sent: list[str] = []

    def interrupt_second_chunk(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.headers["upload-offset"])
            if len(sent) == 2:
                route.abort()
                return
        route.continue_()

    page.route("**/v1/admin/uploads/*", interrupt_second_chunk)
    choose_file(page, tmp_path / "large.xyb", make_bundle("large", weights=os.urandom(BIG)))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("Continue when the gateway is back")
    page.get_by_role("button", name="Continue the upload").click()
    expect(page.get_by_role("status").filter(has_text="large/1.0/any is published")).to_be_visible()
    assert sent[1] == sent[2] != "0"


def test_cancelled_upload_leaves_nothing(console: Console, bundles_page: Page, tmp_path: Path) -> None:
    page = bundles_page
    page.route("**/v1/admin/uploads/*", lambda route: None if route.request.method == "PATCH" else route.continue_())
    choose_file(page, tmp_path / "slow.xyb", make_bundle("slow", weights=os.urandom(BIG)))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("progressbar", name="Upload")).to_be_visible()
    assert not find_violations(page)
    take_screenshot(page, "bundles-uploading")
    with page.expect_response(lambda response: response.request.method == "DELETE") as removed:
        page.get_by_role("button", name="Cancel").click()
    assert removed.value.status == 200
    expect(page.locator(".drop-zone")).to_be_visible()
    folder = console.home / "svc/registry/.registry/resumable"
    wait_until(lambda: not list(folder.glob("upload_*")))


def test_keys_without_write_scope_see_no_actions(console: Console, page: Page) -> None:
    failed: list[str] = []
    reader = console.create_key("reader", "--scope", "registry:read")["key"]
    console.enter(page, reader, "Bundles")
    page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
    page.reload()
    expect(model(page, "plain")).to_be_visible()
    expect(page.locator(".drop-zone")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Yank"))).to_have_count(0)
    assert not [url for url in failed if "/v1/" in url]


def test_ordinary_key_is_told_which_scope_it_needs(console: Console, page: Page) -> None:
    console.enter(page, console.user_key, "Bundles")
    expect(page.get_by_text("This needs the scope registry:read")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
