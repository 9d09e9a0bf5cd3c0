"""Validation of OpenAI requests before any upstream call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.codecs import decode_routing_info

from svc.dialects.openai import dialect
from svc.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def test_routing_info_valid_request_has_all_fields() -> None:
    info = decode_routing_info(
        dialect, body(stream=True, stream_options={"include_usage": True}, max_completion_tokens=7)
    )
    assert (info.model, info.stream, info.include_usage, info.max_tokens) == ("m", True, True, 7)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 90_000, "max_completion_tokens": 1}, 90_000),
        ({"max_tokens": 1, "max_completion_tokens": 90_000}, 90_000),
        ({"max_tokens": 1, "n_predict": 300}, 1),
        ({"n_predict": 300}, None),
    ],
)
def test_routing_info_several_token_limits_uses_the_largest(fields: dict[str, Any], expected: int | None) -> None:
    assert decode_routing_info(dialect, body(**fields)).max_tokens == expected


@pytest.mark.parametrize(
    ("fields", "min_tokens", "unbounded"),
    [
        ({}, 0, ""),
        ({"max_tokens": 1, "n_predict": 300}, 300, ""),
        ({"n_predict": 3.5, "min_tokens": 7}, 7, ""),
        ({"max_new_tokens": 9, "min_tokens": 7}, 9, ""),
        ({"min_tokens": -1}, 0, ""),
        ({"max_tokens": 7, "n_predict": -1}, 0, "n_predict"),
        ({"max_tokens": 7, "max_new_tokens": -2, "min_tokens": 5}, 5, "max_new_tokens"),
    ],
)
def test_routing_info_vendor_token_limits_raise_the_reservation(
    fields: dict[str, Any], min_tokens: int, unbounded: str
) -> None:
    info = decode_routing_info(dialect, body(**fields))
    assert (info.min_reserved_tokens, info.unbounded_field) == (min_tokens, unbounded)


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens", "min_tokens"])
@pytest.mark.parametrize("value", ["9", 2**31, [1]])
def test_routing_info_vendor_limit_of_wrong_type_raises_invalid_request(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, body(**{name: value}))
    assert caught.value.param == name


def test_routing_info_null_field_equals_absent_field() -> None:
    info = decode_routing_info(
        dialect, body(stream=None, max_tokens=None, temperature=None, stream_options=None, n=None)
    )
    assert (info.stream, info.include_usage, info.max_tokens) == (False, False, None)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_routing_info_known_role_is_accepted(role: str) -> None:
    assert decode_routing_info(dialect, body(messages=[{"role": role, "content": "x"}])).model == "m"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**40}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
    ],
)
def test_routing_info_invalid_field_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, body(**fields))
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_routing_info_missing_field_error_names_the_field(missing: str) -> None:
    whole = {"model": "m", "messages": [USER]}
    del whole[missing]
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, json.dumps(whole).encode())
    assert caught.value.param == missing


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" \n",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b"hello",
        body() + b"x",
        b"\xef\xbb\xbf" + body(),
        body()[:-1] + b',"x":NaN}',
        body()[:-1] + b',"temperature":1e999}',
        body()[:-1] + b',"temperature":Infinity}',
        body()[:-1] + b',"x":"\xff"}',
        body()[:-1] + b',"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"\\udc00","messages":[{"role":"user","content":"x"}]}',
        body()[:-1] + b',"max_tokens":' + b"9" * 6000 + b"}",
    ],
)
def test_routing_info_body_not_a_json_object_raises_invalid_request(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_routing_info(dialect, raw)


@pytest.mark.parametrize(
    ("raw", "half"),
    [
        (rb'{"messages":[{"role":"user","content":"\ud800"}],"model":"m"}', rb"\ud800"),
        (rb'{"model":"m","messages":[{"role":"user","content":"\uD9aB"}]}', rb"\uD9aB"),  # as many bytes as the rest
        (rb'{"model":"m","messages":[{"role":"user","content":"\ud800\n"}]}', rb"\ud800"),
        (rb'{"model":"m","messages":[{"role":"user","content":"\\\ud800"}]}', rb"\ud800"),
        (rb'{"model":"m","messages":[{"role":"user","content":"\udc00"}]}', rb"\udc00"),
        (rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ud83c"}]}', rb"\ud83c"),
        (body()[:-1] + rb',"unread":"\ud800 and more of it"}', rb"\ud800"),
        (body()[:-1] + rb',"unread":"\ud800"}', rb"\ud800"),
    ],
)
def test_routing_info_lone_surrogate_error_names_its_position(raw: bytes, half: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, raw)
    position = raw.rindex(half)
    assert f"{half.decode()} (byte {position}) is an unpaired surrogate" in caught.value.message


@pytest.mark.parametrize("end", [rb"", rb"\ud83d", rb"\ud83d\u", rb"\ud83d\ude", rb"\\ud83d\"", rb"\ud83d\ude00"])
def test_routing_info_truncated_body_error_says_truncated(end: bytes) -> None:
    with pytest.raises(InvalidRequest, match="truncated"):
        decode_routing_info(dialect, rb'{"model":"m","messages":[{"role":"user","content":"' + end)
