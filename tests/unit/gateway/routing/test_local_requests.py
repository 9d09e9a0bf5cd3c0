"""Requests that are not sent to a model of this machine: long prompts, and schemas without a usable grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.gateway.routing.local_requests import MAX_OPTIONAL_PROPERTIES, check_prompt_length, check_schemas


def check(schema: Any, **fields: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = json.dumps({"messages": [], "response_format": form, **fields}).encode()
    check_schemas(body, body, str)


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
        ({"anyOf": [optional(150), optional(150)]}, "optional properties"),
    ],
)
def test_check_schemas_without_a_grammar_raises(schema: dict[str, Any], message: str) -> None:
    for nested in (schema, {"properties": {"x": {"items": [schema]}}, "required": ["x"]}, {"$defs": {"enum": schema}}):
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
        {"properties": {"minLength": {"minimum": 9}, "maxLength": {"maximum": 1}}},
        {"enum": [{"minLength": 5, "maxLength": 2}], "default": {"minItems": 2, "maxItems": 1}},
        {"properties": [1], "required": 5, "pattern": 7},
    ],
)
def test_check_schemas_usable_or_unknown_are_left_to_llama(schema: Any) -> None:
    check(schema)


def test_check_schemas_names_the_tools_of_the_client() -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"minItems": 3, "maxItems": 2}}}}
    body = json.dumps({"tools": [{"type": "function", "function": function}]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        check_schemas(body, body, str)
    assert caught.value.param == "tools"


def test_check_prompt_length_rejects_only_what_no_tokenizer_makes_fit() -> None:
    text = "word " * 100_000
    body = RequestBody(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
    check_prompt_length(body, RoutingInfo(model="m"), 20_000, "messages")
    with pytest.raises(InvalidRequest, match="than the context window of this model, 8192 tokens: it has about 12"):
        check_prompt_length(body, RoutingInfo(model="m"), 8192, "messages")
    check_prompt_length(body, RoutingInfo(model="m", has_single_prompt=False), 8192, "input")
