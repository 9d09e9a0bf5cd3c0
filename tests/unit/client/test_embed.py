"""`client.embed` of both clients."""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import Any

import pytest
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, body, fin, head
from tests.unit.client.conftest import Call

from svc import errors
from svc.client.chat import ChatBackend
from svc.client.core import DirectProvider
from svc.client.embeddings import EmbeddingUsage
from svc.dialects import anthropic, openai
from svc.dialects.base import ModelProfile

PACKED = b64encode(struct.pack("<2f", 0.1, -2.5)).decode()


def rows(*vectors: Any, **fields: Any) -> Any:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return answer(200, {"object": "list", "data": data, "model": "e", **fields})


@pytest.mark.parametrize(
    ("texts", "count"), [("one", 1), (["one", "two"], 2), (("one", "two"), 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)]
)
def test_embed_returns_a_vector_for_each_input(call: Call, server: FakeProvider, texts: Any, count: int) -> None:
    got = call("embed", texts, model="e", dimensions=4)
    assert got.vectors == [[float(at), 0.5, 0.5, 0.5] for at in range(count)]
    assert (got.usage, got.model) == (EmbeddingUsage(8, 8), "e")
    seen = server.wait()
    assert seen.path == "/v1/embeddings"
    assert seen.json == {
        "model": "e",
        "input": list(texts) if isinstance(texts, tuple) else texts,
        "encoding_format": "base64",
        "dimensions": 4,
    }


def test_embed_without_dimensions_sends_none_and_default_model(call: Call, server: FakeProvider) -> None:
    call("embed", "Hi")
    assert server.wait().json == {"model": "text-embedding-3-small", "input": "Hi", "encoding_format": "base64"}


def test_embed_base64_and_lists_have_the_same_numbers(call: Call, server: FakeProvider) -> None:
    exact = list(struct.unpack("<2f", struct.pack("<2f", 0.1, -2.5)))
    server.plays(rows(PACKED), rows(exact))
    assert call("embed", "x").vectors == call("embed", "x").vectors == [exact]


def test_embed_rows_in_other_order_are_sorted_by_index(call: Call, server: FakeProvider) -> None:
    data = [{"index": 1, "embedding": [1.0]}, {"index": 0, "embedding": [0.0]}]
    server.plays(answer(200, {"data": data}))
    got = call("embed", ["a", "b"])
    assert (got.vectors, got.usage) == ([[0.0], [1.0]], None)


def test_embed_default_model_missing_uses_first_embedding_model(call: Call, server: FakeProvider) -> None:
    missing = answer(404, {"error": {"message": "no", "type": "t", "code": "model_not_found", "param": None}})
    models = [{"id": "talk"}, {"id": "vectors", "kind": "embedding"}]
    server.plays(missing, answer(200, {"object": "list", "data": models}), rows([1.0]))
    assert call("embed", "x").vectors == [[1.0]]
    assert server.requests[2].json["model"] == "vectors"
    server.plays(missing, answer(200, {"object": "list", "data": models[:1]}))
    with pytest.raises(errors.ModelNotFound):
        call("embed", "x")


@pytest.mark.parametrize(
    "script",
    [
        rows(),
        rows([1.0]),
        rows([1.0], [2.0], [3.0]),
        rows([1.0], []),
        rows([1.0], ""),
        rows([1.0], "AAAA"),
        rows([1.0], "!!!!!!!!"),
        rows([1.0], None),
        rows([1.0], ["x"]),
        answer(200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}),
        answer(200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 5, "embedding": [1.0]}]}),
        answer(200, openai_wire.chat()),
        answer(200, b"<html>"),
        head(200, length=100) + body(b'{"data":') + fin(),
    ],
)
def test_embed_response_without_exactly_one_vector_each_raises(call: Call, server: FakeProvider, script: Any) -> None:
    server.always_plays(script)
    with pytest.raises(errors.GatewayFailed):
        call("embed", ["a", "b"])


def test_embed_error_of_gateway_has_its_class_and_field(call: Call, server: FakeProvider) -> None:
    refused = {"error": {"message": "no", "type": "t", "code": "invalid_request", "param": "dimensions"}}
    server.plays(answer(400, refused, headers={"x-request-id": "r1"}))
    with pytest.raises(errors.InvalidRequest) as caught:
        call("embed", "x", dimensions=5)
    assert (caught.value.param, caught.value.request_id) == ("dimensions", "r1")


def test_embed_input_not_serializable_raises_before_sending(call: Call, server: FakeProvider) -> None:
    with pytest.raises(errors.InvalidRequest):
        call("embed", [object()])
    assert not server.requests


def test_embed_at_a_provider_uses_its_model(call: Call, server: FakeProvider) -> None:
    def direct(dialect: Any) -> dict[str, Any]:
        backend = ChatBackend(dialect, ModelProfile("theirs"))
        return {"direct": DirectProvider(f"{server.address}/v1", {"authorization": "Bearer key-1"}, backend)}

    assert len(call("embed", ["a", "b"], client=direct(openai.dialect)).vectors) == 2
    assert server.wait().json["model"] == "theirs"
    with pytest.raises(errors.InvalidRequest, match="does not have this API"):
        call("embed", "a", client=direct(anthropic.dialect))
