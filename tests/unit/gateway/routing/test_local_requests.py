"""Requests that are not sent to a model of this machine: long prompts, and schemas without a usable grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects.base import EncodedRequest, EncodedResponse, RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.gateway.routing.local_requests import MAX_OPTIONAL_PROPERTIES, MIN_CHECKED_PROMPT_BYTES, check_local_request


def check_body(body: bytes, encoded: EncodedRequest | None = None) -> None:
    check_local_request(encoded or EncodedRequest(body), RequestBody(body), RoutingInfo(model="m"), 8192, str)


def check(schema: Any, **fields: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    check_body(json.dumps({"messages": [], "response_format": form, **fields}).encode())


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "minLength": 5, "maxLength": 2}, "`minLength` above `maxLength`"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "`minItems` above `maxItems`"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "an integer"),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6}, "an integer"),
        ({"type": "integer", "exclusiveMinimum": 5, "maximum": 5}, "an integer"),
        ({"type": "string", "pattern": "^a{1,2}b{5,2}$"}, "`pattern`"),
        (optional(MAX_OPTIONAL_PROPERTIES + 1), "optional properties"),
        ({"anyOf": [optional(150), optional(150), optional(150)]}, "optional properties"),
        ({"type": "string", "minLength": 5.0, "maxLength": 2.0}, "`minLength` above `maxLength`"),
        ({"type": "string", "minLength": 5, "maxLength": (1 << 32) + 2}, "a `maxLength` above 2147483647"),
        ({"type": "string", "pattern": "^a{5, 2}$"}, "`pattern`"),
        ({"type": "string", "pattern": "^a{+5,+2x}$"}, "`pattern`"),
        ({"allOf": [{"anyOf": [optional(150), {"properties": {f"q{n}": {} for n in range(150)}}]}]}, "optional"),
        ({**optional(150), "type": ["object", "object"]}, "optional properties"),
        ({"type": "integer", "minimum": 5.5, "maximum": 5.7}, "an integer"),
        ({"type": "integer", "minimum": 10**30, "maximum": 10**31}, "`minimum` that is not an integer of 64 bits"),
        ({"type": "integer", "maximum": -(2**63)}, "`maximum` that is not an integer of 64 bits"),
        ({"enum": [str(number) for number in range(1001)]}, "more alternatives"),
        ({"oneOf": [{"const": number} for number in range(1001)]}, "more alternatives"),
        ({"anyOf": [{"enum": [str(number) for number in range(700)]} for _ in range(3)]}, "more alternatives"),
        ({"type": "string", "pattern": f"^{'a?' * 65}$"}, "more alternatives"),
        ({"type": "string", "pattern": "^(a*){1,2000}$"}, "more alternatives"),
        ({"type": "string", "pattern": "^((a?b?){1,40}c?){1,40}$"}, "more alternatives"),
        ({"type": "string", "pattern": f"^({'|'.join(f'w{number}' for number in range(1100))})$"}, "more alternatives"),
        ({"type": "string", "pattern": "a" * 10_001}, "more alternatives"),
    ],
)
def test_check_local_request_schema_without_a_grammar_raises(schema: dict[str, Any], message: str) -> None:
    for nested in (
        schema,
        {"properties": {"x": {"items": [schema]}}, "required": ["x"]},
        {"$defs": {"enum": schema}},
        {"allOf": [schema]},
    ):
        with pytest.raises(InvalidRequest, match=message) as caught:
            check(nested)
        assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        None,
        [],
        {"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^a{2,2}[0-9]{3}b{4,}$"},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
        {"type": "integer", "minimum": "5", "maximum": 2},
        {"type": "number", "minimum": 5.5, "maximum": 2},
        {"minLength": True, "maxLength": False},
        optional(MAX_OPTIONAL_PROPERTIES),
        {**optional(5000), "required": [f"p{number}" for number in range(5000)]},
        {"allOf": [optional(20) for _ in range(90)]},
        {"anyOf": [optional(26) for _ in range(60)]},
        {"type": "string", "pattern": "^a\\{5,2\\}{,2}{2,}{x,1}{}$"},
        {"type": "string", "pattern": "^[?*+(|]{0,1000}\\?\\*(a|b){1,200}(a|b){1,200}$"},
        {"type": "string", "pattern": ")){9})(("},
        {"enum": [str(number) for number in range(1000)]},
        {"anyOf": [{"enum": [str(number) for number in range(20)]} for _ in range(700)]},
        {"enum": "x", "anyOf": 5, "oneOf": {"a": 1}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {"$ref": "#/no/1", "items": [{"$ref": "#/items/7"}, {"$ref": 5}, {"$ref": "https://example.org/a"}]},
        {"properties": {"minLength": {"minimum": 9}, "maxLength": {"maximum": 1}}},
        {"enum": [{"minLength": 5, "maxLength": 2}], "default": {"minItems": 2, "maxItems": 1}},
        {"properties": [1], "required": 5, "pattern": 7},
    ],
)
def test_check_local_request_usable_or_unknown_schema_is_left_to_llama(schema: Any) -> None:
    check(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/default", "default": {"type": "string", "minLength": 5, "maxLength": 2}},
        {"$ref": "#/$defs", "$defs": {"properties": {f"p{number}": {} for number in range(1500)}}},
        {"properties": {"x": {"$ref": "#/enum/1"}}, "enum": [1, {"minItems": 3, "maxItems": 2}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"anyOf": [{"$ref": "#/$defs/a"}]}]},
    ],
)
def test_check_local_request_reference_is_followed(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="The JSON schema has"):
        check(schema)


UNUSABLE = {"properties": {"a": {"minItems": 3, "maxItems": 2}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "tools"),
        ({"tool_choice": "auto", "response_format": {"type": "json_object"}}, "tools"),
        ({"tool_choice": "none"}, None),
        ({"response_format": {"type": "json_object", "schema": UNUSABLE}}, "response_format"),
        ({"json_schema": UNUSABLE}, "json_schema"),
    ],
)
def test_check_local_request_names_the_field_of_the_schema(fields: dict[str, Any], param: str | None) -> None:
    function = {"name": "f", "parameters": UNUSABLE}
    tools = [{"type": "function", "function": function}]
    body = json.dumps({"tools": tools, **fields} if param != "json_schema" else fields).encode()
    if param is None:
        check_body(body)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_body(body)
    assert caught.value.param == param


def test_check_local_request_names_tools_that_must_be_called() -> None:
    """The gateway sends them as the schema of the response."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": UNUSABLE}}]
    body = json.dumps({"tools": tools, "tool_choice": "required"}).encode()
    form = {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": UNUSABLE}}
    with pytest.raises(InvalidRequest) as caught:
        check_body(body, EncodedRequest(json.dumps({"response_format": form}).encode()))
    assert caught.value.param == "tools"


def test_check_local_request_made_by_the_gateway_is_not_checked() -> None:
    body = b"a" * (2 * MIN_CHECKED_PROMPT_BYTES)
    check_body(body, EncodedRequest(b"", local_response=EncodedResponse(b"{}", None, "stop", "m")))


def test_check_local_request_invalid_text_is_an_error_of_the_client() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        check_body(b'{"messages":[{"content":"\\ud83d"}],"response_format":{}}')


def test_check_local_request_rejects_only_very_long_prompts() -> None:
    text = "word " * 300_000
    body = RequestBody(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
    encoded, info = EncodedRequest(body.raw), RoutingInfo(model="m")
    check_local_request(encoded, body, info, 60_000, str)
    with pytest.raises(InvalidRequest, match="than the context window of this model, 8192 tokens: it has about 37"):
        check_local_request(encoded, body, info, 8192, str)
    check_local_request(encoded, body, RoutingInfo(model="m", has_single_prompt=False), 8192, str)
    short = RequestBody(b'{"messages":[]}')
    check_local_request(encoded, short, info, 8192, str)
    short.earlier_tokens = 100_000
    with pytest.raises(InvalidRequest, match="`messages` is longer"):
        check_local_request(encoded, short, info, 8192, str)
