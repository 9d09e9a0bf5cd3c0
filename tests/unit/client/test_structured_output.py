"""Chats with a schema: the field of the request, the parsed value, and responses that do not match."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

import svc
from svc import errors
from svc.client.structured_output import parse_structured

Call = Callable[..., Any]

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def response_with(text: str, finish_reason: str = "stop") -> Any:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return answer(200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def test_chat_schema_is_sent_and_response_is_parsed(call: Call, server: FakeProvider) -> None:
    server.plays(response_with('{"city": "Oslo", "days": 2}'))
    assert call("chat", "Where?", model="m", schema=PLACE).parsed == {"city": "Oslo", "days": 2}
    assert server.requests[0].json["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": PLACE, "strict": True},
    }
    assert "schema" not in server.requests[0].json


def test_chat_stream_with_schema_is_parsed_after_its_end(server: FakeProvider) -> None:
    server.plays(sse(openai_wire.stream('{"city": "Oslo"}')))
    with svc.Client(gateway_url=server.address, api_key="key-1") as client:
        stream = client.chat("Where?", stream=True, schema=PLACE)
        with pytest.raises(errors.UsageError, match="not complete"):
            _ = stream.parsed
        for _ in stream:
            pass
        assert stream.parsed == {"city": "Oslo"}


def test_chat_parsed_without_schema_or_of_a_cut_response_raises(call: Call, server: FakeProvider) -> None:
    with pytest.raises(errors.UsageError, match="no `schema`"):
        _ = call("chat", "Hi", model="m").parsed
    server.plays(response_with('{"city": "Os', "length"))
    with pytest.raises(errors.ProviderFailed, match="max_tokens"):
        _ = call("chat", "Hi", model="m", schema=PLACE).parsed
    with pytest.raises(errors.InvalidRequest, match="not a JSON schema"):
        call("chat", "Hi", model="m", schema="city")


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ({"days": 2}, PLACE, "city is missing"),
        ({"city": 1}, PLACE, "city is integer, not string"),
        ({"city": "a", "days": 1.5}, PLACE, "days is number, not integer"),
        (True, {"type": "integer"}, "the value is boolean, not integer"),
        (["a", None], {"type": "array", "items": {"type": "string"}}, r"\[1\] is null, not string"),
        ([{"city": 1}], {"items": PLACE}, r"\[0\].city is integer"),
        (True, {"enum": [1, 2]}, "not one of the allowed values"),
        ("b", {"const": "a"}, 'the value is not "a"'),
        (1, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "matches none of the alternatives"),
        (1, {"type": ["string", "null"]}, "not string or null"),
        ({"city": 1}, {"properties": {"city": False}}, "city is not allowed"),
        ([1], {"items": False}, r"\[0\] is not allowed"),
    ],
)
def test_parse_structured_wrong_value_names_the_place(value: Any, schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(errors.ProviderFailed, match=problem):
        parse_structured(json.dumps(value), schema, "stop")


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (2.0, {"type": "integer"}),
        (2, {"type": "number"}),
        (None, {"type": ["string", "null"]}),
        ("a", {"enum": ["a", "b"]}),
        ({"city": "Oslo", "more": 1}, PLACE),
        ([], {"type": "array", "items": {"type": "string"}}),
        (1, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"a": [1]}, {}),
        ({"a": [1]}, {"properties": {"a": {"items": True}, "b": False}, "anyOf": [True]}),
    ],
)
def test_parse_structured_matching_value_is_returned(value: Any, schema: dict[str, Any]) -> None:
    assert parse_structured(json.dumps(value), schema, "stop") == value


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "Oslo", '{"city": NaN}'])
def test_parse_structured_text_that_is_no_json_raises_provider_failed(text: str) -> None:
    with pytest.raises(errors.ProviderFailed, match="not complete JSON"):
        parse_structured(text, PLACE, "stop")
