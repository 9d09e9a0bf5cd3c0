import pytest
from tests.codecs import codec_between

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.openai import dialect as openai
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.gateway.routing.failures import (
    RetryDecision,
    classify_error_response,
    classify_status,
    connection_failure,
    invalid_response_failure,
    timeout_failure,
)


@pytest.mark.parametrize(
    ("status", "code", "http_status", "decision"),
    [
        (400, "invalid_request", 400, RetryDecision.GIVE_UP),
        (401, "provider_error", 502, RetryDecision.NEXT_BACKEND),
        (403, "provider_error", 502, RetryDecision.NEXT_BACKEND),
        (404, "model_not_found", 404, RetryDecision.GIVE_UP),
        (408, "provider_error", 502, RetryDecision.SAME_BACKEND),
        (409, "provider_error", 502, RetryDecision.GIVE_UP),
        (413, "invalid_request", 400, RetryDecision.GIVE_UP),
        (422, "invalid_request", 400, RetryDecision.GIVE_UP),
        (429, "rate_limit_exceeded", 429, RetryDecision.SAME_BACKEND),
        (500, "provider_error", 502, RetryDecision.SAME_BACKEND),
        (503, "provider_error", 502, RetryDecision.SAME_BACKEND),
        (529, "provider_error", 502, RetryDecision.SAME_BACKEND),
        (302, "provider_error", 502, RetryDecision.NEXT_BACKEND),
    ],
)
def test_classify_status_maps_to_error_code_status_and_retry_decision(
    status: int, code: str, http_status: int, decision: RetryDecision
) -> None:
    failure = classify_status(status, {}, "its own words")
    assert (failure.error.code, failure.error.status, failure.retry_decision) == (code, http_status, decision)


def test_classify_status_upstream_message_is_kept_only_for_client_errors() -> None:
    assert "own words" in classify_status(400, {}, "own words").error.message
    assert "secret" not in classify_status(401, {}, "secret sk-123 is wrong").error.message
    assert "10.0.0.1" not in classify_status(500, {}, "at 10.0.0.1").error.message


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (500, "image input is not supported - hint: you may need to provide the mmproj", "image"),
        (500, "Audio input is not supported by this server", "audio"),
        (500, 'Failed to parse messages: Unsupported content part type: "image_url"', "image"),
        (501, "The model does not support images", "image"),
        (404, "No endpoints found that support image input", "image"),
    ],
)
def test_classify_status_unsupported_input_kind_is_invalid_request(status: int, message: str, kind: str) -> None:
    failure = classify_status(status, {}, message)
    assert (failure.error.code, failure.error.status, failure.retry_decision) == (
        "invalid_request",
        400,
        RetryDecision.GIVE_UP,
    )
    assert (failure.error.message, failure.error.param) == (f"This model does not support {kind} input.", "messages")
    assert not failure.counts_as_outage


@pytest.mark.parametrize("status", [401, 403, 408, 429])
def test_classify_status_specific_status_ignores_input_kind_message(status: int) -> None:
    assert classify_status(status, {}, "image input is not supported").error.code != "invalid_request"


def test_classify_status_long_retry_after_goes_to_next_backend() -> None:
    assert classify_status(429, {b"retry-after": b"30"}, None).retry_decision is RetryDecision.NEXT_BACKEND
    assert classify_status(429, {b"retry-after": b"30"}, None).error.headers["retry-after"] == "30"
    assert classify_status(429, {b"retry-after": b"1"}, None).retry_decision is RetryDecision.SAME_BACKEND


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({b"retry-after": b"3"}, 3.0),
        ({b"retry-after-ms": b"1500", b"retry-after": b"9"}, 1.5),
        ({b"retry-after": b"\xff"}, None),
    ],
)
def test_classify_status_reads_retry_after_from_headers(headers: dict[bytes, bytes], seconds: float | None) -> None:
    assert classify_status(503, headers, None).retry_after == seconds


def test_rate_limited_retry_after_header_is_between_1_and_120() -> None:
    assert RateLimited("x", retry_after=0.01).headers["retry-after"] == "1"
    assert RateLimited("x", retry_after=9999).headers["retry-after"] == "120"


def test_invalid_response_failure_retry_decision_depends_on_error() -> None:
    assert invalid_response_failure(InvalidRequest("no")).retry_decision is RetryDecision.GIVE_UP
    assert invalid_response_failure(ProviderFailed("not JSON")).retry_decision is RetryDecision.NEXT_BACKEND
    assert (
        invalid_response_failure(ProviderFailed("overloaded", is_reported_by_provider=True)).retry_decision
        is RetryDecision.SAME_BACKEND
    )
    assert invalid_response_failure(RateLimited("no")).error.status == 429


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "The provider rejected the request as malformed."),
        (401, "The provider rejected the gateway's credentials."),
        (404, "The provider does not know the model."),
        (408, "The provider failed with status 408."),
        (409, "The provider rejected the request with status 409."),
        (500, "The provider failed with status 500."),
        (503, "The provider is overloaded."),
        (529, "The provider is overloaded."),
        (302, "The provider returned the unexpected status 302."),
    ],
)
def test_classify_status_without_upstream_message_has_own_message(status: int, message: str) -> None:
    assert classify_status(status, {}, None).error.message == message


def test_classify_status_404_names_the_model_param() -> None:
    assert classify_status(404, {}, None).error.param == "model"


def test_classify_status_503_keeps_retry_after_and_counts_as_outage() -> None:
    failure = classify_status(503, {b"retry-after": b"7"}, None)
    assert (failure.retry_after, failure.counts_as_outage) == (7.0, True)
    assert not classify_status(409, {}, None).counts_as_outage
    assert not classify_status(429, {}, None).counts_as_outage


@pytest.mark.parametrize(
    ("header", "decision"),
    [(b"2", RetryDecision.SAME_BACKEND), (b"2.1", RetryDecision.NEXT_BACKEND), (b"3", RetryDecision.NEXT_BACKEND)],
)
def test_classify_status_429_retries_same_backend_up_to_two_seconds(header: bytes, decision: RetryDecision) -> None:
    assert classify_status(429, {b"retry-after": header}, None).retry_decision is decision


def test_classify_status_429_without_retry_after_header_sends_one_second() -> None:
    failure = classify_status(429, {}, None)
    assert failure.retry_after is None
    assert failure.error.headers["retry-after"] == "1"


def test_connection_failure_retries_and_message_says_whether_connected() -> None:
    unconnected, broken = connection_failure("refused", connected=False), connection_failure("reset", connected=True)
    assert (
        unconnected.retry_decision,
        unconnected.counts_as_outage,
        broken.retry_decision,
        broken.counts_as_outage,
    ) == (
        RetryDecision.SAME_BACKEND,
        True,
        RetryDecision.SAME_BACKEND,
        True,
    )
    assert unconnected.error.message == "The provider cannot be reached."
    assert broken.error.message == "The provider's response was interrupted: connection lost."
    assert "refused" not in unconnected.error.message
    assert isinstance(unconnected.error, ProviderFailed)
    assert unconnected.error.reason == "refused"


def test_timeout_failure_goes_to_next_backend() -> None:
    failure = timeout_failure("to begin its response", "first byte after 60 s")
    assert (failure.retry_decision, failure.counts_as_outage) == (RetryDecision.NEXT_BACKEND, True)
    assert failure.error.message == "Response timeout: the provider took too long to begin its response."
    assert isinstance(failure.error, ProviderFailed)
    assert failure.error.reason == "first byte after 60 s"
    assert isinstance(default := timeout_failure("to connect").error, ProviderFailed)
    assert default.reason == ""


@pytest.mark.parametrize(
    ("status", "kept_upstream"),
    [(400, True), (401, False), (403, False), (404, True), (429, True), (500, False), (529, True)],
)
def test_classify_error_response_same_dialect_keeps_upstream_error(status: int, kept_upstream: bool) -> None:
    raw = b'{"type":"error","error":{"type":"custom_error","message":"own words"}}'
    headers = {b"retry-after": b"1", b"anthropic-ratelimit-requests-limit": b"5", b"server": b"theirs"}
    upstream = classify_error_response(codec_between(anthropic, anthropic), status, headers, raw).error.upstream
    assert (upstream is not None) == kept_upstream
    if upstream is not None:
        kept = {"retry-after": "1", "anthropic-ratelimit-requests-limit": "5"}
        assert (upstream.status, upstream.type, upstream.headers) == (status, "custom_error", kept)
    assert classify_error_response(codec_between(openai, anthropic), status, headers, raw).error.upstream is None


def test_classify_error_response_same_dialect_keeps_param() -> None:
    raw = b'{"error": {"message": "Too hot.", "type": "invalid_request_error", "param": "temperature"}}'
    same = classify_error_response(codec_between(openai, openai), 400, {}, raw).error
    assert (same.param, same.message) == ("temperature", "Too hot.")
    assert classify_error_response(codec_between(anthropic, openai), 400, {}, raw).error.param is None
    for wrong in (b'{"a": 1}', b'"sk-secret"', b'"https://h/x"', b'""', b'"%b"' % (b"x" * 500)):
        raw = b'{"error": {"message": "Too hot.", "param": %b}}' % wrong
        assert classify_error_response(codec_between(openai, openai), 400, {}, raw).error.param is None
