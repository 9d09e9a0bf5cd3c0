"""Stops asking a target that fails, or answers far too slowly, and finds out with real requests when it is well. Pure.

closed ── half of the last 20 or more requests failed, or were slow ──> open ── after a while ──> half-open
   ^                                                                      ^ └──────── a probe failed ────┤
   └──────────────────────────────── a probe was answered ───────────────┼──────────────────────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

from svc.gateway.routing.sliding_window import SlidingWindow

BreakerState = Literal["closed", "open", "half-open"]
_STATES_BY_SEVERITY: Final[tuple[BreakerState, ...]] = ("closed", "half-open", "open")

BREAKER_WINDOW_SECONDS: Final = 10.0
MIN_WINDOW_REQUESTS: Final = 20
"""Requests in the window before it says anything."""
OPEN_FAILURE_SHARE: Final = 0.5
DEAD_NO_RESPONSE_SHARE: Final = 0.9
"""The share of requests that got no answer at all from which the target is taken for dead."""
MIN_OPEN_SECONDS, MAX_OPEN_SECONDS = 2.0, 60.0
"""Seconds that it stays open; twice as long after each failed probe."""
BREAKER_PROBE_TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which a probe that was never heard of again does not hold up the next one."""
SLOW_LATENCY_FACTOR: Final = 5.0
MIN_SLOW_SECONDS: Final = 2.0
"""Slow, when nothing is set: `USUAL` times the target's usual time to a first byte, and at least so many seconds."""
HEDGE_LOSS_LATENCY_FACTOR: Final = 2.0
"""Likewise, while it has not answered: `OUTRUN` times its usual time is slow once another target has answered."""
LATENCY_AVERAGE_WEIGHT: Final = 0.05
"""The weight of one answer in what is usual."""

TOTAL_COLUMN, FAILED_COLUMN, SLOW_COLUMN, NO_RESPONSE_COLUMN = 0, 1, 2, 3


def worst_state(states: Iterable[BreakerState]) -> BreakerState:
    """Of several breakers for one place."""
    return max(states, key=_STATES_BY_SEVERITY.index, default="closed")


class CircuitBreaker:
    """For one target. `slow_after`: seconds to the first byte that are slow; 0 takes the target's own usual time."""

    __slots__ = (
        "_open_seconds",
        "_probe_allowed_at",
        "_probe_until",
        "_usual_seconds",
        "_window",
        "has_responses",
        "opened_for_slowness",
        "slow_after",
        "state",
    )

    def __init__(self, *, slow_after: float = 0.0) -> None:
        self.state: BreakerState = "closed"
        self.opened_for_slowness = False
        """It is open for slowness."""
        self.has_responses = False
        """Some answers do come: a request that has nowhere else to go is better sent than refused."""
        self.slow_after = slow_after
        self._window = SlidingWindow(BREAKER_WINDOW_SECONDS, 4)
        self._open_seconds = MIN_OPEN_SECONDS
        self._probe_allowed_at = 0.0
        self._probe_until = 0.0
        self._usual_seconds = [0.0, 0.0]

    def allow_request(self, now: float) -> bool:
        """Whether a request may go to the target; in half-open state the one that gets True is the probe."""
        if self.state == "closed":
            return True
        if self.state == "open":
            if now < self._probe_allowed_at:
                return False
            self.state = "half-open"
            self._probe_until = 0.0
        if now < self._probe_until:
            return False
        self._probe_until = now + BREAKER_PROBE_TIMEOUT_SECONDS
        return True

    def may_serve(self, now: float) -> bool:
        """What `admits` would say; changes nothing."""
        if self.state == "open":
            return now >= self._probe_allowed_at
        return self.state == "closed" or now >= self._probe_until

    def record_success(self, now: float, seconds: float, *, stream: bool) -> None:
        """A first byte (of a whole answer: the last one) after so many seconds."""
        slow = self._is_slow(seconds, stream)
        if self.state == "half-open":
            if slow and self.opened_for_slowness:
                self._open(now)
            else:
                self._close()
        elif self.state == "closed":
            self._window.add(now, TOTAL_COLUMN)
            if slow:
                self._window.add(now, SLOW_COLUMN)
                self._open_if_unhealthy(now)

    def record_hedge_loss(self, now: float, seconds: float, *, stream: bool) -> None:
        """Not a byte for so many seconds, then another target was faster and it was let go of: slow, or not known."""
        limit = self.slow_after or HEDGE_LOSS_LATENCY_FACTOR * self._usual_seconds[stream] or math.inf
        if seconds <= limit:
            self.record_abandoned()
        elif self.state == "half-open":
            self._open(now)
        elif self.state == "closed":
            self._window.add(now, TOTAL_COLUMN)
            self._window.add(now, SLOW_COLUMN)
            self._open_if_unhealthy(now)

    def record_failure(self, now: float, *, already_counted: bool = False, no_response: bool = False) -> None:
        """It failed; `counted`: a stream that was reported as answered broke later; `silent`: nothing came of it."""
        if self.state == "half-open":
            self._open(now)
        elif self.state == "closed":
            if not already_counted:
                self._window.add(now, TOTAL_COLUMN)
            self._window.add(now, FAILED_COLUMN)
            if no_response:
                self._window.add(now, NO_RESPONSE_COLUMN)
            self._open_if_unhealthy(now)

    @property
    def open_seconds(self) -> float:
        """Seconds that it stays open, from its opening on."""
        return self._open_seconds

    def open_from_peer(self, now: float, open_seconds: float, *, is_slow: bool, has_responses: bool) -> bool:
        """Another process has opened its own, for so many seconds more; whether that changes anything here."""
        if self.state != "closed":
            return False
        self.state, self.opened_for_slowness, self.has_responses = "open", is_slow, has_responses
        self._probe_allowed_at = now + open_seconds
        self._window.clear()
        return True

    def record_abandoned(self) -> None:
        """Nothing can be said of an attempt: the client left."""
        self._probe_until = 0.0

    def _open_if_unhealthy(self, now: float) -> None:
        total, failed, slow, no_response = self._window.sums(now)
        if total >= MIN_WINDOW_REQUESTS and failed + slow >= OPEN_FAILURE_SHARE * total:
            self.opened_for_slowness = failed < slow
            self.has_responses = no_response < DEAD_NO_RESPONSE_SHARE * total
            self._open(now)

    def _open(self, now: float) -> None:
        self._open_seconds = (
            MIN_OPEN_SECONDS if self.state == "closed" else min(MAX_OPEN_SECONDS, self._open_seconds * 2)
        )
        self.state = "open"
        self._probe_allowed_at = now + self._open_seconds
        self._window.clear()

    def _close(self) -> None:
        self.state = "closed"
        self.opened_for_slowness = self.has_responses = False
        self._window.clear()

    def _is_slow(self, seconds: float, stream: bool) -> bool:
        if self.slow_after:
            return seconds > self.slow_after
        usual = self._usual_seconds[stream]
        slow = usual > 0 and seconds > max(MIN_SLOW_SECONDS, SLOW_LATENCY_FACTOR * usual)
        if not slow:
            self._usual_seconds[stream] = seconds if usual == 0 else usual + LATENCY_AVERAGE_WEIGHT * (seconds - usual)
        return slow
