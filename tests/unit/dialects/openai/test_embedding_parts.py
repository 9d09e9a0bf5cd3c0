"""Requests in parts have the response of the whole request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.dialects.openai.embedding_parts import MAX_PART_BYTES, MAX_PART_INPUTS, EmbeddingParts, divide_request
from svc.errors import InvalidRequest, ProviderFailed

WINDOW = 512


def divide(texts: Any, **fields: Any) -> EmbeddingParts:
    return divide_request(json.dumps({"model": "m", "input": texts, **fields}).encode(), WINDOW)


def bodies(parts: EmbeddingParts) -> list[dict[str, Any]]:
    return [json.loads(parts.encode_part(number)) for number in range(parts.count)]


def respond(texts: list[str], **fields: Any) -> bytes:
    """Return the response of a server for these texts."""
    data = [{"embedding": [len(text), 0.25], "index": index, "object": "embedding"} for index, text in enumerate(texts)]
    tokens = sum(map(len, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"model": "m", "object": "list", "usage": usage, "data": data, **fields}).encode()


@pytest.mark.parametrize(
    "texts",
    [
        ["a"],
        ["a"] * MAX_PART_INPUTS,
        ["a"] * (MAX_PART_INPUTS + 1),
        ["x" * 2000, "a", "b", "y" * 300, "c"],
        ["ä" * 100, '"', "\\", "\n"] * 20,
        ["w" * 200] * 50,
    ],
)
def test_parts_keep_the_order_and_join_to_the_whole_response(texts: list[str]) -> None:
    parts = divide(texts, encoding_format="float")
    sent = bodies(parts)
    assert [text for body in sent for text in body["input"]] == texts
    assert all({**body, "input": 0} == {"model": "m", "input": 0, "encoding_format": "float"} for body in sent)
    for number, body in enumerate(sent):
        assert len(body["input"]) <= MAX_PART_INPUTS
        assert len(body["input"]) == 1 or len(json.dumps(body["input"])) < MAX_PART_BYTES + 200
        parts.add_response(number, respond(body["input"]))
    assert json.loads(parts.join_responses()) == json.loads(respond(texts))


def test_parts_text_that_could_be_too_long_is_alone_and_named() -> None:
    parts = divide(["a", "b", "x" * (WINDOW // 2 + 1), "c"])
    assert [body["input"] for body in bodies(parts)] == [["a", "b"], ["x" * (WINDOW // 2 + 1)], ["c"]]
    error = json.dumps({"error": {"message": "too long", "code": 400}}).encode()
    named = [json.loads(parts.name_input(number, error))["error"]["param"] for number in range(3)]
    assert named == ["input", "input[2]", "input[3]"]
    assert parts.name_input(1, b"no JSON") == b"no JSON"


def test_parts_single_string_is_sent_as_a_string() -> None:
    parts = divide("text")
    assert bodies(parts) == [{"model": "m", "input": "text"}]
    parts.add_response(0, b"anything")
    assert parts.join_responses() == b"anything"


def test_parts_nulls_and_user_are_left_out() -> None:
    fields = {"encoding_format": None, "dimensions": None, "user": None, "embd_normalize": 2}
    assert bodies(divide("text", **fields)) == [{"model": "m", "input": "text", "embd_normalize": 2}]
    assert bodies(divide("text", user="u")) == [{"model": "m", "input": "text"}]


def test_parts_empty_text_is_rejected_by_its_index() -> None:
    with pytest.raises(InvalidRequest) as caught:
        divide(["a", ""])
    assert caught.value.param == "input[1]"


@pytest.mark.parametrize(
    "response",
    [b"", b"[]", b"{}", respond(["a"]), respond(["a"] * MAX_PART_INPUTS, usage=None), respond(["a"] * 16, data=[1])],
)
def test_parts_malformed_response_is_a_failure(response: bytes) -> None:
    parts = divide(["a"] * (MAX_PART_INPUTS + 1))
    with pytest.raises(ProviderFailed):
        parts.add_response(0, response)
