"""svc.client.retry: which requests are repeated, after which delay, and when the breaker opens."""

from __future__ import annotations

import email.utils
import time

import pytest

from svc.client.retry import (
    SDK_BREAKER_FAILURE_THRESHOLD,
    SDK_BREAKER_OPEN_SECONDS,
    ClientCircuitBreaker,
    is_retryable,
    retry_delay,
)
from svc.errors import GatewayFailed


@pytest.mark.parametrize(
    ("status", "retryable"), [(400, False), (401, False), (404, False), (408, True), (429, True), (502, True)]
)
def test_is_retryable_status_and_header_decide(status: int, retryable: bool) -> None:
    assert is_retryable(status, {}) is retryable
    assert is_retryable(status, {"x-should-retry": "false"}) is False
    assert is_retryable(status, {"x-should-retry": "true"}) is True


def test_retry_delay_doubles_with_jitter() -> None:
    for attempt in range(8):
        waits = [retry_delay(attempt) or 0 for _ in range(50)]
        longest = min(8.0, 0.5 * 2**attempt)
        assert longest / 2 <= min(waits) < max(waits) <= longest


def test_retry_delay_retry_after_header_is_used() -> None:
    assert 2.0 <= (retry_delay(0, {"retry-after": "2"}) or 0) <= 2.3
    assert 0.04 <= (retry_delay(5, {"retry-after-ms": "40", "retry-after": "9"}) or 0) <= 0.3
    assert retry_delay(0, {"retry-after": "121"}) is None
    assert (retry_delay(0, {"retry-after": "soon"}) or 9) <= 0.5
    assert (retry_delay(0, {"retry-after": "nan"}) or 9) <= 0.5
    date = email.utils.formatdate(time.time() + 5, usegmt=True)
    assert 3.5 <= (retry_delay(0, {"retry-after": date}) or 0) <= 5.5


def test_client_circuit_breaker_open_admits_one_probe() -> None:
    now = [0.0]
    breaker = ClientCircuitBreaker(lambda: now[0])
    for _ in range(SDK_BREAKER_FAILURE_THRESHOLD):
        breaker.raise_if_open()
        breaker.record_failure()
    with pytest.raises(GatewayFailed, match="in a row"):
        breaker.raise_if_open()
    now[0] = SDK_BREAKER_OPEN_SECONDS + 1
    breaker.raise_if_open()
    with pytest.raises(GatewayFailed):
        breaker.raise_if_open()
    breaker.record_success()
    breaker.raise_if_open()
