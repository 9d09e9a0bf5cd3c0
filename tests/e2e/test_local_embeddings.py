"""Embeddings by a model of this machine: a tiny encoder that the recipe's maker converted, in llama.cpp."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import svc
from svc.recipes.makers import bert_gguf
from tests.e2e.accounts.test_keys import create, until
from tests.e2e.accounts.test_metrics import metrics
from tests.e2e.accounts.test_usage import entry_of
from tests.e2e.harness import Gateway
from tests.fakes import bert
from tests.fakes.http_client import Got, request_bytes
from tests.processes import children

MODEL, CHAT = "tiny-bert", "smollm2-135m"
TOKENS = {
    "The gateway counts tokens.": ["the", "gate", "##way", "count", "##s", "tok", "##en", "##s", "."],
    "a": ["a"],
    "A ZEBRA, the": ["a", "[UNK]", "[UNK]", "the"],
}
TEXTS = list(TOKENS)
MAX_QUEUE = 8
"""Requests in the queue of the model. One key alone has half of them."""
LONG_BATCH = ["the " * 100] * 2048


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model_home: Path) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("local")
    folder = home / "svc" / "models" / MODEL
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(bert_gguf.make(*bert.sources()))
    metadata = {
        "model_id": MODEL,
        "version": "1",
        "execution_template": {"type": "Gguf", "model_file": "tiny.gguf", "context_length": bert.CONTEXT},
        "files": ["tiny.gguf"],
        "metadata": {"task": "embedding"},
    }
    (folder / "model_metadata.json").write_text(json.dumps(metadata))
    environ = {"SVC_REGISTRY_ROOT": str(model_home / "registry")}
    config = f"[local]\nenabled = true\nmax_queue = {MAX_QUEUE}\n[gateway]\nfirst_byte_timeout = 0.3\n"
    started = Gateway(home, env=environ, config=config, is_forked=True).start(60)
    yield started
    assert started.stop() == 0, started.log
    assert "Traceback" not in started.log


def embed(gateway: Gateway, texts: Any, *, key: str | None = None, **fields: Any) -> Got:
    """Send a request that may wait for the load of the model, on a machine that may be busy."""
    with gateway.raw(timeout=60) as raw:
        body = {"model": MODEL, "input": texts, **fields}
        return raw.request("POST", "/v1/embeddings", body, key=key or gateway.key)


def vectors(got: Got) -> list[list[float]]:
    assert got.status == 200, got.body
    return [row["embedding"] for row in got.json["data"]]


def test_local_embeddings_equal_a_reference_and_count_tokens(local: Gateway) -> None:
    got = embed(local, TEXTS)
    for vector, tokens in zip(vectors(got), TOKENS.values(), strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert float(np.array(vector) @ bert.embed(tokens)) > 0.999
    count = sum(len(tokens) + 2 for tokens in TOKENS.values())
    assert got.json["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert [row["index"] for row in got.json["data"]] == list(range(len(TEXTS)))
    assert got.json["model"] == MODEL
    assert (got.headers["x-svc-provider"], got.headers["x-svc-attempts"]) == ("local", "1")
    entry = entry_of(local, got.headers["x-request-id"])
    assert (entry["endpoint"], entry["model"], entry["provider"]) == ("/v1/embeddings", MODEL, "local")
    assert (entry["status"], entry["prompt_tokens"], entry["completion_tokens"]) == ("ok", count, 0)
    assert (entry["cost_usd"], entry["estimated"]) == (0, False)


def test_local_embeddings_base64_floats_and_any_batch_have_the_same_bits(local: Gateway) -> None:
    floats = vectors(embed(local, TEXTS, encoding_format="float"))
    packed = [struct.pack(f"<{len(vector)}f", *vector) for vector in floats]
    assert [base64.b64decode(row) for row in vectors(embed(local, TEXTS, encoding_format="base64"))] == packed
    found: list[list[list[float]]] = []
    threads = [
        threading.Thread(target=lambda batch=batch: found.append(vectors(embed(local, batch))))
        for batch in [[TEXTS[0]] * count for count in (1, 7, 30)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {tuple(vector) for batch in found for vector in batch} == {tuple(floats[0])}
    assert sorted(map(len, found)) == [1, 7, 30]


def test_local_embeddings_accept_2048_texts_and_no_more(local: Gateway) -> None:
    begun = time.monotonic()
    assert len(vectors(embed(local, ["a"] * 2048))) == 2048
    assert time.monotonic() - begun > 0.3, "the test needs a batch that takes longer than first_byte_timeout"
    got = embed(local, ["a"] * 2049)
    assert (got.status, got.json["error"]["param"]) == (400, "input")


def test_local_embeddings_openai_and_svc_clients_read_them(local: Gateway) -> None:
    expected = vectors(embed(local, TEXTS))
    client = openai.OpenAI(base_url=f"{local.url}/v1", api_key=local.key, timeout=60)
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [row.embedding for row in answer.data] == expected
    with svc.Client(gateway_url=local.url, api_key=local.key) as sdk:
        got = sdk.embed(TEXTS)  # the default model is not offered here
        assert (got.vectors, got.model) == (expected, MODEL)
        assert got.usage is not None
        assert got.usage.prompt_tokens == answer.usage.prompt_tokens
        assert [each.kind for each in sdk.models() if each.id == MODEL] == ["embedding"]


@pytest.mark.parametrize(
    ("texts", "fields", "param"),
    [
        ([1, 2], {}, "input"),
        ([[1], [2]], {}, "input"),
        ("a", {"dimensions": 8}, "dimensions"),
        ("a", {"encoding_format": "hex"}, "encoding_format"),
        ("", {}, "input"),
        ("a", {"model": CHAT}, "model"),
        (["a", "the " * 100, ""] * 100, {}, "input[2]"),
    ],
)
def test_local_embeddings_invalid_field_returns_400_with_param(
    local: Gateway, texts: Any, fields: dict[str, Any], param: str
) -> None:
    got = embed(local, texts, **fields)
    error = got.json["error"]
    assert (got.status, error["code"], error["param"]) == (400, "invalid_request", param), got.body


@pytest.mark.parametrize(
    ("texts", "param"),
    [
        ("the " * bert.CONTEXT, "input"),
        (["the " * bert.CONTEXT], "input[0]"),
        (["a"] * 7 + ["the " * bert.CONTEXT, "a"], "input[7]"),
    ],
)
def test_local_embeddings_too_long_text_returns_400_that_names_it(local: Gateway, texts: Any, param: str) -> None:
    got = embed(local, texts)
    error = got.json["error"]
    assert (got.status, error["code"], got.headers["x-svc-attempts"]) == (400, "invalid_request", "1"), got.body
    expected = f"`{param}` is longer than the context window of this model, {bert.CONTEXT} tokens"
    assert (error["param"], error["message"]) == (param, f"{expected}: it has {bert.CONTEXT + 2} tokens.")


@pytest.mark.parametrize("name", ["encoding_format", "dimensions", "user"])
def test_local_embeddings_null_is_the_same_as_absent(local: Gateway, name: str) -> None:
    got = embed(local, TEXTS, **{name: None})
    assert vectors(got) == vectors(embed(local, TEXTS))
    assert "x-svc-dropped" not in got.headers


def test_local_embeddings_field_that_llama_cpp_rejects_gets_message_of_the_gateway(local: Gateway) -> None:
    got = embed(local, "a", embd_normalize="two")
    error = got.json["error"]
    assert (got.status, error["code"]) == (400, "invalid_request"), got.body
    assert error["message"].startswith("The model of this machine cannot process this request.")
    local.logged("json.exception", timeout=20)


def test_local_embeddings_divided_request_equals_single_requests(local: Gateway) -> None:
    texts = [*TEXTS, *("the gate " * count for count in range(1, 60)), *TEXTS]
    expected = [vectors(embed(local, [text]))[0] for text in texts]
    for encoding in ("float", "base64"):
        got = embed(local, texts, encoding_format=encoding)
        rows = vectors(got)
        if encoding == "base64":
            rows = [list(struct.unpack(f"<{len(expected[0])}f", base64.b64decode(row))) for row in rows]
        assert rows == expected
        assert [row["index"] for row in got.json["data"]] == list(range(len(texts)))
    tokens = sum(embed(local, text).json["usage"]["prompt_tokens"] for text in texts)
    assert got.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    entry = entry_of(local, got.headers["x-request-id"])
    assert (entry["prompt_tokens"], entry["attempts"], entry["status"]) == (tokens, 1, "ok")


@pytest.mark.slow
def test_local_embeddings_short_requests_overtake_a_long_one(local: Gateway) -> None:
    other = create(local, "--name", "short texts")["key"]
    assert embed(local, "a").status == 200
    with local.raw(timeout=120) as long:
        long.send(request_bytes("POST", "/v1/embeddings", {"model": MODEL, "input": LONG_BATCH}, key=local.key))
        for key in (local.key, other) * 3:
            assert embed(local, "a", key=key).status == 200
        readable, _, _ = select.select([long.socket], [], [], 0)
        assert not readable, "the long request was complete before the short ones"
        got = long.read()
    assert len(set(map(tuple, vectors(got)))) == 1
    assert len(got.json["data"]) == len(LONG_BATCH)


def test_local_embeddings_full_queue_returns_429_to_its_key_only(local: Gateway) -> None:
    other = create(local, "--name", "another")["key"]
    assert embed(local, "a").status == 200
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(local.raw(timeout=60)) for _ in range(MAX_QUEUE // 2 + 1)]
        for raw in raws:
            raw.send(request_bytes("POST", "/v1/embeddings", {"model": MODEL, "input": LONG_BATCH}, key=local.key))
        readable, _, _ = select.select([raw.socket for raw in raws], [], [], 30)
        (refused,) = [raw.read() for raw in raws if raw.socket in readable]
        error = refused.json["error"]
        assert (refused.status, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert "(queue)" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "x-should-retry" not in refused.headers
        assert embed(local, "a", key=other).status == 200
    until(lambda: embed(local, "a").status == 200, 30)  # the clients of the long requests have left


def test_local_embedding_model_in_other_endpoints_returns_400_with_its_endpoint(local: Gateway) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": turns},
        "/v1/messages": {"messages": turns, "max_tokens": 5},
        "/v1/responses": {"input": "Hi"},
    }
    for path, body in bodies.items():
        got = local.request("POST", path, {"model": MODEL, **body})
        assert (got.status, "POST /v1/embeddings" in got.json["error"]["message"]) == (400, True), path


def test_local_embeddings_count_for_limits(local: Gateway) -> None:
    key = create(local, "--name", "few tokens", "--tpm", "60")["key"]
    assert embed(local, "the", key=key).status == 200
    got = [embed(local, "the " * 25, key=key) for _ in range(3)][-1]
    assert (got.status, got.json["error"]["code"]) == (429, "rate_limit_exceeded")


def test_local_embeddings_abandoned_batch_stops(local: Gateway) -> None:
    until(lambda: metrics(local)["svc_open_requests"] == 0, 30)  # those of earlier tests
    assert embed(local, "a").status == 200
    connections = metrics(local)["svc_upstream_connections"]
    with local.raw(timeout=60) as raw:
        raw.send(request_bytes("POST", "/v1/embeddings", {"model": MODEL, "input": LONG_BATCH}, key=local.key))
        until(lambda: metrics(local)["svc_open_requests"] == 1, 30)

    def has_stopped() -> bool:
        """The connection of the part in progress is closed, and no further part has opened another one."""
        now = metrics(local)
        return now["svc_open_requests"] == 0 and now["svc_upstream_connections"] < connections

    until(has_stopped, 30)
    assert embed(local, "a").status == 200
    assert len(children(local.process.pid, "svc.gateway.local_model.process")) == 2
