"""When a client tries again, and when it stops trying: retries with jitter, and a breaker. No I/O.

breaker:  closed ──FAILURES in a row──> open ──after OPEN_SECONDS──> one trial ──answered──> closed
                                          └──────────────trial failed──────┘
"""

from __future__ import annotations

import calendar
import random
import threading
import time
from collections.abc import Callable, Mapping

from svc.errors import GatewayFailed

SDK_INITIAL_RETRY_DELAY_SECONDS = 0.5
SDK_MAX_RETRY_DELAY_SECONDS = 8.0
SDK_MAX_RETRY_AFTER_SECONDS = 120.0
"""A `Retry-After` beyond this means "never" to a client that waits (wire facts)."""
RETRYABLE_STATUSES = frozenset({408, 409, 429})
HTTP_DATE_FORMAT = "%a, %d %b %Y %H:%M:%S GMT"
SDK_BREAKER_FAILURE_THRESHOLD = 5
SDK_BREAKER_OPEN_SECONDS = 10.0


def is_retryable(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the same request may go out again after this answer; the server's own word comes first."""
    match headers.get("x-should-retry", "").lower():
        case "true":
            return True
        case "false":
            return False
    return status in RETRYABLE_STATUSES or status >= 500


def retry_delay(attempt: int, headers: Mapping[str, str] | None = None) -> float | None:
    """Seconds before the next try, `attempt` counted from 0; None when the server asks for more than is bearable."""
    retry_after = _retry_after_seconds(headers or {})
    if retry_after is not None and retry_after > SDK_MAX_RETRY_AFTER_SECONDS:
        return None
    backoff: float = min(SDK_MAX_RETRY_DELAY_SECONDS, SDK_INITIAL_RETRY_DELAY_SECONDS * 2**attempt)
    jitter = random.random()  # noqa: S311 not a secret
    if retry_after is not None:
        return retry_after + jitter * min(0.25, SDK_INITIAL_RETRY_DELAY_SECONDS)
    return backoff * (0.5 + 0.5 * jitter)


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if value := headers.get(name):
            try:
                seconds = float(value) * unit
            except ValueError:
                seconds = _seconds_until(value)
            if seconds >= 0:  # not for what is no number and no date
                return seconds
    return None


def _seconds_until(date: str) -> float:
    try:
        return max(0.0, calendar.timegm(time.strptime(date, HTTP_DATE_FORMAT)) - time.time())
    except ValueError:
        return -1.0


class ClientCircuitBreaker:
    """Spares a gateway that is down, and those who wait for it. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, server_kind: str = "gateway") -> None:
        self._server_kind, self._clock = server_kind, clock
        self._lock = threading.Lock()
        self._consecutive_failures = 0
        self._open_until = 0.0

    def raise_if_open(self) -> None:
        """Before a request. Raises GatewayFailed while open; when the time is over one caller may try."""
        with self._lock:
            if self._consecutive_failures < SDK_BREAKER_FAILURE_THRESHOLD:
                return
            remaining = self._open_until - self._clock()
            if remaining > 0:
                raise GatewayFailed(
                    f"The {self._server_kind} failed {self._consecutive_failures} times in a row; "
                    f"it is tried again in {remaining:.0f} s."
                )
            self._open_until = self._clock() + SDK_BREAKER_OPEN_SECONDS

    def record_success(self) -> None:
        """The gateway is there, whatever it said."""
        with self._lock:
            self._consecutive_failures = 0

    def record_failure(self) -> None:
        """It could not be reached, or broke."""
        with self._lock:
            self._consecutive_failures += 1
            if self._consecutive_failures >= SDK_BREAKER_FAILURE_THRESHOLD:
                self._open_until = self._clock() + SDK_BREAKER_OPEN_SECONDS
