"""Errors of an Anthropic upstream are forwarded to an Anthropic client with the upstream's message."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import CLAUDE, HI, KEY, Gateway
from tests.fakes import anthropic_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

MESSAGE = "Too much for org 1234. For details, see https://docs.claude.com/en/api/rate-limits."
LIMITS = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2026-11-23T07:00:00Z",
}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (402, "billing_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (422, "yet_unknown_error"),
        (429, "rate_limit_error"),
        (529, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_forwarded_error_keeps_status_type_message_details_and_rate_limits(
    gateway_without_retries: Gateway, provider_b: FakeProvider, status: int, kind: str, stream: bool
) -> None:
    headers = {"retry-after": "300", "request-id": "req_fake1", "x-api-key": "never", **LIMITS}
    body = anthropic_wire.error(kind, MESSAGE)
    body["error"]["details"] = {
        "error_code": "thread_not_found",
        "unsupported": [f"{provider_b.key} at 10.0.0.5:80", 1],
    }
    provider_b.plays(answer(status, body, headers=headers))
    got = gateway_without_retries.message(stream=stream)
    assert got.status == status
    details = {"error_code": "thread_not_found", "unsupported": ["[…] at […]", 1]}
    assert got.json["error"] == {"type": kind, "message": MESSAGE, "details": details}
    assert got.json["request_id"] == got.headers["request-id"] != "req_fake1"
    assert {name: got.headers[name] for name in ("retry-after", *LIMITS)} == {"retry-after": "300", **LIMITS}
    assert [value for name, value in got.header_list if name == "retry-after"] == ["300"]
    assert "x-api-key" not in got.headers


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_upstream_auth_or_server_error_returns_502_without_details(
    gateway_without_retries: Gateway, provider_b: FakeProvider, status: int
) -> None:
    provider_b.plays(answer(status, anthropic_wire.error("authentication_error", "invalid x-api-key"), headers=LIMITS))
    got = gateway_without_retries.message()
    assert (got.status, got.json["error"]["type"]) == (502, "api_error")
    assert "x-api-key" not in got.json["error"]["message"]
    assert not LIMITS.keys() & got.headers.keys()


def test_forwarded_error_without_json_body_has_type_of_status(
    gateway_without_retries: Gateway, provider_b: FakeProvider
) -> None:
    provider_b.plays(answer(529, b"<html>"))
    got = gateway_without_retries.message()
    assert (got.status, got.json["error"]["type"]) == (529, "overloaded_error")


def test_chat_upstream_529_returns_gateway_error(gateway_without_retries: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(answer(529, anthropic_wire.error("overloaded_error", "Overloaded"), headers=LIMITS))
    got = gateway_without_retries.chat(CLAUDE)
    assert (got.status, got.code) == (502, "provider_error")
    assert not LIMITS.keys() & got.headers.keys()


def test_upstream_529_is_retried_before_it_is_forwarded(start_gateway: StartGateway, provider_b: FakeProvider) -> None:
    gateway = start_gateway()  # its retry budget is unused
    provider_b.plays(answer(529, anthropic_wire.error("overloaded_error")), answer(200, anthropic_wire.message()))
    got = gateway.message()
    assert (got.status, got.headers["x-svc-attempts"]) == (200, "2")


def test_forwarded_error_event_keeps_type_and_message(
    gateway_without_retries: Gateway, provider_b: FakeProvider
) -> None:
    events = anthropic_wire.stream("Servus")
    provider_b.plays(sse([*events[:4], anthropic_wire.error_event("overloaded_error", "Overloaded")]))
    body = {"model": CLAUDE, "messages": HI, "max_tokens": 5, "stream": True}
    got = gateway_without_retries.request("POST", "/v1/messages", body, key=KEY)
    last = got.body.decode().strip().split("\n\n")[-1].split("\n")
    assert last[0] == "event: error"
    error = json.loads(last[1].removeprefix("data: "))
    assert error["error"] == {"type": "overloaded_error", "message": "Overloaded"}
    assert error["request_id"] == got.headers["request-id"]
