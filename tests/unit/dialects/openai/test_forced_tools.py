"""Text that an upstream writes by the schema of the tools becomes a tool call, wherever the stream splits it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.nesting import depths_near_limit

from svc.dialects import openai
from svc.dialects.base import ModelProfile
from svc.dialects.openai.forced_tools import MAX_TOOL_SCHEMA_DEPTH, CallParser
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.chat import FinishReason, StreamDelta, ToolCall, ToolCallArguments, ToolCallStart

ARGUMENTS = '{"text": "a \\"}\\" }}", "n": {"m": [1, {}]}}'
TEXT = f'{{\n  "name" : "say-\\u0069t",\n  "arguments": {ARGUMENTS}\n}}\n'


def parse(text: str) -> list[StreamDelta]:
    parser = CallParser()
    return parser.feed(text) + parser.finish("stop")


def call_of(deltas: list[StreamDelta]) -> tuple[str, str]:
    (start,) = [delta for delta in deltas if isinstance(delta, ToolCallStart)]
    return start.name, "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_call_parser_any_split_returns_name_and_arguments(size: int) -> None:
    parser, deltas = CallParser(), []
    for start in range(0, len(TEXT), size):
        deltas += parser.feed(TEXT[start : start + size])
    assert call_of(deltas + parser.finish("stop")) == ("say-it", ARGUMENTS)


def test_call_parser_cut_text_keeps_incomplete_arguments() -> None:
    parser = CallParser()
    cut = TEXT[: TEXT.index('n": {') + 9]
    assert call_of(parser.feed(cut) + parser.finish("length"))[1] == cut[cut.index("{", 1) :]


@pytest.mark.parametrize("text", ["", "Hello", '{"name": "f"}', '{"name": "f", "arguments": {"a": 1', "x" * 5000])
def test_call_parser_complete_text_without_call_raises(text: str) -> None:
    with pytest.raises(ProviderFailed):
        parse(text)


@pytest.mark.parametrize(("reason", "parts"), [("stop", 1), ("length", 0)])
def test_decode_response_text_becomes_call(reason: FinishReason, parts: int) -> None:
    variant = openai.dialect.forced_tool_variant
    assert variant is not None
    text = TEXT if parts else '{"name": "sa'
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    response = variant.decode_response(json.dumps(body).encode())
    assert response.finish == ("tool_calls" if parts else "length")
    calls = [(part.name, part.arguments) for part in response.parts if isinstance(part, ToolCall)]
    assert calls == [("say-it", ARGUMENTS)] * parts
    assert len(response.parts) == parts


def encode(**fields: Any) -> dict[str, Any]:
    variant = openai.dialect.forced_tool_variant
    assert variant is not None
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    request = variant.decode_request(json.dumps(body).encode())
    encoded: dict[str, Any] = json.loads(variant.encode_request(request, ModelProfile("m")).body)
    return encoded


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_encode_request_references_point_to_their_new_place() -> None:
    node = {"properties": {"next": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}}, "$defs": {"node": {}}}
    sent = encode(tools=[tool("f", type="object"), tool("g", **node)], tool_choice="required")
    schema = sent["response_format"]["json_schema"]["schema"]
    assert [one["properties"]["name"]["const"] for one in schema["anyOf"]] == ["f", "g"]
    moved = schema["$defs"]["tool1"]["properties"]
    assert (moved["next"]["$ref"], moved["all"]["$ref"]) == ("#/$defs/tool1/$defs/node", "#/$defs/tool1")
    assert "tools" not in sent
    assert "tool_choice" not in sent


def nest_parameters(depth: int) -> dict[str, Any]:
    """Return parameters of the depth, with a reference inside."""
    schema: dict[str, Any] = {"$ref": "#"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_encode_request_parameters_at_the_maximum_depth_are_sent() -> None:
    sent = encode(tools=[tool("f", **nest_parameters(MAX_TOOL_SCHEMA_DEPTH))], tool_choice="required")
    assert '"$ref": "#/$defs/tool0"}}' in json.dumps(sent["response_format"]["json_schema"]["schema"])


def test_encode_request_deeply_nested_parameters_are_rejected() -> None:
    variant = openai.dialect.forced_tool_variant
    assert variant is not None
    for depth in (MAX_TOOL_SCHEMA_DEPTH + 1, *depths_near_limit()):
        parameters = '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)
        function = f'{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}'
        tools = f'"tools":[{function}],"tool_choice":"required"'
        body = f'{{"model":"m","messages":[{{"role":"user","content":"Hi"}}],{tools}}}'
        with pytest.raises(InvalidRequest):
            variant.encode_request(variant.decode_request(body.encode()), ModelProfile("m"))


def test_encode_request_named_tool_is_the_only_one() -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    sent = encode(messages=messages, tools=[tool("f"), tool("g")], tool_choice=choice)
    assert sent["response_format"]["json_schema"]["schema"]["properties"]["name"] == {"const": "g"}
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["messages"][0]["content"].startswith("Be brief.")
    assert '"f"' not in sent["messages"][0]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    ],
)
def test_encode_request_without_the_tool_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(**fields)
    assert caught.value.param == "tool_choice"
