"""The gateway rejects a response format without a valid schema before it calls an upstream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import decode_routing_info, pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
AT = "response_format.json_schema"


def body(form: Any, *, padding: int = 0) -> bytes:
    messages = [USER, {"role": "user", "content": "x" * padding}]
    return json.dumps({"model": "m", "messages": messages, "response_format": form}).encode()


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("form", "param"),
    [
        *((named(schema=schema), f"{AT}.schema") for schema in (123, "x", [], [SCHEMA], True, 1.5)),
        (named(schema=None), f"{AT}.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, f"{AT}.schema"),
        ({"type": "json_schema"}, AT),
        ({"type": "json_schema", "json_schema": None}, AT),
        ({"type": "json_schema", "json_schema": 5}, AT),
        ({"type": "json_schema", "schema": SCHEMA}, AT),
        (named(name=5), f"{AT}.name"),
        (named(name=["x"]), f"{AT}.name"),
        (named(strict="yes"), f"{AT}.strict"),
        ({"type": "json_object", "schema": 5}, "response_format.schema"),
        ({"json_schema": {}}, "response_format.type"),
        ({"type": 5}, "response_format.type"),
        ("json_object", "response_format"),
        (5, "response_format"),
    ],
)
@pytest.mark.parametrize("padding", [0, 100_000])
def test_routing_info_invalid_response_format_error_names_the_field(form: Any, param: str, padding: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(openai.dialect, body(form, padding=padding))
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "form",
    [
        None,
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "regex", "pattern": "a+"},
        named(),
        named(schema={}),
        named(name=None, strict=True, description="d"),
        named(schema={"type": "nonsense"}),
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    ],
)
def test_passthrough_response_format_with_valid_shape_is_unchanged(form: Any) -> None:
    raw = body(form)
    assert pass_through_request(openai.dialect, raw, ModelProfile("m")).body is raw


def output(form: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 5, "messages": [USER], "output_config": {"format": form}}).encode()


@pytest.mark.parametrize("form", [{"type": "json_schema"}, {"type": "json_schema", "schema": 123}])
def test_routing_info_anthropic_format_without_schema_error_names_the_field(form: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(anthropic.dialect, output(form))
    assert caught.value.param == "output_config.format.schema"


@pytest.mark.parametrize("form", [None, {"type": "json_schema", "schema": SCHEMA}, {"type": "newer", "x": 1}])
def test_passthrough_anthropic_format_with_schema_is_unchanged(form: Any) -> None:
    raw = output(form)
    assert pass_through_request(anthropic.dialect, raw, ModelProfile("m")).body is raw
