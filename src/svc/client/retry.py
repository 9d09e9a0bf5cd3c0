"""When the SDK repeats a request, how long it waits before that, and when it stops. No I/O."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping

from svc.errors import GatewayFailed
from svc.resilience import Backoff, CircuitBreaker, parse_retry_after

SDK_BACKOFF = Backoff(0.5, 8.0)
SDK_RETRY_AFTER_JITTER_SECONDS = 0.25
SDK_MAX_RETRY_AFTER_SECONDS = 120.0
"""The SDK does not repeat a request if `Retry-After` is longer."""
RETRYABLE_STATUSES = frozenset({408, 409, 429})
SDK_BREAKER_FAILURE_THRESHOLD = 5
SDK_BREAKER_OPEN_SECONDS = 10.0


def is_retryable(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether the request may be sent again. `x-should-retry` has precedence over the status."""
    match headers.get("x-should-retry", "").lower():
        case "true":
            return True
        case "false":
            return False
    return status in RETRYABLE_STATUSES or status >= 500


def retry_delay(attempt: int, headers: Mapping[str, str] | None = None) -> float | None:
    """Return the seconds before the next attempt, or None if the server requests a longer delay.

    `attempt` counts from 0.
    """
    headers = headers or {}
    retry_after = parse_retry_after(headers.get("retry-after-ms"), headers.get("retry-after"))
    if retry_after is not None and retry_after > SDK_MAX_RETRY_AFTER_SECONDS:
        return None
    jitter = random.random()  # noqa: S311 not a secret
    if retry_after is not None:
        return retry_after + jitter * SDK_RETRY_AFTER_JITTER_SECONDS
    return SDK_BACKOFF.exponential(attempt) * (0.5 + 0.5 * jitter)


class ClientCircuitBreaker:
    """Opens after SDK_BREAKER_FAILURE_THRESHOLD failures in a row. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, server_kind: str = "gateway") -> None:
        self._server_kind, self._clock = server_kind, clock
        self._lock = threading.Lock()
        self._consecutive_failures = 0
        self._breaker = CircuitBreaker(
            Backoff(SDK_BREAKER_OPEN_SECONDS, SDK_BREAKER_OPEN_SECONDS), SDK_BREAKER_OPEN_SECONDS
        )

    def raise_if_open(self) -> None:
        """Raise GatewayFailed while the circuit is open. Call it before each request."""
        with self._lock:
            now = self._clock()
            if not self._breaker.acquire_request(now):
                error = GatewayFailed(
                    f"The {self._server_kind} failed {self._consecutive_failures} times in a row. "
                    f"The next request is possible in {self._breaker.seconds_until_allowed(now):.0f} s."
                )
                error.is_outage = True
                raise error

    def record_success(self) -> None:
        """Record a response of the server itself, whatever its status."""
        with self._lock:
            self._consecutive_failures = 0
            self._breaker.close()

    def record_abandoned(self) -> None:
        """Record that the caller stopped waiting, which says nothing about the server."""
        with self._lock:
            self._breaker.record_abandoned()

    def record_failure(self) -> None:
        """Record that the server is unreachable, or responded that it is down."""
        with self._lock:
            self._consecutive_failures += 1
            if self._consecutive_failures >= SDK_BREAKER_FAILURE_THRESHOLD:
                self._breaker.open(self._clock())
