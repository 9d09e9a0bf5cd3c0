"""The page Speech with real models: microphone, file, voice, conversation."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.console import TIMEOUT, Console, find_violations, take_screenshot, write_spoken_file
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer
from tests.speech import material

pytestmark = pytest.mark.slow

WAIT = 60_000
"""Milliseconds for a model on a busy machine."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("speech")
    with Console(home, provider, env={"SVC_REGISTRY_ROOT": str(material.make_voices())}) as console:
        yield console


@pytest.fixture(scope="module")
def clip() -> Path:
    return material.make_clips()["en-quick-brown-fox"]


@pytest.fixture
def speech_page(console: Console, page: Page, clip: Path, spoken_file: Path) -> Page:
    write_spoken_file(clip, spoken_file)
    console.enter(page, console.user_key, "Speech")
    return page


def test_microphone_shows_the_transcript_in_all_panels(speech_page: Page, context: BrowserContext) -> None:
    expect(speech_page.get_by_label("Language").locator("option:checked")).to_have_text("English")
    speech_page.get_by_role("button", name="Start the microphone").click()
    transcript = speech_page.get_by_role("log", name="Transcript")
    expect(transcript.locator(".unstable, .stable").first).to_contain_text("brown", timeout=WAIT)
    speech_page.get_by_role("tab", name="Conversation").click()
    expect(speech_page.get_by_role("status")).to_have_text("The microphone is on in Live.")
    expect(speech_page.get_by_role("button", name="Start the microphone")).to_be_disabled()
    speech_page.get_by_role("tab", name="Live").click()
    expect(transcript).to_contain_text("lazy dog", timeout=WAIT)
    assert not find_violations(speech_page)
    take_screenshot(speech_page, "speech-live")
    speech_page.get_by_role("button", name="Stop").click()
    expect(speech_page.get_by_role("button", name="Record again")).to_be_visible(timeout=WAIT)
    expect(transcript.locator(".unstable")).to_have_count(0)
    expect(transcript).to_contain_text("lazy dog")
    expect(speech_page.get_by_role("alert")).to_have_count(0)
    speech_page.get_by_role("tab", name="Speak").click()
    speech_page.get_by_label("Text", exact=True).fill("One two three.")
    speech_page.get_by_role("tab", name="Live").click()
    expect(transcript).to_contain_text("lazy dog")
    context.grant_permissions(["microphone", "clipboard-read", "clipboard-write"])
    speech_page.get_by_role("button", name="Copy").click()
    speech_page.wait_for_function("async () => (await navigator.clipboard.readText()).includes('lazy dog')")
    speech_page.get_by_role("tab", name="Speak").click()
    expect(speech_page.get_by_label("Text", exact=True)).to_have_value("One two three.")


def test_file_is_transcribed(speech_page: Page, clip: Path, tmp_path: Path) -> None:
    speech_page.get_by_role("tab", name="File").click()
    speech_page.get_by_label("Audio file").set_input_files(clip)
    transcript = speech_page.get_by_role("region", name="Transcript of the file")
    expect(transcript).to_contain_text("lazy dog", timeout=WAIT)
    (tmp_path / "truncated.wav").write_bytes(clip.read_bytes()[:-40_000])
    speech_page.get_by_label("Audio file").set_input_files(tmp_path / "truncated.wav")
    expect(speech_page.get_by_text("The WAV file is truncated")).to_be_visible(timeout=WAIT)
    expect(transcript).to_contain_text("fox")


def test_file_that_is_no_audio_shows_the_error(speech_page: Page, tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no audio")
    speech_page.get_by_role("tab", name="File").click()
    speech_page.get_by_label("Audio file").set_input_files(tmp_path / "text.wav")
    expect(speech_page.get_by_role("alert")).to_contain_text("invalid_request", timeout=WAIT)


def test_voice_speaks_the_text(speech_page: Page) -> None:
    speech_page.get_by_role("tab", name="Speak").click()
    speech_page.get_by_label("Model").filter(visible=True).select_option("espeak-en-us")
    speech_page.get_by_label("Text", exact=True).fill("\N{GRINNING FACE}" * 4097)
    expect(speech_page.get_by_role("alert")).to_have_text("The text has 4,097 characters. The most is 4,096.")
    speech_page.get_by_role("button", name="Speak").click()
    expect(speech_page.get_by_label("Text", exact=True)).to_be_focused()
    speech_page.get_by_label("Text", exact=True).fill("One two three.")
    expect(speech_page.get_by_role("alert")).to_have_count(0)
    speech_page.get_by_role("button", name="Speak").click()
    player = speech_page.get_by_label("Spoken text")
    expect(player).to_be_visible(timeout=WAIT)
    expect(player).to_have_css("height", "40px")  # Firefox has no height of its own for it
    speech_page.wait_for_function("() => document.querySelector('audio').duration > 0.5", timeout=WAIT)
    assert not find_violations(speech_page)


def test_spoken_question_gets_a_spoken_answer(speech_page: Page, provider: FakeProvider) -> None:
    speech_page.get_by_role("tab", name="Conversation").click()
    speech_page.get_by_label("Speaking voice").select_option("espeak-en-us")
    speech_page.get_by_role("button", name="Start the microphone").click()
    transcript = speech_page.get_by_role("log", name="Transcript")
    expect(transcript).to_contain_text("dog", timeout=WAIT)
    provider.plays(answer(200, openai_wire.chat("A fox it was.")))
    speech_page.get_by_role("button", name="Stop").click()
    expect(speech_page.get_by_role("region", name="Answer")).to_have_text("A fox it was.", timeout=WAIT)
    expect(speech_page.get_by_label("Spoken answer")).to_be_visible(timeout=WAIT)
    asked = provider.wait().json["messages"][-1]["content"]
    assert "dog" in asked


def test_denied_microphone_says_what_to_do(console: Console, browser: Browser) -> None:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT)
    context.add_init_script(
        "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', 'NotAllowedError'))"
    )
    page = context.new_page()
    console.enter(page, console.user_key, "Speech")
    page.get_by_role("button", name="Start the microphone").click()
    expect(page.get_by_role("alert")).to_contain_text("Allow it in the settings")
    context.close()


KEEP_STREAM = """
  const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wanted) => (window.stream = await ask(wanted));
"""
FIREFOX = """
  const connect = AudioContext.prototype.createMediaStreamSource;
  AudioContext.prototype.createMediaStreamSource = function (stream) {
    if (this.sampleRate === 16000) throw new DOMException("different sample-rate", "NotSupportedError");
    return connect.call(this, stream);
  };
"""
"""What Firefox does: https://bugzilla.mozilla.org/show_bug.cgi?id=1674892"""
NO_OUTPUT = """
  AudioContext.prototype.createMediaStreamSource = function (mediaStream) {
    void this.suspend();
    return new MediaStreamAudioSourceNode(this, { mediaStream });
  };
"""
"""What Firefox does on a machine without a device for audio output."""
END_DEVICE = "window.stream.getTracks().forEach((track) => track.dispatchEvent(new Event('ended')))"
"""What the browser does when a microphone is unplugged."""
OTHER_ADDRESS = """
  window.WebSocket = class extends WebSocket {
    constructor(address, protocols) {
      super(new URL("/v1/models", address), protocols);
    }
  };
"""


def test_microphone_that_is_unplugged_is_reported_and_its_text_stays(
    console: Console, page: Page, clip: Path, spoken_file: Path
) -> None:
    write_spoken_file(clip, spoken_file)
    page.add_init_script(KEEP_STREAM + FIREFOX)
    console.enter(page, console.user_key, "Speech")
    page.get_by_role("button", name="Start the microphone").click()
    transcript = page.get_by_role("log", name="Transcript")
    expect(transcript).to_contain_text("brown fox jumps over the lazy dog", timeout=WAIT)
    page.evaluate(END_DEVICE)
    expect(page.get_by_role("alert")).to_contain_text("The microphone was disconnected")
    expect(page.get_by_role("button", name="Record again")).to_be_visible(timeout=WAIT)
    expect(transcript).to_contain_text("brown")


def test_microphone_without_audio_is_reported(console: Console, page: Page) -> None:
    page.add_init_script(NO_OUTPUT)
    page.clock.install()
    console.enter(page, console.user_key, "Speech")
    page.get_by_role("button", name="Start the microphone").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.clock.fast_forward(8000)
    expect(page.get_by_role("alert")).to_contain_text("The browser delivers no audio.")
    expect(page.get_by_role("button", name="Start the microphone")).to_be_visible(timeout=WAIT)


def test_recording_with_an_ended_session_asks_for_the_login(console: Console, speech_page: Page) -> None:
    start = speech_page.get_by_role("button", name="Start the microphone")
    expect(start).to_be_visible()
    speech_page.context.clear_cookies()
    start.click()
    speech_page.get_by_label("API key").fill(console.user_key)
    speech_page.get_by_role("button", name="Log in").click()
    expect(speech_page.get_by_role("alert")).to_have_text("The session has ended. Log in, and start again.")


def test_recording_without_websockets_names_the_proxy(console: Console, page: Page) -> None:
    page.add_init_script(OTHER_ADDRESS)
    console.enter(page, console.user_key, "Speech")
    page.get_by_role("button", name="Start the microphone").click()
    expect(page.get_by_role("alert")).to_contain_text("A proxy before the gateway must allow WebSockets.")


def test_recording_of_the_maximum_length_says_why_it_ended(
    tmp_path: Path, provider: FakeProvider, page: Page, clip: Path, spoken_file: Path
) -> None:
    write_spoken_file(clip, spoken_file)
    env = {"SVC_REGISTRY_ROOT": str(material.make_voices())}
    with Console(tmp_path, provider, "[speech]\nmax_duration = 1\n", env=env) as console:
        console.log_in(page, console.user_key, "Speech")
        page.get_by_role("button", name="Start the microphone").click()
        expect(page.get_by_role("alert")).to_contain_text("The recording has reached the maximum length.", timeout=WAIT)


def test_gateway_that_ends_during_a_recording_is_reported(
    tmp_path: Path, provider: FakeProvider, page: Page, clip: Path, spoken_file: Path
) -> None:
    write_spoken_file(clip, spoken_file)
    with Console(tmp_path, provider, env={"SVC_REGISTRY_ROOT": str(material.make_voices())}) as console:
        console.log_in(page, console.user_key, "Speech")
        page.get_by_role("button", name="Start the microphone").click()
        expect(page.get_by_role("log", name="Transcript")).to_contain_text("brown", timeout=WAIT)
        console.gateway.keep_port()
        console.gateway.process.kill()
        expect(page.get_by_role("alert")).to_contain_text("The connection to the gateway was lost. Start again.")
        console.restart()
        with page.expect_websocket() as websocket:
            page.get_by_role("button", name="Record again").click()
        websocket.value.wait_for_event("framereceived", timeout=WAIT)
        expect(page.get_by_role("log", name="Transcript")).to_contain_text("brown")
        console.gateway.process.send_signal(signal.SIGSTOP)
        page.get_by_role("button", name="Stop").click()
        console.gateway.process.kill()
        expect(page.get_by_role("alert")).to_contain_text("was lost before the end of the transcript")
        expect(page.get_by_role("button", name="Copy")).to_be_visible()
