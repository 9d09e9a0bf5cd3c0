"""The fields that are checked also if the upstream has the client's API, and those that the upstream checks itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import encode_responses_request, pass_through_request

from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile
from svc.errors import InvalidRequest

HI = [{"role": "user", "content": "Hi"}]
BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HI},
    "messages": {"messages": HI, "max_tokens": 5},
    "responses": {"input": "Hi"},
}
_MESSAGES: dict[str, list[Any]] = {
    "messages": [None, "Hi", [], {}],
    "messages[0]": [["Hi"], [None]],
    "messages[0].role": [[{"content": "Hi"}], [{"role": "robot", "content": "Hi"}], [{"role": 1, "content": "Hi"}]],
    "messages[0].content": [[{"role": "user", "content": 5}], [{"role": "user", "content": {}}]],
    "messages[0].content[0].type": [[{"role": "user", "content": [{"text": "Hi"}]}]],
    "messages[0].content[0].text": [[{"role": "user", "content": [{"type": "text", "text": 5}]}]],
}
_LIMITS: dict[str, list[Any]] = {
    "model": [None, 5, "", "m" * 513, "m" * 100_000],
    "stream": ["yes", 1, {}],
    "top_p": ["1", -0.1, 1.1],
}
_TOKENS: list[Any] = ["5", 0, -1, 1.5, 2**31, 10**30, True]
CHECKED: dict[str, dict[str, list[Any]]] = {
    "chat": {
        **_MESSAGES,
        **_LIMITS,
        "max_tokens": _TOKENS,
        "max_completion_tokens": _TOKENS,
        "n": ["2", 0, 1025, 1.5],
        "temperature": ["1", -0.1, 2.1],
        "stream_options": ["usage", []],
        "stream_options.include_usage": [{"include_usage": "yes"}],
        "response_format": ["json"],
        "response_format.type": [{}],
        "response_format.json_schema": [{"type": "json_schema"}],
        "response_format.json_schema.schema": [{"type": "json_schema", "json_schema": {"name": "x"}}],
    },
    "messages": {
        **_MESSAGES,
        **_LIMITS,
        "max_tokens": [None, *_TOKENS],
        "temperature": ["1", -0.1, 1.1],
        "system": [5, {}],
        "system[0].type": [[{"text": "x"}]],
        "output_config": ["low"],
        "output_config.format.schema": [{"format": {"type": "json_schema"}}],
    },
    "responses": {
        **_LIMITS,
        "input": [None, 5, "", []],
        "max_output_tokens": _TOKENS,
        "temperature": ["1", -0.1, 2.1],
        "metadata.a": [{"a": 5}],
        "store": ["yes"],
    },
}
UNCHECKED: dict[str, dict[str, Any]] = {
    "chat": {"tools": [{"type": "new"}], "tool_choice": "any", "top_k": -1, "stop": ["a"] * 9, "seed": "x", "user": 5},
    "messages": {"tools": [{"type": "new"}], "tool_choice": {"type": "any"}, "thinking": {"type": "deep"}, "top_k": -1},
    "responses": {"tools": [{"type": "new"}], "tool_choice": "any", "service_tier": "express", "include": ["new"]},
}


def pass_through(api: str, raw: bytes) -> bytes:
    """Return the request for an upstream of the same API."""
    if api == "responses":
        return encode_responses_request(None, raw, ModelProfile("m")).body
    dialect = openai.dialect if api == "chat" else anthropic.dialect
    return pass_through_request(dialect, raw, ModelProfile("m")).body


@pytest.mark.parametrize(
    ("api", "param", "value"),
    [(api, param, value) for api, rows in CHECKED.items() for param, values in rows.items() for value in values],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else json.dumps(value)[:40],
)
def test_passthrough_checked_field_is_named(api: str, param: str, value: Any) -> None:
    name = param.partition("[")[0].partition(".")[0]
    raw = json.dumps({"model": "m", **BASES[api], name: value}).encode()
    with pytest.raises(InvalidRequest) as caught:
        pass_through(api, raw)
    assert caught.value.param == param
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("api", UNCHECKED)
def test_passthrough_other_fields_reach_the_upstream_unchanged(api: str) -> None:
    raw = json.dumps({"model": "m", **BASES[api], **UNCHECKED[api], "new_field": {"a": [1]}}).encode()
    assert pass_through(api, raw) == raw
