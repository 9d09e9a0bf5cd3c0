"""OpenAI's embeddings: request validation before any upstream call, and response validation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects.base import RequestBody
from svc.dialects.openai.embeddings import (
    MAX_EMBEDDING_INPUTS,
    check_supported,
    decode_response,
    decode_routing_info,
)
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.wire.chat import UpstreamOverrides
from svc.wire.usage import TokenUsage

ROW = {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}


def request(**fields: Any) -> RequestBody:
    return RequestBody(json.dumps({"model": "e", "input": "text", **fields}).encode())


def response(**fields: Any) -> bytes:
    whole = {"object": "list", "data": [ROW], "model": "e-1", "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    return json.dumps({**whole, **fields}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": [1, 2, 0]},
        {"input": list(range(MAX_EMBEDDING_INPUTS + 1))},
        {"input": [[1], [2, 3]]},
        {"input": ["a"] * MAX_EMBEDDING_INPUTS},
        {"input": "long " * 100_000},
        {"encoding_format": "base64", "dimensions": 1, "user": "u", "new_field": {}},
        {"encoding_format": None, "dimensions": None, "stream": False},
    ],
)
def test_routing_info_every_form_of_input_is_accepted(fields: dict[str, Any]) -> None:
    info = decode_routing_info(request(**fields))
    assert (info.model, info.stream, info.max_tokens) == ("e", False, None)
    assert (info.has_completion, info.has_single_prompt) == (False, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [True]}, "input[0]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [1, True]}, "input[1]"),
        ({"input": [-1]}, "input"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [[1], ["a"]]}, "input[1]"),
        ({"input": [[1], [True]]}, "input[1]"),
        ({"input": [{}]}, "input[0]"),
        ({"input": ["a"] * (MAX_EMBEDDING_INPUTS + 1)}, "input"),
        ({"input": [[1]] * (MAX_EMBEDDING_INPUTS + 1)}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"input": [""]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [2**31]}, "input"),
        ({"input": [[1], [10**30]]}, "input[1]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": -1}, "dimensions"),
        ({"dimensions": 10**9}, "dimensions"),
        ({"user": 5}, "user"),
        ({"dimensions": "5"}, "dimensions"),
        ({"stream": True}, "stream"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_routing_info_invalid_field_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(request(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("overrides", "fields", "param"),
    [
        ({}, {"input": [1], "dimensions": 5}, None),
        ({"rejects": ("user",)}, {"input": [[1]], "dimensions": 5}, None),
        ({"token_input": False}, {"input": ["a"], "dimensions": 5}, None),
        ({"token_input": False}, {"input": [1]}, "input"),
        ({"token_input": False}, {"input": [[1], [2]]}, "input"),
        ({"rejects": ("dimensions",)}, {"input": [1], "dimensions": None}, None),
        ({"rejects": ("dimensions",)}, {"dimensions": 5}, "dimensions"),
    ],
)
def test_check_supported_names_the_field_that_the_provider_lacks(
    overrides: dict[str, Any], fields: dict[str, Any], param: str | None
) -> None:
    body = request(**fields)
    decode_routing_info(body)
    if param is None:
        check_supported(body, UpstreamOverrides(**overrides))
        return
    with pytest.raises(InvalidRequest) as caught:
        check_supported(body, UpstreamOverrides(**overrides))
    assert caught.value.param == param


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"model":"e"}', b'{"model":"e","input":"\xff"}'])
def test_routing_info_malformed_body_raises_invalid_request(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_routing_info(RequestBody(raw))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 3, "total_tokens": 4}, TokenUsage(3)),
        ({"total_tokens": 4}, TokenUsage(4)),
        ({"prompt_tokens": -1, "total_tokens": 4}, TokenUsage(4)),
        ({"prompt_tokens": 10**12}, None),
        ({"prompt_tokens": True}, None),
        ({}, None),
        (None, None),
        ("many", None),
    ],
)
def test_response_usage_counts_prompt_tokens(usage: Any, counted: TokenUsage | None) -> None:
    raw = response(usage=usage, new_field=[1])
    decoded = decode_response(raw)
    assert decoded.body is raw
    assert (decoded.usage, decoded.model) == (counted, "e-1")


def test_response_base64_vectors_are_accepted() -> None:
    raw = response(data=[{**ROW, "embedding": "AAAAPw=="}])
    assert decode_response(raw).body is raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"data":[]}',
        b'{"data":[{}]}',
        b'{"data":[{"embedding":null}]}',
        b'{"data":[{"embedding":{"a":1}}]}',
        b'{"data":[{"embedding":[1}]}',
        b'{"data":[{"embedding":[1]}],"model":"\xff"}',
        response()[:-5],
        response(data=None, choices=[]),
    ],
)
def test_response_without_vectors_raises_provider_failed(raw: bytes) -> None:
    with pytest.raises(ProviderFailed):
        decode_response(raw)


def test_response_error_object_raises_matching_error() -> None:
    with pytest.raises(InvalidRequest, match="no such field"):
        decode_response(json.dumps({"error": {"type": "invalid_request_error", "message": "no such field"}}).encode())
    with pytest.raises(RateLimited):
        decode_response(b'{"error":{"type":"rate_limit_error","message":"slow down"}}')
