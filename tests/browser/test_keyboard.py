"""Every page with the keyboard alone: each control is reached with a visible focus, and each kind of action works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.console import PAGES, Console, wait_until
from tests.browser.traffic import CONFIG, MODEL, Traffic
from tests.e2e.accounts.test_admin_bundles import make_bundle
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse
from tests.speech import material

pytestmark = pytest.mark.slow

MAX_STOPS = 250
"""More than any page has."""

MARK_CONTROLS = """
() => {
  const isShown = (element) => element.checkVisibility({visibilityProperty: true});
  const isStop = (element) => {
    if (element.disabled || element.tabIndex < 0 || !isShown(element)) return false;
    if (element.type !== "radio") return true;
    const group = [...document.querySelectorAll(`input[name="${element.name}"]`)];
    return element === (group.find((each) => each.checked) ?? group[0]);
  };
  const found = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];
  const controls = found.filter(isStop);
  controls.forEach((control, index) => { control.dataset.control = String(index); });
  return controls.length;
}
"""
"""Gives a number to each control of the page that the Tab key must reach."""

FOCUS_STATE = """
() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const outlined = (each) => {
    const style = getComputedStyle(each);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  };
  // The frame of an editor, or the label of a hidden input, can have the outline.
  const shown = outlined(element) && element.offsetWidth > 2 ? element : element.parentElement;
  const box = shown.getBoundingClientRect();
  return {
    control: element.dataset.control ?? null,
    name: `${element.tagName} ${element.getAttribute("aria-label") ?? element.textContent.slice(0, 40)} ${element.id}`,
    isOutlined: outlined(shown),
    isInWindow: box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth && box.width > 2,
    isInDialog: element.closest("dialog[open]") !== null,
  };
}
"""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway with requests, a bundle and voices, so that each page has its controls."""
    home = tmp_path_factory.mktemp("keyboard")
    registry = shutil.copytree(material.make_voices(), home / "registry", symlinks=True)  # a test publishes a bundle
    with Console(home, provider, CONFIG, {"SVC_REGISTRY_ROOT": str(registry)}) as console:
        traffic = Traffic(console, provider)
        traffic.wait_for(traffic.send(console.user_key), traffic.send_failing(console.user_key))
        yield console


def focus_state(page: Page) -> dict[str, Any] | None:
    """Return what has the focus, or None if nothing of the page has it."""
    state: dict[str, Any] | None = page.evaluate(FOCUS_STATE)
    return state


def press_until_focused(page: Page, target: Locator, key: str = "Tab") -> None:
    """Press Tab until an element has the focus, which must be visible."""
    expect(target).to_be_visible()
    for _ in range(MAX_STOPS):
        page.keyboard.press(key)
        if target.evaluate("element => element === document.activeElement"):
            state = focus_state(page)
            assert state is not None
            assert state["isOutlined"], state
            assert state["isInWindow"], state
            return
    pytest.fail(f"{key} does not reach {target}")


def press_button(page: Page, target: Locator, key: str = "Enter") -> None:
    """Reach a button with Tab, and press it."""
    press_until_focused(page, target)
    page.keyboard.press(key)


def expect_dialog_keeps_focus(page: Page) -> None:
    """Press Tab more often than the dialog has controls, in both directions. Only the browser itself is outside."""
    for key in ("Tab", "Shift+Tab"):
        for _ in range(25):
            page.keyboard.press(key)
            state = focus_state(page)
            assert state is None or state["isInDialog"], state


@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_every_control_with_a_visible_focus(console: Console, page: Page, name: str) -> None:
    console.enter(page, console.admin_key, name)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    count = page.evaluate(MARK_CONTROLS)
    assert count > 10
    reached: dict[str, dict[str, Any]] = {}
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        state = focus_state(page)
        if state is None or state["control"] in reached:
            break
        if state["control"] is not None:
            reached[state["control"]] = state
    else:
        pytest.fail("the focus does not come to an end")
    # A page that refreshes can have got a control meanwhile, which has no number.
    missed = [number for number in map(str, range(count)) if number not in reached]
    left = page.evaluate(
        "numbers => numbers.map(n => document.querySelector(`[data-control='${n}']`)?.outerHTML.slice(0, 120))", missed
    )
    assert not [html for html in left if html]
    assert not [state for state in reached.values() if not (state["isOutlined"] and state["isInWindow"])]


def test_login_and_navigation(console: Console, page: Page) -> None:
    console.open(page, "Overview")
    press_until_focused(page, page.get_by_label("API key"))
    page.keyboard.type(console.admin_key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    press_button(page, page.get_by_role("link", name="Skip to content"))
    expect(page.locator("#content")).to_be_focused()
    press_until_focused(page, page.get_by_role("link", name="Usage", exact=True), "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Usage", level=1)).to_be_visible()
    expect(page.locator("#content")).to_be_focused()


def test_playground_settings_and_code(console: Console, page: Page, provider: FakeProvider) -> None:
    console.enter(page, console.admin_key, "Playground")
    press_button(page, page.get_by_role("button", name="Add a model"))
    press_until_focused(page, page.get_by_text("System prompt, parameters and tools"))
    page.keyboard.press("Space")
    press_until_focused(page, page.get_by_label("System prompt", exact=True))
    page.keyboard.type("Be brief.")
    press_until_focused(page, page.get_by_label("Prompt", exact=True))
    provider.always_plays(sse(openai_wire.stream("Yes.")))
    page.keyboard.type("Ready?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Complete", exact=True)).to_have_count(2)
    provider.forget()
    code = page.get_by_role("button", name="Code of gpt-4o", exact=True)
    press_until_focused(page, code, "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect_dialog_keeps_focus(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(code).to_be_focused()


def test_speech_tabs_and_a_voice(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Speech")
    press_until_focused(page, page.get_by_role("tab", name="Live"))
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Speak")).to_be_focused()
    expect(page.get_by_role("tab", name="Speak")).to_have_attribute("aria-selected", "true")
    speak = page.get_by_role("button", name="Speak", exact=True)
    press_button(page, speak)
    expect(page.get_by_label("Spoken text")).to_be_visible(timeout=60_000)
    expect(speak).to_be_focused()


def test_requests_detail_gives_the_focus_back(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Requests")
    link = page.get_by_role("region", name="Requests").locator("tbody tr").first.get_by_role("link")
    press_button(page, link)
    expect(page.get_by_role("dialog", name="Request")).to_contain_text("Facts")
    expect_dialog_keeps_focus(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(link).to_be_focused()
    press_until_focused(page, page.get_by_label("Status", exact=True), "Shift+Tab")
    page.keyboard.type("Error")
    expect(page).to_have_url(re.compile("status=error"))


def test_usage_choices_table_and_download(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Usage")
    press_until_focused(page, page.get_by_label("Group by"))
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("by=provider"))
    with page.expect_download():
        press_button(page, page.get_by_role("link", name="Download CSV"))
    press_button(page, page.get_by_text("As a table"))
    expect(page.locator("details[open] table")).to_be_visible()


def test_keys_are_created_and_revoked(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Keys")
    create = page.get_by_role("button", name="Create key")
    press_button(page, create)
    dialog = page.get_by_role("dialog", name="Create a key")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("typed")
    scope = dialog.get_by_label("speech speech and voices")
    press_until_focused(page, scope)
    page.keyboard.press("Space")
    expect(scope).not_to_be_checked()
    expect_dialog_keeps_focus(page)
    press_button(page, dialog.get_by_role("button", name="Create key"))
    expect(page.get_by_role("dialog", name="Key created")).to_contain_text("svc_sk_")
    expect_dialog_keeps_focus(page)
    press_button(page, page.get_by_role("button", name="Done"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(create).to_be_focused()
    revoke = page.get_by_role("button", name="Revoke typed")
    press_button(page, revoke, "Space")
    expect(page.get_by_role("dialog", name="Revoke typed?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(revoke).to_be_focused()
    page.keyboard.press("Enter")
    press_button(page, page.get_by_role("button", name="Revoke key"))
    expect(page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="typed"))).to_contain_text(
        "Revoked"
    )


def test_provider_is_tested_and_keeps_the_focus(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Providers")
    test = page.get_by_role("button", name="Test now openai")
    press_button(page, test)
    expect(page.get_by_text("It responded in")).to_be_visible()
    expect(test).to_be_focused()


def test_bundle_is_uploaded_opened_and_yanked(console: Console, page: Page, tmp_path: Path) -> None:
    (tmp_path / "typed.xyb").write_bytes(make_bundle("typed"))
    console.enter(page, console.admin_key, "Bundles")
    with page.expect_file_chooser() as chooser:
        press_button(page, page.get_by_role("button", name="Choose a file"))
    chooser.value.set_files(tmp_path / "typed.xyb")
    press_button(page, page.get_by_role("button", name="Upload", exact=True))
    expect(page.get_by_role("status").filter(has_text="typed/1.0/any is published")).to_be_visible()
    details = page.get_by_role("button", name="Details of typed/1.0/any")
    press_button(page, details)
    expect(page.get_by_role("dialog")).to_contain_text("SHA-256")
    expect_dialog_keeps_focus(page)
    page.keyboard.press("Escape")
    expect(details).to_be_focused()
    press_button(page, page.get_by_role("button", name="Yank typed/1.0/any", exact=True))
    press_button(page, page.get_by_role("button", name="Yank bundle"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Unyank typed/1.0/any")).to_be_focused()


def test_pipeline_is_written_checked_and_left(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Pipelines")
    editor = page.get_by_label("Pipeline definition in YAML")
    press_until_focused(page, editor)
    page.keyboard.press("Control+A")
    page.keyboard.type(f"name: ask\ninput: {{kind: Text}}\nstages:\n- {{id: a, target: integration, model: {MODEL}}}\n")
    check = page.get_by_role("button", name="Check")
    press_button(page, check)
    expect(page.get_by_role("status")).to_contain_text("ask can run")
    expect(check).to_be_focused()
    press_until_focused(page, page.get_by_role("radio", name="Text"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Audio file")).to_be_checked()
    with page.expect_file_chooser():
        press_button(page, page.get_by_role("button", name="Choose a file"))


def test_connect_lines_get_an_existing_key(console: Console, page: Page) -> None:
    console.enter(page, console.admin_key, "Connect")
    press_button(page, page.get_by_role("button", name="curl"), "Space")
    press_until_focused(page, page.get_by_role("radio", name="Make a new key"))
    page.keyboard.press("ArrowRight")
    press_until_focused(page, page.get_by_label("Existing API key"))
    page.keyboard.type(console.user_key)
    page.keyboard.press("Enter")
    expect(page.get_by_text("The gateway accepts the key.")).to_be_visible()
    test = page.get_by_role("button", name="Test the key")
    press_button(page, test)
    expect(page.get_by_role("status").filter(has_text="It works")).to_be_visible()
    expect(test).to_be_focused()
    wait_until(lambda: console.user_key in page.locator(".code-part pre").first.inner_text())
