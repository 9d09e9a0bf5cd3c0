"""The circuit breaker of a backend, which opens if half of the recent requests failed or were slow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from svc.gateway.routing.sliding_window import SlidingWindow
from svc.resilience import Backoff, BreakerState, CircuitBreaker

_STATES_BY_SEVERITY: Final[tuple[BreakerState, ...]] = ("closed", "half-open", "open")

BREAKER_WINDOW_SECONDS: Final = 10.0
MIN_WINDOW_REQUESTS: Final = 20
"""Requests in the window before the breaker can open."""
OPEN_FAILURE_SHARE: Final = 0.5
DOWN_OUTAGE_SHARE: Final = 0.9
"""The share of requests without a response, or with a server error, at which a backend counts as down."""
MIN_OPEN_SECONDS: Final = 2.0
MAX_OPEN_SECONDS: Final = 60.0
"""Limits of the time that a breaker stays open. The time doubles after each failed probe."""
BREAKER_PROBE_TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which a probe without an outcome no longer blocks the next one."""
SLOW_LATENCY_FACTOR: Final = 5.0
MIN_SLOW_SECONDS: Final = 2.0
"""Without `slow_after`, a first byte is slow after both this and SLOW_LATENCY_FACTOR times the backend's average."""
HEDGE_LOSS_LATENCY_FACTOR: Final = 2.0
"""The same factor for a backend without a response when another backend responds first."""
LATENCY_AVERAGE_WEIGHT: Final = 0.05
"""The weight of one response in the moving average of the latency."""

UNTIMED: Final = -1.0
"""Seconds of a response that is not comparable to others, such as a token count."""

TOTAL_COLUMN: Final = 0
FAILED_COLUMN: Final = 1
SLOW_COLUMN: Final = 2
OUTAGE_COLUMN: Final = 3


def worst_state(states: Iterable[BreakerState]) -> BreakerState:
    """Return the worst state of several breakers for one backend."""
    return max(states, key=_STATES_BY_SEVERITY.index, default="closed")


class BackendCircuitBreaker(CircuitBreaker):
    """The breaker of one backend.

    `slow_after`: seconds after which a first byte is slow. With 0, the backend's average latency decides.
    """

    __slots__ = ("_usual_seconds", "_window", "has_responses", "opened_for_slowness", "slow_after")

    def __init__(self, *, slow_after: float = 0.0) -> None:
        super().__init__(Backoff(MIN_OPEN_SECONDS, MAX_OPEN_SECONDS), BREAKER_PROBE_TIMEOUT_SECONDS)
        self.opened_for_slowness = False
        """Whether slow responses opened the breaker, rather than failures."""
        self.has_responses = False
        """Whether some requests get responses. If so, a request without another backend is sent and not rejected."""
        self.slow_after = slow_after
        self._window = SlidingWindow(BREAKER_WINDOW_SECONDS, 4)
        self._usual_seconds = [0.0, 0.0]

    def record_success(self, now: float, seconds: float, *, stream: bool) -> None:
        """Record the seconds to the first byte of a stream, or to the last byte of another response.

        With UNTIMED, the response does not count for the average latency, and is never slow.
        """
        slow = self._is_slow(seconds, stream)
        if self.state == "half-open":
            if slow and self.opened_for_slowness:
                self.open(now)
            else:
                self.close()
                self.opened_for_slowness = self.has_responses = False
        elif self.state == "closed":
            self._window.add(now, TOTAL_COLUMN)
            if slow:
                self._window.add(now, SLOW_COLUMN)
                self._open_if_unhealthy(now)

    def record_hedge_loss(self, now: float, seconds: float, *, stream: bool) -> None:
        """Record an attempt that was cancelled after `seconds` without a byte, because another backend was faster."""
        limit = self.slow_after or HEDGE_LOSS_LATENCY_FACTOR * self._usual_seconds[stream] or math.inf
        if seconds <= limit:
            self.record_abandoned()
        elif self.state == "half-open":
            self.open(now)
        elif self.state == "closed":
            self._window.add(now, TOTAL_COLUMN)
            self._window.add(now, SLOW_COLUMN)
            self._open_if_unhealthy(now)

    def record_failure(self, now: float, *, already_counted: bool = False, is_outage: bool = False) -> None:
        """Record a failure.

        `already_counted`: a stream was recorded as a success, and was interrupted later.
        `is_outage`: the backend sent no response, or only a server error.
        """
        if self.state == "half-open":
            self.open(now)
        elif self.state == "closed":
            if not already_counted:
                self._window.add(now, TOTAL_COLUMN)
            self._window.add(now, FAILED_COLUMN)
            if is_outage:
                self._window.add(now, OUTAGE_COLUMN)
            self._open_if_unhealthy(now)

    def open_from_peer(self, now: float, open_seconds: float, *, is_slow: bool, has_responses: bool) -> bool:
        """Open the breaker for `open_seconds`, because another process did. Return whether the state changed."""
        if self.state != "closed":
            return False
        self.opened_for_slowness, self.has_responses = is_slow, has_responses
        self.open_until(now + open_seconds)
        self._window.clear()
        return True

    def _open_if_unhealthy(self, now: float) -> None:
        total, failed, slow, outages = self._window.sums(now)
        if total >= MIN_WINDOW_REQUESTS and failed + slow >= OPEN_FAILURE_SHARE * total:
            self.opened_for_slowness = failed < slow
            self.has_responses = outages < DOWN_OUTAGE_SHARE * total
            self.open(now)
            self._window.clear()

    def _is_slow(self, seconds: float, stream: bool) -> bool:
        if self.slow_after or seconds == UNTIMED:
            return seconds > self.slow_after
        usual = self._usual_seconds[stream]
        slow = usual > 0 and seconds > max(MIN_SLOW_SECONDS, SLOW_LATENCY_FACTOR * usual)
        if not slow:
            self._usual_seconds[stream] = seconds if usual == 0 else usual + LATENCY_AVERAGE_WEIGHT * (seconds - usual)
        return slow
