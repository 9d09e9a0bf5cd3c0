"""`client.responses` of both clients."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, fin, reset, sse
from tests.unit.client import responses_objects
from tests.unit.client.conftest import Call
from tests.unit.client.responses_objects import custom_call, function_call, message, reasoning, response, stream

from svc import errors
from svc.client.chat import ChatBackend
from svc.client.core import DirectProvider
from svc.client.responses import ResponseUsage
from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile

ITEMS = [
    reasoning("Let me see."),
    message("Hello there."),
    function_call("call_1", "get_weather", '{"city": "Oslo"}'),
    custom_call("call_2", "patch", "*** Begin"),
]
CUT = stream(ITEMS, end=None)


def test_responses_string_returns_typed_response(call: Call, server: FakeProvider) -> None:
    server.plays(answer(200, response(ITEMS), headers={"x-request-id": "r1"}))
    got = call("responses", "Hi", model="m1", instructions="Be brief.", max_output_tokens=5, temperature=None)
    assert (got.id, got.status, got.text, got.reasoning) == (
        responses_objects.ID,
        "completed",
        "Hello there.",
        "Let me see.",
    )
    assert got.usage == ResponseUsage(11, 7, 18, 4, 2)
    weather, patch = got.tool_calls
    assert (weather.id, weather.name, weather.arguments) == ("call_1", "get_weather", {"city": "Oslo"})
    assert (patch.id, patch.name, patch.arguments) == ("call_2", "patch", {"input": "*** Begin"})
    assert (got.output, got.raw["object"], got.request_id) == (ITEMS, "response", "r1")
    seen = server.wait()
    assert seen.path == "/v1/responses"
    assert seen.json == {"model": "m1", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 5}


def test_responses_items_are_sent_unchanged_with_default_model(call: Call, server: FakeProvider) -> None:
    server.plays(answer(200, response([message("ok")])))
    items = [*ITEMS, {"type": "function_call_output", "call_id": "call_1", "output": "cold"}]
    call("responses", items)
    assert server.wait().json == {"model": "gpt-4o-mini", "input": items}


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_responses_stream_yields_text_reasoning_and_tool_calls(call: Call, server: FakeProvider, size: int) -> None:
    server.plays(sse(stream(ITEMS), split_at=size))
    events, made = call("responses", "Hi", stream=True)
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert [each.raw["sequence_number"] for each in events] == list(range(len(events)))
    assert "".join(each.text for each in events) == made.text == made.result.text == "Hello there."
    assert "".join(each.reasoning for each in events) == "Let me see."
    for index, text in enumerate(['{"city": "Oslo"}', "*** Begin"]):
        deltas = [each.tool_call for each in events if each.tool_call and each.tool_call.index == index]
        assert "".join(delta.arguments_json for delta in deltas) == text
    assert [each.name for each in made.result.tool_calls] == ["get_weather", "patch"]
    assert made.result.usage.total_tokens == 18
    assert server.wait().json["stream"] is True


def test_responses_incomplete_one_has_its_reason(call: Call, server: FakeProvider) -> None:
    details = {"reason": "max_output_tokens"}
    server.plays(
        answer(200, response([message("He")], status="incomplete", incomplete_details=details)),
        sse(stream([message("He")], end="response.incomplete", incomplete_details=details)),
    )
    for got in (call("responses", "Hi"), call("responses", "Hi", stream=True)[1].result):
        assert (got.status, got.incomplete_reason, got.text) == ("incomplete", "max_output_tokens", "He")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("provider_error", errors.ProviderFailed),
        ("rate_limit_exceeded", errors.RateLimited),
        ("server_error", errors.ProviderFailed),
        (None, errors.ProviderFailed),
    ],
)
def test_responses_failed_one_raises_its_error(
    call: Call, server: FakeProvider, code: Any, expected: type[Exception]
) -> None:
    failure = {"code": code, "message": "it broke"}
    flat = responses_objects.event("error", 9, code=code, message="it broke", param=None)
    server.plays(
        answer(200, response([], status="failed", error=failure)),
        sse(stream([message("He")], end="response.failed", error=failure)),
        sse([*CUT, flat]),
        sse([*CUT, responses_objects.event("error", 9, error=failure)]),
    )
    for streams in (False, True, True, True):
        with pytest.raises(expected, match="it broke"):
            call("responses", "Hi", stream=streams)


@pytest.mark.parametrize(
    "script",
    [sse(CUT), sse(CUT[:1]), sse(CUT, end=fin()), sse(CUT, end=reset()), sse([*CUT, b"data: [DONE]\n\n"]), sse([])],
)
def test_responses_stream_without_end_raises(call: Call, server: FakeProvider, script: Any) -> None:
    server.always_plays(script)
    with pytest.raises((errors.ProviderFailed, errors.GatewayFailed), match="interrupted"):
        call("responses", "Hi", stream=True)


@pytest.mark.parametrize(
    "event",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: {"type": "response.output_text.delta"}\n\n',
        b'data: {"type": "response.output_text.delta", "delta": 5}\n\n',
        b'data: {"type": "response.function_call_arguments.delta", "output_index": 77, "delta": "x"}\n\n',
        b'data: {"type": "response.completed", "response": {"object": "response"}}\n\n',
        b'data: {"type": "response.completed"}\n\n',
        b'data: {"object": "chat.completion.chunk", "choices": []}\n\n',
    ],
)
def test_responses_stream_malformed_event_raises(call: Call, server: FakeProvider, event: bytes) -> None:
    server.plays(sse([*CUT, event]))
    with pytest.raises((errors.ProviderFailed, errors.GatewayFailed)):
        call("responses", "Hi", stream=True)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", openai_wire.chat(), {"object": "response"}, response([{"text": "no type"}])]
)
def test_responses_malformed_response_raises_gateway_failed(call: Call, server: FakeProvider, body: Any) -> None:
    server.plays(answer(200, body))
    with pytest.raises(errors.GatewayFailed):
        call("responses", "Hi")


def test_responses_default_model_missing_uses_an_offered_chat_model(call: Call, server: FakeProvider) -> None:
    missing = answer(404, {"error": {"message": "no", "type": "t", "code": "model_not_found", "param": None}})
    models = answer(200, {"object": "list", "data": [{"id": "vectors", "kind": "embedding"}, {"id": "talk"}]})
    for streams, good in ((False, answer(200, response(ITEMS))), (True, sse(stream(ITEMS)))):
        server.plays(missing, models, good)
        call("responses", "Hi", stream=streams)
        assert server.requests[-1].json["model"] == "talk"


def test_responses_at_a_provider_of_the_dialect_or_not(call: Call, server: FakeProvider) -> None:
    server.plays(answer(200, response(ITEMS)))

    def direct(dialect: Any) -> dict[str, Any]:
        backend = ChatBackend(dialect, ModelProfile("theirs"))
        return {"direct": DirectProvider(f"{server.address}/v1", {"authorization": "Bearer key-1"}, backend)}

    assert call("responses", "Hi", client=direct(openai.dialect)).text == "Hello there."
    assert server.wait().json["model"] == "theirs"
    with pytest.raises(errors.InvalidRequest):
        call("responses", "Hi", client=direct(anthropic.dialect))
    assert len(server.requests) == 1


def test_responses_input_not_serializable_raises_before_sending(call: Call, server: FakeProvider) -> None:
    with pytest.raises(errors.InvalidRequest):
        call("responses", [{"x": object()}])
    assert not server.requests
