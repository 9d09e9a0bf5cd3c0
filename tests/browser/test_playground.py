"""The page Playground: answers of a scripted provider through a real gateway."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from tests.browser.console import Console, expect_no_horizontal_scrollbar, find_violations, take_screenshot, wait_until
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Gate, Script, answer, hold, reset, sse, stall

pytestmark = pytest.mark.slow

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = [("call_1", "get_weather", '{"city": "Oslo"}')]
BLOCK_STORAGE = """
for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
}
"""
FILL_STORAGE = """
Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };
"""


CHAT_MODELS = ["gpt-4o", "gpt-4o-mini", "gpt-4-turbo", "fast", "smart"]
ALIASES = """
[[aliases]]
name = "fast"
model = "gpt-4o-mini"

[[aliases]]
name = "smart"
model = "gpt-4o"
"""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider, console_files: None) -> Iterator[Console]:
    """Start a gateway with five models that chat."""
    with Console(tmp_path_factory.mktemp("console"), provider, ALIASES) as console:
        yield console


@pytest.fixture(autouse=True)
def _clean_provider(provider: FakeProvider) -> Iterator[None]:
    yield
    provider.forget()


@pytest.fixture
def playground(console: Console, page: Page) -> Page:
    """Open the page with an ordinary key."""
    return open_playground(console, page)


def open_playground(console: Console, page: Page, query: str = "") -> Page:
    console.enter(page, console.user_key, "Playground")
    if query:
        console.open(page, "Playground", query)
    expect(prompt_of(page)).to_be_visible()
    return page


def prompt_of(page: Page) -> Locator:
    return page.get_by_label("Prompt", exact=True)


def send(page: Page, prompt: str) -> None:
    prompt_of(page).fill(prompt)
    prompt_of(page).press("Enter")


def answer_of(page: Page, model: str = "gpt-4o") -> Locator:
    """Return the latest answer of a model."""
    return page.get_by_role("article", name=f"Answer of {model}", exact=True).last


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def open_settings(page: Page) -> None:
    page.get_by_text("System prompt, parameters and tools").click()


def messages_of(provider: FakeProvider) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = provider.requests[-1].json["messages"]
    return messages


def test_two_models_answer_side_by_side_with_tokens_and_cost(playground: Page, provider: FakeProvider) -> None:
    button(playground, "Add a model").click()
    first, rest = openai_wire.stream("The answer is **42**.")[:2], openai_wire.stream("The answer is **42**.")[2:]
    gate = Gate()  # an answer that comes at once has no speed
    provider.always_plays(sse(first, end=hold(gate) + Script(sse(rest).steps[1:])))
    send(playground, "What is the answer?")
    for model in ("gpt-4o", "gpt-4o-mini"):
        expect(answer_of(playground, model)).to_contain_text("The")
    playground.wait_for_timeout(20)  # the page shows no speed for a shorter time
    gate.open()
    for model in ("gpt-4o", "gpt-4o-mini"):
        expect(answer_of(playground, model)).to_contain_text("The answer is 42.")
        expect(answer_of(playground, model)).to_contain_text("Complete")
        expect(answer_of(playground, model)).to_contain_text("11 in · 7 out")
        expect(answer_of(playground, model)).to_contain_text("tokens/s")
        expect(answer_of(playground, model).locator("dd", has_text="$0.0000")).to_be_visible()
    expect(playground.get_by_role("status").filter(has_text="gpt-4o has answered with 7 tokens.")).to_be_attached()
    details = answer_of(playground).get_by_role("link", name="Details of gpt-4o")
    expect(details).to_have_attribute("href", re.compile("^/console/requests[?]request=req_"))
    for theme in ("light", "dark"):
        playground.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        assert not find_violations(playground)
        take_screenshot(playground, f"playground-answers-{theme}")
    button(playground, "Regenerate all").click()
    wait_until(lambda: len(provider.requests) == 4)
    assert sorted(seen.json["model"] for seen in provider.requests[:2]) == ["gpt-4o", "gpt-4o-mini"]


def test_four_models_are_the_most_and_the_address_has_them(playground: Page) -> None:
    for _ in range(3):
        button(playground, "Add a model").click()
    expect(button(playground, "Add a model")).to_have_count(0)
    playground.get_by_label("Model 4").select_option("smart")
    expect(playground.get_by_label("Model 1").locator("option")).to_have_text(CHAT_MODELS)
    send(playground, "Hi")
    expect(playground.get_by_text("Complete", exact=True)).to_have_count(4)
    first, third = (playground.get_by_role("article").nth(index).bounding_box() for index in (0, 2))
    assert first
    assert third
    assert first["x"] == third["x"], "four answers stand in rows of three and one"
    take_screenshot(playground, "playground-four")
    for width in (360, 3840):
        playground.set_viewport_size({"width": width, "height": 900})
        expect_no_horizontal_scrollbar(playground)
        take_screenshot(playground, f"playground-four-{width}")
    expect(playground).to_have_url(re.compile("[?]model=gpt-4o&model=gpt-4o-mini&model=gpt-4-turbo&model=smart$"))
    button(playground, "Remove gpt-4o-mini").click()
    expect(playground).to_have_url(re.compile("[?]model=gpt-4o&model=gpt-4-turbo&model=smart$"))


def test_same_model_answers_twice_in_columns_of_its_own(console: Console, page: Page, provider: FakeProvider) -> None:
    """A fresh installation has one model, and compares two answers of it."""
    key = console.create_key("one-model", "--scope", "chat", "--models", "gpt-4-turbo")["key"]
    console.enter(page, key, "Playground")
    button(page, "Add gpt-4-turbo again").click()
    expect(page).to_have_url(re.compile("[?]model=gpt-4-turbo&model=gpt-4-turbo$"))
    provider.plays(sse(openai_wire.stream("One answer")), sse(openai_wire.stream("Another answer")))
    send(page, "Hi")
    for name in ("gpt-4-turbo", "gpt-4-turbo (2)"):
        expect(answer_of(page, name)).to_contain_text("Complete")
    expect(page.get_by_text("One answer")).to_have_count(1)
    expect(page.get_by_text("Another answer")).to_have_count(1)
    assert [seen.json["model"] for seen in provider.requests] == ["gpt-4-turbo", "gpt-4-turbo"]
    second = answer_of(page, "gpt-4-turbo (2)").locator(".answer-text").inner_text()
    page.reload()
    expect(answer_of(page, "gpt-4-turbo (2)")).to_contain_text(second)
    button(page, "Remove gpt-4-turbo").click()
    send(page, "Go on")
    wait_until(lambda: len(provider.requests) == 3)
    assert [one["content"] for one in messages_of(provider)] == ["Hi", second, "Go on"]


def test_shared_address_opens_models_and_prompt_and_sends_nothing(
    console: Console, page: Page, provider: FakeProvider
) -> None:
    open_playground(console, page, "?model=gpt-4-turbo&model=gpt-9&prompt=Hello%20there&system=Be%20short.")
    expect(page.get_by_label("Model 1")).to_have_value("gpt-4-turbo")
    expect(page.get_by_text("This gateway has no model gpt-9.")).to_be_visible()
    expect(prompt_of(page)).to_have_value("Hello there")
    assert not provider.requests
    button(page, "Send").click()
    expect(answer_of(page, "gpt-4-turbo")).to_contain_text("Complete")
    assert messages_of(provider)[0] == {"role": "system", "content": "Be short."}


def test_conversation_continues_with_the_history_and_joining_models_get_it(
    playground: Page, provider: FakeProvider
) -> None:
    provider.plays(sse(openai_wire.stream("First answer")), sse(openai_wire.stream("Second answer")))
    send(playground, "First question")
    expect(answer_of(playground)).to_contain_text("Complete")
    playground.get_by_label("Model 1").select_option("gpt-4o-mini")
    send(playground, "Second question")
    expect(answer_of(playground, "gpt-4o-mini")).to_contain_text("Second answer")
    assert [(one["role"], one["content"]) for one in messages_of(provider)] == [
        ("user", "First question"),
        ("assistant", "First answer"),
        ("user", "Second question"),
    ]
    provider.plays(sse(openai_wire.stream("Better answer")))
    button(playground, "Regenerate gpt-4o-mini").click()
    expect(answer_of(playground, "gpt-4o-mini")).to_contain_text("Better answer")
    expect(playground.get_by_text("Second answer")).to_have_count(0)


def test_parameters_are_sent_and_wrong_ones_prevent_the_request(playground: Page, provider: FakeProvider) -> None:
    open_settings(playground)
    playground.get_by_label("System prompt").fill("Be brief.")
    playground.get_by_label("Temperature").fill("3")
    expect(playground.get_by_text("Enter a number from 0 to 2.")).to_be_visible()
    prompt_of(playground).fill("Hi")
    expect(button(playground, "Send")).to_be_disabled()
    playground.get_by_label("Temperature").fill("0.5")
    playground.get_by_label("Top p").fill("0.9")
    playground.get_by_label("Maximum tokens").fill("20")
    playground.get_by_label("More parameters (JSON)", exact=True).fill('{"stop": ["END"]}')
    button(playground, "Send").click()
    expect(answer_of(playground)).to_contain_text("Complete")
    sent = provider.requests[-1].json
    expected = {"temperature": 0.5, "top_p": 0.9, "stop": ["END"], "stream_options": {"include_usage": True}}
    assert {name: sent.get(name) for name in expected} == expected
    assert 20 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))


WRONG_TOOLS = (
    ('[{"type": "function"\n  "function": {}}]', "Line 2, column 3", "Expected , or }."),
    ('[{"type": "function", "function": {"name": "not good"}}]', "Line 1, column 44", "tools[0].function.name"),
    ('[{"type": "function", ', "Line 1, column 23", "The text ends here."),
    ('[{"type": "\\q"}]', "Line 1, column 11", "wrong escape"),
    ("[" * 200, "Line 1, column 102", "nested too deeply"),
    ("{}", "Line 1, column 1", "Enter a list of tools"),
)


def test_wrong_tools_show_the_error_at_its_place(playground: Page) -> None:
    open_settings(playground)
    tools = playground.get_by_label("Tools (JSON)", exact=True)
    for text, place, message in WRONG_TOOLS:
        tools.fill(text)
        expect(playground.locator("#tools-problem")).to_contain_text(f"{place}: ")
        expect(playground.locator("#tools-problem")).to_contain_text(message)
    tools.fill(WRONG_TOOLS[0][0])
    button(playground, "Go to the place").click()
    expect(tools).to_be_focused()
    assert tools.evaluate("field => field.selectionStart") == 23
    take_screenshot(playground, "playground-settings")
    assert not find_violations(playground)


def test_tool_calls_are_shown_and_their_results_sent(playground: Page, provider: FakeProvider) -> None:
    open_settings(playground)
    button(playground, "Insert an example: Tools (JSON)").click()
    provider.plays(sse(openai_wire.tool_stream(WEATHER)), sse(openai_wire.stream("It rains in Oslo.")))
    send(playground, "The weather in Oslo?")
    expect(answer_of(playground)).to_contain_text("Calls get_weather")
    expect(answer_of(playground).get_by_role("region", name="Arguments of get_weather")).to_contain_text(
        '"city": "Oslo"'
    )
    assert provider.requests[0].json["tools"][0]["function"]["name"] == "get_weather"
    playground.get_by_label("Result of get_weather").fill("Rain")
    take_screenshot(playground, "playground-tools")
    assert not find_violations(playground)
    button(playground, "Send the results of the tools").click()
    expect(answer_of(playground)).to_contain_text("It rains in Oslo.")
    call, result = messages_of(provider)[-2:]
    assert call["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "call_1", "Rain")


def test_reasoning_is_shown_apart(playground: Page, provider: FakeProvider) -> None:
    events = [openai_wire.role(), openai_wire.chunk({"reasoning_content": "Hm, let me think."})]
    provider.plays(sse([*events, *openai_wire.stream("Yes.")[1:]]))
    send(playground, "Really?")
    expect(answer_of(playground)).to_contain_text("Complete")
    expect(answer_of(playground).get_by_text("Hm, let me think.")).to_be_hidden()
    answer_of(playground).get_by_text("Reasoning").click()
    expect(answer_of(playground).get_by_text("Hm, let me think.")).to_be_visible()


def test_reasoning_refusal_and_images_that_providers_add_are_shown(playground: Page, provider: FakeProvider) -> None:
    """OpenRouter sends `reasoning` and `images`, and OpenAI `refusal`."""
    thinking = [openai_wire.role(), openai_wire.chunk({"reasoning": "Let me think."})]
    provider.plays(sse(thinking, end=stall()))
    send(playground, "Draw a dot")
    expect(answer_of(playground).get_by_text("Let me think.")).to_be_visible()
    button(playground, "Stop").click()
    expect(answer_of(playground)).to_contain_text("Stopped")
    expect(answer_of(playground).locator(".metrics div").first).not_to_contain_text("–")
    refusal = [openai_wire.chunk({"refusal": text}) for text in ("I cannot ", "<b>help</b>.")]
    provider.plays(sse([*thinking, *refusal, *openai_wire.stream("")[2:]]))
    button(playground, "Regenerate gpt-4o").click()
    expect(answer_of(playground)).to_contain_text("Refused by the model")
    expect(answer_of(playground).get_by_text("I cannot <b>help</b>.")).to_be_visible()
    addresses = [f"data:image/png;base64,{base64.b64encode(PNG).decode()}", "https://images.example/dot.png", "js:1"]
    images = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
    provider.plays(sse([openai_wire.chunk({"content": "", "images": images}), *openai_wire.stream("")[2:]]))
    send(playground, "Then an image")
    expect(answer_of(playground).get_by_role("img", name="Image 1 of gpt-4o")).to_be_visible()
    link = answer_of(playground).get_by_role("link", name="Image 2 at images.example")
    expect(link).to_have_attribute("href", addresses[1])
    expect(answer_of(playground)).to_contain_text("Image 3 cannot be shown.")
    expect(playground.get_by_text("The answer is empty.")).to_have_count(0)
    assert messages_of(provider)[1] == {"role": "assistant", "content": "I cannot <b>help</b>."}
    assert not find_violations(playground)


def test_tool_calls_that_are_cut_off_get_no_results(playground: Page, provider: FakeProvider) -> None:
    cut = [openai_wire.tool_chunk(0, "call_1", "get_weather"), openai_wire.tool_chunk(0, arguments='{"ci')]
    provider.plays(sse([*cut, openai_wire.chunk({}, "length"), *openai_wire.stream("")[3:]]))
    send(playground, "The weather?")
    expect(answer_of(playground)).to_contain_text("Cut off at the maximum tokens")
    expect(answer_of(playground)).to_contain_text("The calls are cut off, and can have no results.")
    expect(playground.get_by_label("Result of get_weather")).to_have_count(0)
    expect(button(playground, "Send the results of the tools")).to_have_count(0)
    send(playground, "Go on")
    expect(answer_of(playground)).to_contain_text("Complete")
    assert [one["role"] for one in messages_of(provider)] == ["user"]


def test_cost_is_read_when_the_ledger_can_be_read_again(playground: Page) -> None:
    attempts: list[str] = []

    def refuse(route: Route) -> None:
        attempts.append(route.request.url)
        route.abort()

    playground.route("**/v1/usage?*", refuse)
    playground.clock.install()
    send(playground, "Hi")
    expect(answer_of(playground)).to_contain_text("Complete")
    cost = answer_of(playground).locator(".metrics div", has_text="Cost")

    def has_failed_often() -> bool:
        playground.clock.fast_forward(3000)
        return len(attempts) >= 5

    wait_until(has_failed_often)
    expect(cost).to_contain_text("…")
    playground.reload()
    playground.unroute("**/v1/usage?*")
    expect(cost).to_contain_text("$")


def test_images_are_chosen_pasted_dropped_and_sent(playground: Page, provider: FakeProvider) -> None:
    playground.get_by_label("Add images").set_input_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PNG}])
    expect(playground.get_by_role("img", name="Image 1")).to_be_visible()
    for kind, field in (("paste", "clipboardData"), ("drop", "dataTransfer")):
        playground.evaluate(
            """([kind, field, bytes]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], "dot.png", { type: "image/png" }));
              const event = new Event(kind, { bubbles: true, cancelable: true });
              Object.defineProperty(event, field, { value: data });
              document.getElementById("prompt").dispatchEvent(event);
            }""",
            [kind, field, list(PNG)],
        )
    expect(playground.get_by_role("img", name="Image 3")).to_be_visible()
    is_taken = playground.evaluate(
        """(bytes) => {
          const data = new DataTransfer();
          data.setData("text/plain", "A cell");
          data.setData("text/html", "<td>A cell</td>");
          data.items.add(new File([new Uint8Array(bytes)], "cell.png", { type: "image/png" }));
          const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: data });
          return !document.getElementById("prompt").dispatchEvent(event);
        }""",
        list(PNG),
    )
    assert not is_taken, "the picture of copied text replaced the text"
    button(playground, "Remove image 3").click()
    playground.get_by_label("Add images").set_input_files(
        [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"text"}]
    )
    expect(playground.get_by_role("alert")).to_contain_text("notes.txt is not an image")
    send(playground, "What is this?")
    expect(answer_of(playground)).to_contain_text("Complete")
    text, *images = messages_of(provider)[-1]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert [one["image_url"]["url"] for one in images] == [
        f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    ] * 2


def test_enter_ends_a_composition_and_starts_a_line_on_a_phone(
    browser: Browser, console: Console, provider: FakeProvider
) -> None:
    with browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 360, "height": 740}) as phone:
        page = open_playground(console, phone.new_page())
        expect(prompt_of(page)).to_have_css("font-size", "16px")  # Safari zooms into fields with smaller text
        prompt_of(page).fill("One")
        prompt_of(page).press("Enter")
        expect(prompt_of(page)).to_have_value("One\n")
        page.evaluate("() => { window.matchMedia = () => ({ matches: false }); }")  # now as on a computer
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Connect").click()
        page.go_back()
        prompt_of(page).evaluate(
            """(field) => field.dispatchEvent(
              new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true })
            )"""
        )
        expect(prompt_of(page)).to_have_value("One\n")
        assert not provider.requests


def test_stop_closes_the_upstream_request_and_keeps_the_text(playground: Page, provider: FakeProvider) -> None:
    provider.plays(sse(openai_wire.stream("One two three")[:3], end=stall()))
    send(playground, "Count")
    expect(answer_of(playground)).to_contain_text("One two")
    expect(answer_of(playground)).to_contain_text("Answering")
    button(playground, "Stop").click()
    expect(answer_of(playground)).to_contain_text("Stopped")
    expect(answer_of(playground)).to_contain_text("One two")
    provider.requests[0].wait_left(30)
    expect(prompt_of(playground)).to_be_focused()


def test_long_answer_is_followed_until_the_reader_scrolls_up(playground: Page, provider: FakeProvider) -> None:
    from_end = "() => document.documentElement.scrollHeight - innerHeight - scrollY"
    line = "\n\nA paragraph of its own."
    button(playground, "Add a model").click()
    provider.always_plays(sse(openai_wire.stream(line * 60)[:-3], end=stall()))
    send(playground, "A long answer")
    expect(answer_of(playground).get_by_text("A paragraph of its own.")).not_to_have_count(0)
    playground.wait_for_function(f"() => scrollY > 200 && ({from_end})() <= 80")
    button(playground, "Stop").click()
    expect(button(playground, "Regenerate all")).to_be_visible()
    playground.wait_for_function(f"() => ({from_end})() <= 1")
    playground.evaluate("() => scrollTo(0, 0)")
    playground.wait_for_function("() => scrollY === 0")
    provider.always_plays(sse(openai_wire.stream("Short")[:3], end=stall()))
    send(playground, "Another")
    expect(answer_of(playground)).to_contain_text("Answering")
    playground.wait_for_function(f"() => scrollY > 200 && ({from_end})() <= 80")


def test_interrupted_stream_is_never_shown_as_complete(playground: Page, provider: FakeProvider) -> None:
    provider.plays(sse(openai_wire.stream("One two three")[:3], end=reset()))
    send(playground, "Count")
    expect(answer_of(playground)).to_contain_text("Interrupted")
    expect(answer_of(playground)).to_contain_text("One two")
    expect(answer_of(playground).locator(".notice.error")).to_contain_text("code ")
    expect(answer_of(playground).get_by_text("Complete", exact=True)).to_have_count(0)
    expect(playground.get_by_role("status").filter(has_text="The answer of gpt-4o is incomplete")).to_be_attached()
    take_screenshot(playground, "playground-interrupted")


def test_rejected_request_shows_the_error_and_can_be_repeated(playground: Page, provider: FakeProvider) -> None:
    provider.always_plays(answer(400, openai_wire.error("That model cannot do this.", param="temperature")))
    send(playground, "Hi")
    expect(answer_of(playground)).to_contain_text("Failed")
    expect(answer_of(playground)).to_contain_text("That model cannot do this.")
    expect(answer_of(playground)).to_contain_text("Status 400")
    provider.always_plays(None)
    button(playground, "Regenerate gpt-4o").click()
    expect(answer_of(playground)).to_contain_text("Complete")


def test_prompt_longer_than_the_context_is_shown_short_with_advice(playground: Page, provider: FakeProvider) -> None:
    message = "This model's maximum context length is 8 tokens. " + "However, your messages are longer. " * 50
    provider.always_plays(answer(400, openai_wire.error(message, code="context_length_exceeded")))
    send(playground, "word " * 1000)
    expect(answer_of(playground)).to_contain_text(
        "Shorten the prompt, start a new conversation, or choose another model."
    )
    expect(answer_of(playground).locator(".notice")).to_contain_text("…")
    more = playground.get_by_role("button", name="Show all 5,000 characters")
    expect(playground.locator(".prompt")).not_to_contain_text("word " * 500)
    more.click()
    expect(playground.locator(".prompt")).to_contain_text("word " * 999)


def test_rate_limit_of_the_key_says_when_to_try_again(console: Console, page: Page) -> None:
    limited = console.create_key("limited", "--scope", "chat", "--rpm", "1")["key"]
    console.enter(page, limited, "Playground")
    send(page, "One")
    expect(answer_of(page)).to_contain_text("Complete")
    send(page, "Two")
    expect(answer_of(page)).to_contain_text("Status 429")
    expect(answer_of(page)).to_contain_text("Try again in")


def test_reload_in_the_middle_of_a_stream_keeps_the_part_as_interrupted(
    playground: Page, provider: FakeProvider
) -> None:
    provider.plays(sse(openai_wire.stream("One two three")[:3], end=stall()))
    send(playground, "Count")
    expect(answer_of(playground)).to_contain_text("One two")
    playground.reload()
    expect(answer_of(playground)).to_contain_text("One two")
    expect(answer_of(playground)).to_contain_text("Interrupted")
    expect(answer_of(playground)).to_contain_text("The page was closed before the answer was complete.")


def test_conversation_that_is_left_during_a_stream_says_so(playground: Page, provider: FakeProvider) -> None:
    provider.plays(sse(openai_wire.stream("One two three")[:3], end=stall()))
    send(playground, "Count")
    expect(answer_of(playground)).to_contain_text("One two")
    button(playground, "New conversation").click()
    button(playground, "Conversations (1)").click()
    playground.get_by_role("dialog").get_by_role("button", name="Count").first.click()
    expect(answer_of(playground)).to_contain_text("One two")
    expect(answer_of(playground)).to_contain_text("You left the conversation before the answer was complete.")


def test_hostile_answer_is_shown_as_text(playground: Page, provider: FakeProvider) -> None:
    hostile = "<img src=x onerror=document.title='hacked'>\n```html\n<script>document.title='hacked'</script>\n```\n"
    provider.plays(sse([openai_wire.role(), openai_wire.chunk({"content": hostile}), *openai_wire.stream("")[2:]]))
    send(playground, "Attack")
    expect(answer_of(playground)).to_contain_text("<img src=x onerror=document.title='hacked'>")
    expect(answer_of(playground).get_by_role("region", name="Code, html")).to_have_text(
        "<script>document.title='hacked'</script>"
    )
    expect(playground).to_have_title("Playground · Console")
    expect(answer_of(playground).locator("img, script")).to_have_count(0)


def test_conversations_are_listed_renamed_and_deleted(playground: Page) -> None:
    send(playground, "Alpha question")
    expect(answer_of(playground)).to_contain_text("Complete")
    button(playground, "New conversation").click()
    send(playground, "Beta question")
    expect(answer_of(playground)).to_contain_text("Complete")
    button(playground, "Conversations (2)").click()
    dialog = playground.get_by_role("dialog", name="Conversations")
    button(dialog, "Rename Alpha question").click()
    dialog.get_by_label("New title of Alpha question").fill("<b>Gamma</b>")
    button(dialog, "Save").click()
    button(dialog, "Delete Beta question").click()
    take_screenshot(playground, "playground-conversations")
    assert not find_violations(playground)
    button(dialog, "Delete for good").click()
    expect(dialog.get_by_role("listitem")).to_have_count(1)
    dialog.get_by_role("button", name="<b>Gamma</b>").first.click()
    expect(playground.get_by_text("Alpha question")).to_be_visible()
    playground.reload()
    expect(playground.get_by_text("Alpha question")).to_be_visible()
    expect(button(playground, "Conversations (1)")).to_be_visible()


def test_draft_stays_after_back_and_reload_until_it_is_sent(playground: Page) -> None:
    button(playground, "Add a model").click()
    open_settings(playground)
    playground.get_by_label("System prompt").fill("Be brief.")
    playground.get_by_label("Tools (JSON)", exact=True).fill("[]")
    playground.get_by_label("Add images").set_input_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PNG}])
    expect(playground.get_by_role("img", name="Image 1")).to_be_visible()
    prompt_of(playground).fill("Not sent yet")
    playground.get_by_role("link", name="Usage", exact=True).click()
    expect(playground.get_by_role("heading", name="Usage", level=1)).to_be_visible()
    for come_back in (playground.go_back, playground.reload):
        come_back()
        expect(prompt_of(playground)).to_have_value("Not sent yet")
        expect(playground.get_by_role("img", name="Image 1")).to_be_visible()
        expect(playground.get_by_label("System prompt")).to_have_value("Be brief.")
        expect(playground.get_by_label("Tools (JSON)", exact=True)).to_have_value("[]")
        expect(playground).to_have_url(re.compile("[?]model=gpt-4o&model=gpt-4o-mini$"))
    button(playground, "Send").click()
    expect(playground.get_by_text("Complete", exact=True)).to_have_count(2)
    prompt_of(playground).fill("The next")
    playground.reload()
    expect(prompt_of(playground)).to_have_value("The next")
    expect(playground.get_by_role("list", name="Images")).to_have_count(1)
    button(playground, "New conversation").click()
    expect(prompt_of(playground)).to_have_value("")
    expect(playground.get_by_label("Model 2")).to_have_value("gpt-4o-mini")


def test_conversation_in_two_tabs_loses_no_turn(
    playground: Page, context: BrowserContext, provider: FakeProvider
) -> None:
    send(playground, "First")
    expect(answer_of(playground).locator("dd", has_text="$")).to_be_visible()
    other = context.new_page()
    other.goto(playground.url)
    button(other, "Conversations (1)").click()
    other.get_by_role("dialog").get_by_role("button", name="First").first.click()
    send(other, "Second")
    expect(playground.get_by_text("Second")).to_be_visible()
    expect(answer_of(other).locator("dd", has_text="$")).to_be_visible()
    expect(answer_of(playground).locator("dd", has_text="$")).to_be_visible()
    provider.plays(sse(openai_wire.stream("One two three")[:3], end=stall()))
    send(other, "Third, of the other tab")
    expect(answer_of(other)).to_contain_text("One two")
    send(playground, "Third, of this tab")
    expect(playground.get_by_text("Another tab has continued this conversation")).to_be_visible()
    button(other, "Stop").click()
    expect(answer_of(other)).to_contain_text("Stopped")
    for page, own in ((playground, "Third, of this tab"), (other, "Third, of the other tab")):
        page.reload()
        expect(page.locator(".turn .prompt")).to_have_text(["First", "Second", own])
        expect(button(page, "Conversations (2)")).to_be_visible()


def test_copied_link_says_what_has_no_room_in_it(playground: Page, context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_settings(playground)
    playground.get_by_label("System prompt").fill("Be brief.")
    send(playground, "word " * 900)
    expect(answer_of(playground)).to_contain_text("Complete")
    playground.get_by_role("button", name="Copy link").click()
    expect(playground.get_by_role("status").filter(has_text="The link is without the prompt.")).to_be_visible()
    link = playground.evaluate("navigator.clipboard.readText()")
    assert link.endswith("/console/playground?model=gpt-4o&system=Be+brief.")


def test_conversations_of_another_key_are_not_shown(console: Console, playground: Page) -> None:
    send(playground, "A private question")
    expect(answer_of(playground)).to_contain_text("Complete")
    playground.context.clear_cookies()
    console.enter(playground, console.admin_key, "Playground")
    expect(button(playground, "Conversations (0)")).to_be_visible()
    expect(playground.get_by_text("A private question")).to_have_count(0)


def test_oldest_conversations_make_room_for_a_new_one(playground: Page) -> None:
    send(playground, "The oldest")
    expect(answer_of(playground)).to_contain_text("Complete")
    button(playground, "New conversation").click()
    playground.evaluate(
        """() => {
          const name = Object.keys(localStorage).find((one) => one.startsWith("svc.playground."));
          const oldest = JSON.parse(localStorage.getItem(name));
          for (let copy = 1; copy <= 50; copy += 1) {
            const id = String(copy).padStart(24, "0");
            const copied = { ...oldest, id, title: `Copy ${copy}`, updated: oldest.updated + copy };
            localStorage.setItem(name.replace(oldest.id, id), JSON.stringify(copied));
          }
          let foreign = "x".repeat(4_900_000);
          for (let size = foreign.length; size > 1000; size = Math.floor(size / 2)) {
            try { localStorage.setItem("foreign" + size, foreign.slice(0, size)); } catch { /* full */ }
          }
        }"""
    )
    send(playground, "The newest " + "word " * 2000)
    expect(answer_of(playground)).to_contain_text("Complete")
    expect(playground.get_by_text("This browser cannot keep the conversation")).to_have_count(0)
    playground.wait_for_function(
        """() => Object.entries(localStorage).some(([name, text]) => name.startsWith("svc.playground.")
          && JSON.parse(text).title?.startsWith("The newest word"))"""
    )
    kept = playground.evaluate(
        """() => Object.entries(localStorage).filter(([name]) => name.startsWith("svc.playground."))
          .map(([, text]) => JSON.parse(text).title)"""
    )
    assert len(kept) < 50
    assert "The oldest" not in kept
    assert "Copy 50" in kept


@pytest.mark.parametrize("script", [BLOCK_STORAGE, FILL_STORAGE], ids=["blocked", "full"])
def test_page_works_without_storage_and_says_so(console: Console, page: Page, script: str) -> None:
    page.add_init_script(script)
    open_playground(console, page)
    send(page, "Hi")
    expect(answer_of(page)).to_contain_text("Complete")
    expect(page.get_by_text("This browser cannot keep the conversation")).to_be_visible()
    expect(button(page, "Conversations (1)")).to_be_visible()


def test_copied_code_sends_the_same_request(
    console: Console, playground: Page, provider: FakeProvider, context: BrowserContext, tmp_path: Path
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_settings(playground)
    playground.get_by_label("System prompt").fill('It\'s "quoted" $HOME `id` \\n.')
    playground.get_by_label("More parameters (JSON)", exact=True).fill('{"parallel_tool_calls": true, "top_k": 5}')
    button(playground, "Insert an example: Tools (JSON)").click()
    send(playground, "Üben 'macht' den Meister\nEND")
    expect(answer_of(playground)).to_contain_text("Complete")
    sent = provider.requests[-1].json
    button(answer_of(playground), "Code of gpt-4o").click()
    dialog = playground.get_by_role("dialog")
    for language, command in (("curl", ["sh", "-c"]), ("Python", [sys.executable, "-c"])):
        button(dialog, language).click()
        playground.evaluate("navigator.clipboard.writeText('')")
        dialog.get_by_role("button", name=re.compile("^(Copy|Copied)$")).click()
        playground.wait_for_function("async () => await navigator.clipboard.readText() !== ''")
        code = playground.evaluate("navigator.clipboard.readText()")
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SVC_API_KEY": console.user_key}
        done = subprocess.run(
            [*command, code], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert provider.requests[-1].json == sent
    button(dialog, "TypeScript").click()
    expect(dialog.get_by_role("region")).to_contain_text(
        json.dumps("Üben 'macht' den Meister\nEND", ensure_ascii=False)
    )
    assert console.user_key not in playground.content()


def test_page_is_used_with_the_keyboard_alone(playground: Page, provider: FakeProvider) -> None:
    prompt_of(playground).focus()
    playground.keyboard.type("One")
    playground.keyboard.press("Shift+Enter")
    playground.keyboard.type("two")
    playground.keyboard.press("Enter")
    expect(answer_of(playground)).to_contain_text("Complete")
    assert messages_of(provider)[-1]["content"] == "One\ntwo"
    expect(prompt_of(playground)).to_be_focused()
    for _ in range(4):
        playground.keyboard.press("Shift+Tab")
        focused = playground.evaluate("document.activeElement.getAttribute('aria-label')")
        if focused == "Regenerate gpt-4o":
            break
    else:
        pytest.fail("Shift+Tab from the prompt does not reach Regenerate")
    playground.keyboard.press("Enter")
    wait_until(lambda: len(provider.requests) == 2)


def send_in_ended_session(console: Console, playground: Page) -> None:
    """Send a prompt after the end of the session, and log in again."""
    playground.context.clear_cookies()
    send(playground, "Are you there?")
    expect(playground.get_by_role("heading", name="Log in")).to_be_visible()
    playground.get_by_label("API key").fill(console.user_key)
    button(playground, "Log in").click()
    expect(answer_of(playground)).to_contain_text("Status 401")


def test_session_that_ended_loses_no_prompt(console: Console, playground: Page) -> None:
    send_in_ended_session(console, playground)
    button(playground, "Regenerate gpt-4o").click()
    expect(answer_of(playground)).to_contain_text("Complete")


def test_conversation_stays_if_the_models_cannot_be_loaded_after_a_login(console: Console, playground: Page) -> None:
    playground.route("**/v1/models", lambda route: route.fulfill(status=500, json={"error": {"message": "Fails."}}))
    send_in_ended_session(console, playground)
    button(playground, "Regenerate gpt-4o").click()
    expect(answer_of(playground)).to_contain_text("Complete")


def test_late_response_to_the_ended_session_keeps_the_new_one(console: Console, playground: Page) -> None:
    held: list[Route] = []

    def hold_one(route: Route) -> None:
        if route.request.post_data_json["model"] == "gpt-4o-mini":
            held.append(route)
        else:
            route.continue_()

    button(playground, "Add a model").click()
    playground.route("**/v1/chat/completions", hold_one)
    send_in_ended_session(console, playground)
    late = console.gateway.request("POST", "/v1/chat/completions", {}, key=None)
    held[0].fulfill(status=late.status, json=late.json)
    expect(answer_of(playground, "gpt-4o-mini")).to_contain_text("Status 401")
    expect(playground.get_by_role("heading", name="Log in")).to_have_count(0)


def test_server_gone_and_back(console: Console, playground: Page) -> None:
    """The last test of this file, as it restarts the gateway."""
    console.gateway.keep_port()
    console.gateway.stop()
    send(playground, "Hello?")
    expect(answer_of(playground)).to_contain_text("The gateway cannot be reached.")
    console.restart()
    button(playground, "Regenerate gpt-4o").click()
    expect(answer_of(playground)).to_contain_text("Complete")
