"""What is checked of an OpenAI request before any upstream is called."""

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


def test_the_few_fields() -> None:
    head = decode_routing_info(
        dialect, body(stream=True, stream_options={"include_usage": True}, max_completion_tokens=7)
    )
    assert (head.model, head.stream, head.include_usage, head.max_tokens) == ("m", True, True, 7)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_tokens": 90_000, "max_completion_tokens": 1}, 90_000),
        ({"max_tokens": 1, "max_completion_tokens": 90_000}, 90_000),
        ({"max_tokens": 1, "n_predict": 300}, 1),
        ({"n_predict": 300}, None),
    ],
)
def test_the_most_that_any_name_allows_is_counted(fields: dict[str, Any], most: int | None) -> None:
    assert decode_routing_info(dialect, body(**fields)).max_tokens == most


@pytest.mark.parametrize(
    ("fields", "least", "endless"),
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
def test_head_names_that_some_upstreams_know_add_to_the_reservation(
    fields: dict[str, Any], least: int, endless: str
) -> None:
    head = decode_routing_info(dialect, body(**fields))
    assert (head.min_reserved_tokens, head.unbounded_field) == (least, endless)


@pytest.mark.parametrize("name", ["n_predict", "max_new_tokens", "min_tokens"])
@pytest.mark.parametrize("value", ["9", 2**31, [1]])
def test_head_limit_of_a_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, body(**{name: value}))
    assert caught.value.param == name


def test_null_means_not_said() -> None:
    head = decode_routing_info(
        dialect, body(stream=None, max_tokens=None, temperature=None, stream_options=None, n=None)
    )
    assert (head.stream, head.include_usage, head.max_tokens) == (False, False, None)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_known_roles(role: str) -> None:
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
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_routing_info(dialect, body(**fields))
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(missing: str) -> None:
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
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
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
def test_half_of_a_surrogate_pair_is_called_that(raw: bytes, half: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_routing_info(dialect, raw)
    place = raw.rindex(half)
    assert f"{half.decode()} (byte {place}) is half of a surrogate pair" in refused.value.message


@pytest.mark.parametrize("end", [rb"", rb"\ud83d", rb"\ud83d\u", rb"\ud83d\ude", rb"\\ud83d\"", rb"\ud83d\ude00"])
def test_a_body_that_was_cut_off_is_called_that(end: bytes) -> None:
    with pytest.raises(InvalidRequest, match="truncated"):
        decode_routing_info(dialect, rb'{"model":"m","messages":[{"role":"user","content":"' + end)
