"""Everything under `/v1/messages`: Anthropic's error format and the `request-id` header of its SDKs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness import CLAUDE, GPT, HI, KEY, Gateway
from tests.fakes import anthropic_wire
from tests.fakes.http_client import Got
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

MESSAGE = {"model": CLAUDE, "max_tokens": 50, "messages": HI}


def check_ids(got: Got) -> None:
    assert got.headers["request-id"] == got.headers["x-request-id"]


def check_error(got: Got, status: int, kind: str) -> None:
    body = got.json
    assert (got.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"].keys() == {"type", "message"}
    assert body["request_id"] == got.headers["request-id"]
    check_ids(got)


@pytest.mark.parametrize(
    ("method", "path", "key", "status", "kind"),
    [
        ("POST", "/v1/messages/unknown", KEY, 404, "not_found_error"),
        ("POST", "/v1/messages/batches?beta=true", KEY, 404, "not_found_error"),
        ("GET", "/v1/messages/batches/msgbatch_1/results", KEY, 404, "not_found_error"),
        ("GET", "/v1/messages", KEY, 405, "invalid_request_error"),
        ("DELETE", "/v1/messages?beta=true", KEY, 405, "invalid_request_error"),
        ("POST", "/v1/messages/", KEY, 404, "not_found_error"),
        ("POST", "/v1/messages/unknown", None, 401, "authentication_error"),
        ("POST", "/v1/messages", None, 401, "authentication_error"),
        ("GET", "/v1/messages", "wrong", 401, "authentication_error"),
    ],
)
def test_messages_unsupported_path_or_method_returns_anthropic_error(
    gateway: Gateway, method: str, path: str, key: str | None, status: int, kind: str
) -> None:
    check_error(gateway.request(method, path, MESSAGE if method == "POST" else None, key=key), status, kind)


@pytest.mark.parametrize(
    ("method", "path", "key", "status", "kind"),
    [
        ("GET", "/v1/models/unknown", KEY, 404, "not_found_error"),
        ("POST", "/v1/models", KEY, 405, "invalid_request_error"),
        ("DELETE", "/v1/models/gpt-4o", KEY, 405, "invalid_request_error"),
        ("GET", "/v1/models", None, 401, "authentication_error"),
        ("GET", "/v1/files?beta=true", KEY, 404, "not_found_error"),
        ("POST", "/v1/complete", KEY, 404, "not_found_error"),
        ("POST", "/", None, 405, "invalid_request_error"),
    ],
)
def test_request_with_anthropic_version_gets_anthropic_error(
    gateway: Gateway, method: str, path: str, key: str | None, status: int, kind: str
) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    check_error(gateway.request(method, path, key=key, headers=headers), status, kind)
    assert "request-id" not in gateway.request(method, path, key=key).headers


def test_request_with_anthropic_version_malformed_gets_anthropic_error(gateway: Gateway) -> None:
    with gateway.raw() as raw:
        raw.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nhost: y\r\nanthropic-version: 2023-06-01\r\n\r\n")
        check_error(raw.read(), 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/messages?beta=true HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 70_000, 431),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nanthropic-version: 2023-06-01\r\nx: " + b"x" * 70_000, 431),
    ],
    ids=["long head", "malformed head", "long head with version"],
)
def test_request_with_incomplete_head_gets_anthropic_error(gateway: Gateway, head: bytes, status: int) -> None:
    with gateway.raw() as raw:
        raw.send(head)
        check_error(raw.read(), status, "invalid_request_error")


@pytest.mark.parametrize("path", ["/", "/?beta=true", "/?"])
def test_root_get_and_head_without_key_return_200(gateway: Gateway, path: str) -> None:
    for headers in ({}, {"anthropic-version": "2023-06-01"}):
        assert gateway.request("GET", path, key=None, headers=headers).status == 200
        got = gateway.request("HEAD", path, key=None, headers=headers)
        assert (got.status, got.body) == (200, b"")


@pytest.mark.parametrize("query", ["?", "?beta=true", "?beta=true&x=/v1/models", "?%2F"])
def test_query_does_not_change_route(gateway: Gateway, fakes: dict[str, FakeProvider], query: str) -> None:
    chat = {"model": GPT, "messages": HI}
    assert gateway.request("POST", f"/v1/chat/completions{query}", chat).status == 200
    assert gateway.request("POST", f"/v1/messages{query}", MESSAGE).status == 200
    assert (
        gateway.request("POST", f"/v1/embeddings{query}", {"model": "text-embedding-3-small", "input": "a"}).status
        == 200
    )
    assert gateway.request("GET", f"/v1/models{query}").status == 200


def test_messages_subpath_body_too_large_returns_anthropic_error(gateway: Gateway) -> None:
    with gateway.raw() as raw:
        head = f"POST /v1/messages/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        raw.send(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
        check_error(raw.read(), 413, "request_too_large")


@pytest.mark.parametrize("fields", [{"model": "none"}, {"max_tokens": 0}, {"messages": []}])
def test_messages_rejected_request_has_request_id(gateway: Gateway, fields: dict[str, Any]) -> None:
    got = gateway.message(**fields)
    check_error(got, got.status, got.json["error"]["type"])


def test_messages_upstream_error_body_has_gateway_request_id(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(answer(400, anthropic_wire.error(message="Too odd."), headers={"request-id": "req_theirs"}))
    got = gateway.message()
    check_error(got, 400, "invalid_request_error")
    assert got.json["request_id"] != anthropic_wire.error()["request_id"]
    assert got.json["error"]["message"] == "Too odd."


@pytest.mark.parametrize("model", [CLAUDE, GPT])
@pytest.mark.parametrize("stream", [True, False])
def test_messages_json_and_stream_have_request_id_header(
    gateway: Gateway, fakes: dict[str, FakeProvider], model: str, stream: bool
) -> None:
    fakes["B"].plays(
        sse(anthropic_wire.stream()) if stream else answer(200, anthropic_wire.message(), headers={"request-id": "r"})
    )
    got = gateway.message(model, stream=stream)
    assert got.status == 200
    check_ids(got)
    fakes["B"].forget()


def test_other_endpoints_have_no_request_id_header_of_anthropic(gateway: Gateway) -> None:
    for got in (gateway.chat(), gateway.request("GET", "/v1/models"), gateway.request("GET", "/v1/messagesx")):
        assert "request-id" not in got.headers


def test_chat_anthropic_model_has_logprobs_null(gateway: Gateway) -> None:
    (choice,) = json.loads(gateway.chat(CLAUDE).body)["choices"]
    assert choice["logprobs"] is None
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
