"""The explanation of a slow request: a new connection, pauses between attempts, output without a stream."""

from __future__ import annotations

import pytest
from tests.contracts.test_database import make_entry

from svc.gateway.observability.explanation import explain_entry
from svc.ledger_queries.explanation_facts import ProviderPace
from svc.stores.database.base import AttemptDetail


@pytest.mark.parametrize(("connect_ms", "is_named"), [(None, False), (40.0, False), (800.0, True)])
def test_explain_entry_slow_connection_is_named(connect_ms: float | None, is_named: bool) -> None:
    attempt = AttemptDetail(provider="p", model="m", outcome="ok", ms=1000.0, connect_ms=connect_ms)
    entry = make_entry("req_1", latency_ms=1010.0, ttfb_ms=1000.0, attempts_detail=[attempt])
    explanation = explain_entry(entry, [attempt], None)
    assert "until the first byte" in explanation.why
    assert ("A new connection took 800 ms of that." in explanation.why) is is_named
    assert explanation.action.startswith("Check DNS") is is_named


def test_explain_entry_pauses_between_attempts_are_not_taken_for_slow_limits() -> None:
    failed = AttemptDetail(provider="p", model="m", outcome="error", code="provider_error", ms=1.0)
    attempts = [failed, AttemptDetail(provider="p", model="m", outcome="ok", ms=2.0)]
    entry = make_entry("req_1", latency_ms=440.0, ttfb_ms=440.0, attempts=2, attempts_detail=attempts)
    explanation = explain_entry(entry, attempts, None)
    assert "passed before and between the attempts" in explanation.why
    assert "routing.retries" in explanation.action


def test_explain_entry_long_response_without_a_stream_names_its_tokens() -> None:
    attempt = AttemptDetail(provider="p", model="m", outcome="ok", ms=39_600.0)
    entry = make_entry("req_1", latency_ms=39_601.0, ttfb_ms=39_600.0, completion_tokens=400)
    explanation = explain_entry(entry, [attempt], None)
    assert "400 tokens" in explanation.why
    assert "max_tokens" in explanation.action


def test_explain_entry_live_session_names_its_duration_and_is_never_slow() -> None:
    attempt = AttemptDetail(provider="local", model="m", outcome="ok", ms=600_000.0)
    stream = "/v1/audio/transcriptions/stream"
    entry = make_entry("req_1", endpoint=stream, http_status=101, latency_ms=600_000.0, ttfb_ms=5.0)
    usual = ProviderPace(requests=100, latency_ms=1_000.0, ttfb_ms=5.0, tokens_per_second=None)
    explanation = explain_entry(entry, [attempt], usual)
    assert (explanation.why, explanation.action) == ("The live session lasted 600.0 s.", "")
    assert explanation.timing is not None
    assert not explanation.timing.is_slow


@pytest.mark.parametrize("ttfb_ms", [10.0, 4_990.0])
def test_explain_entry_of_audio_gives_no_advice_about_tokens(ttfb_ms: float) -> None:
    attempt = AttemptDetail(provider="local", model="m", outcome="ok", ms=5_000.0)
    times = {"latency_ms": 5_000.0, "ttfb_ms": ttfb_ms}
    entry = make_entry("req_1", endpoint="/v1/audio/speech", **times)
    explanation = explain_entry(entry, [attempt], None)
    assert explanation.action.startswith("Send less at once")
    assert "tokens" not in explanation.why
