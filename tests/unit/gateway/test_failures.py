from email.utils import formatdate
from time import time

import pytest

from svc.dialects.anthropic import dialect as anthropic
from svc.dialects.openai import dialect as openai
from svc.errors import InvalidRequest, ProviderFailed, RateLimited
from svc.gateway.failures import (
    BACKOFF_BASE,
    BACKOFF_CAP,
    Then,
    backoff,
    judge,
    judge_answer,
    late,
    lost,
    not_understood,
    retry_after,
)


@pytest.mark.parametrize(
    ("status", "code", "shown", "then"),
    [
        (400, "invalid_request", 400, Then.NOWHERE),
        (401, "provider_error", 502, Then.NEXT),
        (403, "provider_error", 502, Then.NEXT),
        (404, "model_not_found", 404, Then.NOWHERE),
        (408, "provider_error", 502, Then.AGAIN),
        (409, "provider_error", 502, Then.NOWHERE),
        (413, "invalid_request", 400, Then.NOWHERE),
        (422, "invalid_request", 400, Then.NOWHERE),
        (429, "rate_limit_exceeded", 429, Then.AGAIN),
        (500, "provider_error", 502, Then.AGAIN),
        (503, "provider_error", 502, Then.AGAIN),
        (529, "provider_error", 502, Then.AGAIN),
        (302, "provider_error", 502, Then.NEXT),
    ],
)
def test_what_a_status_means(status: int, code: str, shown: int, then: Then) -> None:
    failure = judge(status, {}, "its own words")
    assert (failure.error.code, failure.error.status, failure.then) == (code, shown, then)


def test_the_upstreams_words_are_kept_only_where_they_help_the_client() -> None:
    assert "own words" in judge(400, {}, "own words").error.message
    assert "secret" not in judge(401, {}, "secret sk-123 is wrong").error.message
    assert "10.0.0.1" not in judge(500, {}, "at 10.0.0.1").error.message


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (500, "image input is not supported - hint: you may need to provide the mmproj", "image"),
        (500, "Audio input is not supported by this server", "audio"),
        (500, 'Failed to parse messages: Unsupported content part type: "image_url"', "image"),
        (501, "The model does not support images", "image"),
        (404, "No endpoints found that support image input", "image"),
    ],
)
def test_judge_input_that_the_model_does_not_take_is_invalid_request(status: int, words: str, kind: str) -> None:
    failure = judge(status, {}, words)
    assert (failure.error.code, failure.error.status, failure.then) == ("invalid_request", 400, Then.NOWHERE)
    assert (failure.error.message, failure.error.param) == (f"This model takes no {kind} input.", "messages")
    assert not failure.silent


@pytest.mark.parametrize("status", [401, 403, 408, 429])
def test_judge_input_words_do_not_outrank_a_status_with_a_meaning(status: int) -> None:
    assert judge(status, {}, "image input is not supported").error.code != "invalid_request"


def test_a_long_retry_after_is_not_waited_for() -> None:
    assert judge(429, {b"retry-after": b"30"}, None).then is Then.NEXT
    assert judge(429, {b"retry-after": b"30"}, None).error.headers["retry-after"] == "30"
    assert judge(429, {b"retry-after": b"1"}, None).then is Then.AGAIN


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({b"retry-after": b"3"}, 3.0),
        ({b"retry-after-ms": b"1500", b"retry-after": b"9"}, 1.5),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"\xff"}, None),
        ({b"retry-after": b"-5"}, None),
        ({b"retry-after": b"9" * 400}, 86400.0),
        ({b"retry-after-ms": b"inf"}, 86400.0),
        ({b"retry-after-ms": b"nan"}, None),
        ({b"retry-after-ms": b"-1"}, 0.0),
    ],
)
def test_retry_after(headers: dict[bytes, bytes], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_retry_after_as_a_date() -> None:
    found = retry_after({b"retry-after": formatdate(time() + 60, usegmt=True).encode()})
    assert found is not None
    assert 55 < found <= 61


def test_retry_after_for_clients_is_between_1_and_120() -> None:
    assert RateLimited("x", retry_after=0.01).headers["retry-after"] == "1"
    assert RateLimited("x", retry_after=9999).headers["retry-after"] == "120"


def test_backoff_is_bounded_and_grows() -> None:
    wait = 0.0
    for _ in range(50):
        wait = backoff(wait)
        assert BACKOFF_BASE <= wait <= BACKOFF_CAP


def test_not_all_come_again_at_the_same_moment() -> None:
    assert len({round(backoff(0.0), 3) for _ in range(100)}) > 20


def test_an_error_event_before_the_first_piece() -> None:
    assert not_understood(InvalidRequest("no")).then is Then.NOWHERE
    assert not_understood(ProviderFailed("not JSON")).then is Then.NEXT
    assert not_understood(ProviderFailed("overloaded", told=True)).then is Then.AGAIN
    assert not_understood(RateLimited("no")).error.status == 429


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "The provider refused the request as malformed."),
        (401, "The provider refused the gateway's own credentials."),
        (404, "The provider does not know the model."),
        (408, "The provider failed with status 408."),
        (409, "The provider refused the request with status 409."),
        (500, "The provider failed with status 500."),
        (503, "The provider is overloaded."),
        (529, "The provider is overloaded."),
        (302, "The provider answered with the unexpected status 302."),
    ],
)
def test_judge_without_the_upstreams_words_says_what_happened(status: int, message: str) -> None:
    assert judge(status, {}, None).error.message == message


def test_judge_not_found_names_the_model_field() -> None:
    assert judge(404, {}, None).error.param == "model"


def test_judge_server_error_keeps_retry_after_and_is_silent() -> None:
    failure = judge(503, {b"retry-after": b"7"}, None)
    assert (failure.retry_after, failure.silent) == (7.0, True)
    assert not judge(409, {}, None).silent
    assert not judge(429, {}, None).silent


@pytest.mark.parametrize(("said", "then"), [(b"2", Then.AGAIN), (b"2.1", Then.NEXT), (b"3", Then.NEXT)])
def test_judge_rate_limit_waits_two_seconds_at_most(said: bytes, then: Then) -> None:
    assert judge(429, {b"retry-after": said}, None).then is then


def test_judge_rate_limit_without_retry_after_says_one_second() -> None:
    failure = judge(429, {}, None)
    assert failure.retry_after is None
    assert failure.error.headers["retry-after"] == "1"


def test_lost_connection_is_tried_again_and_says_whether_it_was_made() -> None:
    never, broken = lost("refused", made=False), lost("reset", made=True)
    assert (never.then, never.silent, broken.then, broken.silent) == (Then.AGAIN, True, Then.AGAIN, True)
    assert never.error.message == "The provider could not be reached."
    assert broken.error.message == "The provider gave no whole answer."
    assert "refused" not in never.error.message
    assert isinstance(never.error, ProviderFailed)
    assert never.error.reason == "refused"


def test_late_answer_goes_to_the_next_backend() -> None:
    failure = late("to begin its answer", "first byte after 60 s")
    assert (failure.then, failure.silent) == (Then.NEXT, True)
    assert failure.error.message == "The provider took too long to begin its answer."
    assert isinstance(failure.error, ProviderFailed)
    assert failure.error.reason == "first byte after 60 s"
    assert isinstance(default := late("to connect").error, ProviderFailed)
    assert default.reason == ""


@pytest.mark.parametrize(
    ("status", "relayed"),
    [(400, True), (401, False), (403, False), (404, True), (429, True), (500, False), (529, True)],
)
def test_judge_answer_relays_the_upstreams_error_within_a_dialect(status: int, relayed: bool) -> None:
    raw = b'{"type":"error","error":{"type":"custom_error","message":"own words"}}'
    headers = {b"retry-after": b"1", b"anthropic-ratelimit-requests-limit": b"5", b"server": b"theirs"}
    upstream = judge_answer(anthropic, anthropic, status, headers, raw).error.upstream
    assert (upstream is not None) == relayed
    if upstream is not None:
        kept = {"retry-after": "1", "anthropic-ratelimit-requests-limit": "5"}
        assert (upstream.status, upstream.type, upstream.headers) == (status, "custom_error", kept)
    assert judge_answer(anthropic, openai, status, headers, raw).error.upstream is None
