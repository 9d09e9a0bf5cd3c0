"""The seven cases of the compliance tests of OpenResponses, against every kind of upstream.

Requests and expectations follow openresponses.org/compliance. The models of the specification validate every response
and every event.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import Gateway
from tests.e2e.test_responses import EVERY, scripted
from tests.fakes.provider import FakeProvider
from tests.openresponses import validate_events, validate_response

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
WEATHER_TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
WEATHER_CALL = ("call_1", "get_weather", '{"location": "San Francisco, CA"}')


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


TEXT_CASES: dict[str, list[dict[str, Any]]] = {
    "basic-response": [message("user", "Say hello in exactly 3 words.")],
    "system-prompt": [message("system", "You are a pirate. Speak like one."), message("user", "Hello.")],
    "image-input": [
        message(
            "user",
            [{"type": "input_text", "text": "What is in this image?"}, IMAGE],
        )
    ],
    "multi-turn": [
        message("user", "My name is Alice."),
        message("assistant", "Hello Alice! How can I help you?"),
        message("user", "What is my name?"),
    ],
}


@pytest.mark.parametrize("case", TEXT_CASES)
@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_openresponses_text_case_is_completed(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, case: str
) -> None:
    fakes[letter].plays(scripted(letter, "Hello to you"))
    got = gateway.request("POST", "/v1/responses", {"model": model, "input": TEXT_CASES[case]})
    response = validate_response(got.json)
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["message"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_openresponses_streaming_response_is_completed(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, "1 2 3 4 5", stream=True))
    request = {"model": model, "input": [message("user", "Count from 1 to 5.")], "stream": True}
    events = validate_events(gateway.request("POST", "/v1/responses", request).body)
    assert validate_response(events[-1]["response"]).status == "completed"


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_openresponses_tool_calling_returns_function_call(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, None, tools=[WEATHER_CALL]))
    request = {"model": model, "input": [message("user", "Weather in San Francisco?")], "tools": [WEATHER_TOOL]}
    response = validate_response(gateway.request("POST", "/v1/responses", request).json)
    assert [item.type for item in response.output] == ["function_call"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_openresponses_tool_calling_streaming_has_call_events(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, None, tools=[WEATHER_CALL], stream=True))
    request = {"model": model, "input": [message("user", "Weather?")], "tools": [WEATHER_TOOL], "stream": True}
    events = validate_events(gateway.request("POST", "/v1/responses", request).body)
    types = [event["type"] for event in events]
    items = [(event["type"], event["item"]["type"]) for event in events if "item" in event]
    assert items == [
        ("response.output_item.added", "function_call"),
        ("response.output_item.done", "function_call"),
    ]
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= {*types}
