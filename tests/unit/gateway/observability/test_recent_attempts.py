"""The attempts of the last minutes, from samples of counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.gateway.observability.prometheus import WorkerMetrics
from svc.gateway.observability.recent_attempts import RecentAttempts, is_failure, latency_quantile_ms
from svc.gateway.observability.series import LATENCY_BUCKETS_SECONDS, AttemptSeries, LastError, MetricsSnapshot


def series(attempts: int, outcome: str = "ok", code: str = "", bucket: int = 4) -> AttemptSeries:
    latency = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)
    latency[bucket] = attempts
    return AttemptSeries(("p", "m", outcome, code), attempts, attempts * 0.1, latency)


def test_recent_attempts_are_those_of_the_window() -> None:
    recent = RecentAttempts()
    for second in range(1001):
        recent.sample([series(second)], float(1_000_000 + second))
    (found,) = recent.recent([series(1000)])
    assert 300 <= found.attempts <= 315
    assert found.latency[4] == found.attempts
    for second in range(1001, 1400):
        recent.sample([series(1000)], float(1_000_000 + second))
    assert recent.recent([series(1000)]) == []


def test_recent_attempts_counts_all_since_the_start_before_the_window_is_full() -> None:
    recent = RecentAttempts()
    recent.sample([series(3)], 1_000_000.0)
    recent.sample([series(5)], 1_000_001.0)
    (found,) = recent.recent([series(7)])
    assert found.attempts == 7


def test_recent_attempts_number_of_samples_is_bounded() -> None:
    recent = RecentAttempts()
    for second in range(5000):
        recent.sample([series(second)], float(1_000_000 + second))
    assert len(recent._samples) <= 23


def test_last_error_is_the_newest_code() -> None:
    recent = RecentAttempts()
    recent.sample([series(1, "error", "provider_error")], 1.0)
    assert recent.last_errors()["p/m"].code == "provider_error"
    recent.sample([series(1, "error", "provider_error"), series(1, "error", "rate_limit_exceeded")], 2.0)
    assert recent.last_errors()["p/m"].code == "rate_limit_exceeded"
    recent.sample([series(1, "error", "provider_error"), series(1, "cancelled")], 3.0)
    assert recent.last_errors()["p/m"].code == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        ("error", "provider_error", True),
        ("error", "invalid_request", False),
        ("ok", "", False),
        ("cancelled", "", False),
    ],
)
def test_is_failure_only_for_what_the_provider_causes(outcome: str, code: str, expected: bool) -> None:
    assert is_failure(("p", "m", outcome, code)) is expected


@pytest.mark.parametrize(("quantile", "expected"), [(0.5, 75.0), (0.99, 99.5), (1.0, 100.0)])
def test_latency_quantile_interpolates_within_the_bucket(quantile: float, expected: float) -> None:
    assert latency_quantile_ms(series(100).latency, quantile) == pytest.approx(expected)


def test_latency_quantile_of_nothing_and_of_very_slow_attempts() -> None:
    assert latency_quantile_ms([0] * 15, 0.5) is None
    assert latency_quantile_ms([0] * 14 + [3], 0.5) == 120_000.0


def test_workers_recent_attempts_and_last_errors_are_merged(tmp_path: Path) -> None:
    own = MetricsSnapshot(recent=[series(2)], last_errors={"p/m": LastError("a", 1.0)})
    other = MetricsSnapshot(recent=[series(3)], last_errors={"p/m": LastError("b", 2.0), "p/n": LastError("c", 0.0)})
    WorkerMetrics(tmp_path, "other").write(other)
    merged = WorkerMetrics(tmp_path, "own").aggregate(own)
    assert [each.attempts for each in merged.recent] == [5]
    assert merged.last_errors == {"p/m": LastError("b", 2.0), "p/n": LastError("c", 0.0)}
