"""Errors of an Anthropic upstream as an Anthropic client gets them, in the upstream's own words."""

from __future__ import annotations

import json

import pytest

from tests.e2e.harness import CLAUDE, HI, KEY, Gateway
from tests.fakes import anthropic_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer, sse

WORDS = "Too much for org 1234. For details, see https://docs.claude.com/en/api/rate-limits."
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
def test_relayed_error_keeps_status_type_message_and_limits(
    shared_impatient: Gateway, provider_b: FakeProvider, status: int, kind: str, stream: bool
) -> None:
    told = {"retry-after": "300", "request-id": "req_fake1", "x-api-key": "never", **LIMITS}
    provider_b.plays(answer(status, anthropic_wire.error(kind, WORDS), headers=told))
    got = shared_impatient.message(stream=stream)
    assert got.status == status
    assert got.json["error"] == {"type": kind, "message": WORDS}
    assert got.json["request_id"] == got.headers["request-id"] != "req_fake1"
    assert {name: got.headers[name] for name in ("retry-after", *LIMITS)} == {"retry-after": "300", **LIMITS}
    assert [value for name, value in got.header_list if name == "retry-after"] == ["300"]
    assert "x-api-key" not in got.headers


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_error_about_the_gateways_own_affairs_is_provider_error(
    shared_impatient: Gateway, provider_b: FakeProvider, status: int
) -> None:
    provider_b.plays(answer(status, anthropic_wire.error("authentication_error", "invalid x-api-key"), headers=LIMITS))
    got = shared_impatient.message()
    assert (got.status, got.json["error"]["type"]) == (502, "api_error")
    assert "x-api-key" not in got.json["error"]["message"]
    assert not LIMITS.keys() & got.headers.keys()


def test_error_without_a_body_has_the_type_of_its_status(shared_impatient: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(answer(529, b"<html>"))
    got = shared_impatient.message()
    assert (got.status, got.json["error"]["type"]) == (529, "overloaded_error")


def test_relayed_error_is_the_gateways_own_for_a_chat(shared_impatient: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(answer(529, anthropic_wire.error("overloaded_error", "Overloaded"), headers=LIMITS))
    got = shared_impatient.chat(CLAUDE)
    assert (got.status, got.code) == (502, "provider_error")
    assert not LIMITS.keys() & got.headers.keys()


def test_overloaded_is_retried_before_it_is_relayed(gateway: Gateway, provider_b: FakeProvider) -> None:
    provider_b.plays(answer(529, anthropic_wire.error("overloaded_error")), answer(200, anthropic_wire.message()))
    got = gateway.message()
    assert (got.status, got.headers["x-svc-attempts"]) == (200, "2")


def test_error_event_of_a_stream_keeps_type_and_message(shared_impatient: Gateway, provider_b: FakeProvider) -> None:
    events = anthropic_wire.stream("Servus")
    provider_b.plays(sse([*events[:4], anthropic_wire.error_event("overloaded_error", "Overloaded")]))
    body = {"model": CLAUDE, "messages": HI, "max_tokens": 5, "stream": True}
    got = shared_impatient.request("POST", "/v1/messages", body, key=KEY)
    last = got.body.decode().strip().split("\n\n")[-1].split("\n")
    assert last[0] == "event: error"
    assert json.loads(last[1].removeprefix("data: "))["error"] == {"type": "overloaded_error", "message": "Overloaded"}
