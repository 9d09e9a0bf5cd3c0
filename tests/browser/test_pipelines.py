"""The page Pipelines: editor, examples, check, and runs with text, a file and the microphone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.console import Console, find_violations, take_screenshot, write_spoken_file
from tests.browser.test_speech import END_DEVICE, KEEP_STREAM
from tests.e2e.harness import GPT
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse, stall
from tests.speech import material

pytestmark = pytest.mark.slow

WAIT = 60_000
"""Milliseconds for a model on a busy machine."""
ASK = f"""name: ask
input: {{kind: Text}}
stages:
  - {{id: first, target: integration, model: {GPT}}}
  - {{id: second, target: integration, model: {GPT}}}
"""
SPEAK = "name: speak\ninput: {kind: Text}\nstages: [espeak-en-us@1.0.0]\n"
HEAR = "name: hear\ninput: {kind: AudioRaw}\nstages: [moonshine-tiny-en@1.0.0]\n"
HOSTILE = "<img src=x onerror=document.title='hacked'>"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway whose registry has voices and a speech model."""
    home = tmp_path_factory.mktemp("pipelines")
    env = {"SVC_REGISTRY_ROOT": str(material.make_voices())}
    with Console(home, provider, "[routing]\nretries = 0\n", env=env) as console:
        yield console


@pytest.fixture
def pipelines_page(console: Console, page: Page, provider: FakeProvider) -> Page:
    """Open the page Pipelines with the admin key."""
    provider.forget()
    console.enter(page, console.admin_key, "Pipelines")
    expect(editor(page)).to_be_visible()
    return page


def editor(page: Page) -> Locator:
    """Return the field of the definition."""
    return page.get_by_label("Pipeline definition in YAML")


def stage(page: Page, name: str) -> Locator:
    """Return the card of a stage."""
    return page.get_by_role("list", name="Stages").get_by_role("listitem").filter(
        has=page.get_by_role("heading", name=name, exact=True)
    )  # fmt: skip


def run(page: Page) -> None:
    """Start the run."""
    page.get_by_role("button", name="Run", exact=True).click()


def test_examples_open_and_a_changed_definition_is_replaced_only_when_asked(pipelines_page: Page) -> None:
    page = pipelines_page
    page.get_by_role("button", name="voice-assistant").click()
    expect(editor(page)).to_have_value(re.compile("name: voice-assistant"))
    editor(page).fill("name: mine\n")
    page.get_by_role("button", name="ask").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.reload()
    expect(editor(page)).to_have_value("name: mine\n")
    page.get_by_role("button", name="ask").click()
    page.get_by_role("button", name="Replace").click()
    expect(editor(page)).to_have_value(re.compile("name: ask"))


def test_check_shows_the_problem_at_its_line_and_the_plan(pipelines_page: Page) -> None:
    page = pipelines_page
    editor(page).fill(ASK.replace(GPT, "gpt-4o-mimi", 1))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("Did you mean")
    take_screenshot(page, "pipelines-problem")
    assert not find_violations(page)
    page.get_by_role("button", name="Line 4").press("Enter")
    expect(editor(page)).to_be_focused()
    page.wait_for_function(
        "document.activeElement.value?.slice(0, document.activeElement.selectionStart).split('\\n').length === 4"
    )
    editor(page).fill(ASK)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("status")).to_contain_text("ask can run")
    expect(page.get_by_role("status")).to_contain_text("through the gateway")


def test_run_with_text_shows_each_stage_and_the_result(pipelines_page: Page, provider: FakeProvider) -> None:
    page = pipelines_page
    provider.always_plays(sse(openai_wire.stream(HOSTILE)))
    editor(page).fill(ASK)
    page.get_by_label("Text", exact=True).last.fill("What is the capital of France?")
    run(page)
    expect(page.get_by_role("region", name="Result")).to_contain_text(HOSTILE, timeout=WAIT)
    for name in ("first", "second"):
        expect(stage(page, name)).to_contain_text("Finished")
        expect(stage(page, name)).to_contain_text(HOSTILE)
    expect(page).to_have_title("Pipelines · Console")
    assert not find_violations(page)
    take_screenshot(page, "pipelines-run")


def test_output_that_is_cut_off_is_marked(pipelines_page: Page, provider: FakeProvider) -> None:
    page = pipelines_page
    provider.plays(sse(openai_wire.stream("One two")), sse(openai_wire.stream("Three fo", finish="length")))
    editor(page).fill(ASK)
    page.get_by_label("Text", exact=True).last.fill("Count")
    run(page)
    expect(page.get_by_role("region", name="Result")).to_contain_text("Cut off at the maximum tokens", timeout=WAIT)
    expect(stage(page, "second")).to_contain_text("Cut off at the maximum tokens")
    expect(stage(page, "first")).to_contain_text("Finished")
    assert not find_violations(page)


def test_failed_stage_is_named(pipelines_page: Page, provider: FakeProvider) -> None:
    page = pipelines_page
    provider.always_plays(answer(401, b'{"error": {"message": "no", "code": "invalid_api_key"}}'))
    editor(page).fill(ASK)
    page.get_by_label("Text", exact=True).last.fill("Hi")
    run(page)
    expect(page.get_by_role("alert")).to_contain_text("The stage first failed", timeout=WAIT)
    expect(stage(page, "second")).not_to_contain_text("Finished")


def test_stop_ends_the_run(pipelines_page: Page, provider: FakeProvider) -> None:
    page = pipelines_page
    provider.always_plays(sse(openai_wire.stream("one two three")[:2], end=stall()))
    editor(page).fill(ASK)
    page.get_by_label("Text", exact=True).last.fill("Hi")
    run(page)
    expect(stage(page, "first")).to_contain_text("Running", timeout=WAIT)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").filter(has_text="The run was stopped")).to_be_visible()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()


def test_voice_of_a_stage_can_be_played(pipelines_page: Page) -> None:
    page = pipelines_page
    editor(page).fill(SPEAK)
    page.get_by_label("Text", exact=True).last.fill("Hello.")
    run(page)
    audio = page.get_by_label("Result as audio")
    expect(audio).to_be_visible(timeout=WAIT)
    page.wait_for_function("document.querySelector('.result audio').duration > 0.2")


def test_file_and_microphone_are_transcribed(pipelines_page: Page, spoken_file: Path, tmp_path: Path) -> None:
    page = pipelines_page
    clip = material.make_clips()["en-quick-brown-fox"]
    editor(page).fill(HEAR)
    (tmp_path / "notes.wav").write_text("no audio")
    page.get_by_label("Audio input").set_input_files(tmp_path / "notes.wav")
    run(page)
    expect(page.get_by_role("alert")).to_contain_text("not audio")
    page.get_by_label("Audio input").set_input_files(clip)
    run(page)
    expect(page.get_by_role("region", name="Result")).to_contain_text("lazy dog", timeout=WAIT)

    page.reload()
    expect(editor(page)).to_have_value(HEAR)
    expect(page.get_by_role("region", name="Result")).to_have_count(0)
    write_spoken_file(clip, spoken_file)
    page.get_by_label("Microphone").check()
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("timer")).to_have_text("4 s")
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_label("Recording", exact=True)).to_be_visible()
    run(page)
    expect(page.get_by_role("region", name="Result")).to_contain_text("brown", timeout=WAIT)


def test_microphone_that_is_unplugged_ends_the_recording(console: Console, page: Page) -> None:
    page.add_init_script(KEEP_STREAM)
    console.enter(page, console.admin_key, "Pipelines")
    page.get_by_label("Microphone").check()
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_text("Recording…")).to_be_visible()
    page.evaluate(END_DEVICE)
    expect(page.get_by_role("alert")).to_contain_text("The microphone was disconnected")
    expect(page.get_by_label("Recording", exact=True)).to_be_visible()


def test_input_stays_if_the_examples_cannot_be_loaded_after_a_login(console: Console, pipelines_page: Page) -> None:
    page = pipelines_page
    page.get_by_label("Text", exact=True).last.fill("Keep this.")
    page.context.clear_cookies()
    page.route("**/pipelines/examples", lambda route: route.fulfill(status=500, json={"error": {"message": "Fails."}}))
    page.get_by_role("button", name="Check").click()
    page.get_by_label("API key").fill(console.admin_key)
    with page.expect_response("**/pipelines/examples"):
        page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Definition")).to_be_visible()
    expect(page.get_by_label("Text", exact=True).last).to_have_value("Keep this.")


def test_ordinary_key_cannot_run_pipelines(console: Console, page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    console.enter(page, console.user_key, "Pipelines")
    expect(page.get_by_text("This needs the scope admin")).to_be_visible()
    assert not [url for url in requested if "/v1/admin/" in url]
