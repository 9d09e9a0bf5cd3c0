"""`POST /v1/responses` with the openai SDK as the client and every kind of upstream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.harness import CLAUDE, GPT, LLAMA, Gateway
from tests.e2e.test_openai_client import TWO_CALLS, scripted_response
from tests.fakes import anthropic_wire, openai_wire, responses_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import Script, answer, fin, reset, sse

EVERY = [("A", GPT), ("B", CLAUDE), ("C", LLAMA)]
"""An upstream with the Responses API, one of Anthropic's dialect, and one with chat completions."""
TRANSLATED = EVERY[1:]
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": name,
        "description": f"The {name}",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    for name in ("weather", "time")
]


def scripted(letter: str, text: str | None, *, tools: list[Any] | None = None, stream: bool = False) -> Script:
    """Return the script of a provider's response in its own format."""
    if letter != "A":
        return scripted_response(letter, text, tools=tools, stream=stream)
    if stream:
        return sse(responses_wire.tool_stream(tools) if tools else responses_wire.stream(text or ""))
    return answer(200, responses_wire.response(text, tools=tools or ()))


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, which are numbered from 0 without a gap."""
    events = []
    for block in body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_json_reaches_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, "Servus, Österreich 🦙"))
    got = openai_client.responses.with_raw_response.create(model=model, input="Hi", instructions="Be brief.")
    response = got.parse()
    assert response.output_text == "Servus, Österreich 🦙"
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.id.startswith("resp_")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (11, 7, 18)
    assert got.headers["x-svc-provider"] == {"A": "openai", "B": "anthropic", "C": "groq"}[letter]
    sent = fakes[letter].wait().json
    assert sent["model"] == model
    if letter == "A":
        assert (sent["input"], sent["instructions"]) == ("Hi", "Be brief.")
    elif letter == "B":
        assert (sent["system"], sent["messages"]) == ("Be brief.", [{"role": "user", "content": "Hi"}])
    else:
        assert [turn["role"] for turn in sent["messages"]] == ["system", "user"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_stream_reaches_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, "eins zwei drei", stream=True))
    with openai_client.responses.stream(model=model, input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "eins zwei drei"
    assert len(deltas) >= 3
    assert (final.status, final.usage.output_tokens) == ("completed", 7)


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_stream_events_are_in_documented_order(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, "eins zwei", stream=True))
    got = gateway.request("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": True})
    assert got.headers["content-type"].startswith("text/event-stream")
    assert [event["type"] for event in events_of(got.body)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_two_tool_calls_reach_sdk(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str, stream: bool
) -> None:
    fakes[letter].plays(scripted(letter, None, tools=TWO_CALLS, stream=stream))
    if stream:
        with openai_client.responses.stream(model=model, input="Hi", tools=TOOLS) as opened:
            response = opened.get_final_response()
    else:
        response = openai_client.responses.create(model=model, input="Hi", tools=TOOLS)
    calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in response.output]
    assert calls == [(call_id, name, json.loads(arguments)) for call_id, name, arguments in TWO_CALLS]
    sent = fakes[letter].wait().json["tools"]
    assert [(one.get("function") or one)["name"] for one in sent] == ["weather", "time"]


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_parse_returns_structured_output(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(scripted(letter, '{"name": "Graz", "people": 305000}'))
    response = openai_client.responses.parse(model=model, input="Graz?", text_format=City)
    assert response.output_parsed == City(name="Graz", people=305000)
    sent = fakes[letter].wait().json
    if letter == "B":
        assert sent["output_config"]["format"]["type"] == "json_schema"
    elif letter == "C":
        assert sent["response_format"]["json_schema"]["name"] == "City"


@pytest.mark.parametrize(("letter", "model"), TRANSLATED)
def test_responses_tool_turn_is_translated(
    openai_client: openai.OpenAI, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    conversation: list[Any] = [
        {"role": "user", "content": "Weather and time?"},
        *(
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            for call_id, name, arguments in TWO_CALLS
        ),
        *({"type": "function_call_output", "call_id": call_id, "output": name} for call_id, name, _ in TWO_CALLS),
    ]
    openai_client.responses.create(model=model, input=conversation, tools=TOOLS)
    messages = fakes[letter].wait().json["messages"]
    if letter == "B":
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert [block["type"] for block in messages[1]["content"]] == ["tool_use"] * 2
        assert [block["content"] for block in messages[2]["content"]] == ["weather", "time"]
    else:
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
        assert [call["id"] for call in messages[1]["tool_calls"]] == ["call_1", "call_2"]


@pytest.mark.parametrize(("letter", "model"), EVERY)
@pytest.mark.parametrize("end", [fin(), reset()], ids=["fin", "reset"])
def test_responses_truncated_stream_ends_with_failed(
    gateway_without_retries: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str, end: Script
) -> None:
    streams = {
        "A": responses_wire.stream("eins zwei drei")[:6],
        "B": anthropic_wire.stream([anthropic_wire.text("eins zwei drei")])[:4],
        "C": openai_wire.stream("eins zwei drei")[:3],
    }
    fakes[letter].plays(sse(streams[letter], end=end))
    got = gateway_without_retries.request("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": True})
    events = events_of(got.body)
    assert [event["type"] for event in events].count("response.completed") == 0
    last = events[-1]
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "provider_error")
    (item,) = last["response"]["output"]
    assert item["content"][0]["text"] == "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_upstream_error_is_reported(
    gateway_without_retries: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    fakes[letter].plays(answer(500, b"{}"))
    got = gateway_without_retries.request("POST", "/v1/responses", {"model": model, "input": "Hi"})
    assert (got.status, got.json["error"]["code"]) == (502, "provider_error")


@pytest.mark.parametrize(("letter", "model"), EVERY)
def test_responses_text_of_a_large_body_is_sent(
    gateway: Gateway, fakes: dict[str, FakeProvider], letter: str, model: str
) -> None:
    text = "a" * 40_000
    got = gateway.request("POST", "/v1/responses", {"model": model, "input": text})
    assert got.status == 200, got.body
    assert text in fakes[letter].wait().body.decode()


def test_responses_unknown_field_is_dropped_by_its_own_name(gateway: Gateway, provider_c: FakeProvider) -> None:
    body = {"model": LLAMA, "input": "Hi", "max_tokens": 5, "max_output_tokens": 10}
    got = gateway.request("POST", "/v1/responses", body)
    assert got.headers["x-svc-dropped"] == "max_tokens"


def test_responses_message_without_content_is_400(gateway: Gateway, provider_c: FakeProvider) -> None:
    body = {"model": LLAMA, "input": [{"role": "user", "content": []}]}
    got = gateway.request("POST", "/v1/responses", body)
    assert (got.status, got.json["error"]["param"]) == (400, "input")
    assert not provider_c.requests
