"""Backoff, circuit breaker and `Retry-After` parser, which the gateway and the SDK share. No I/O."""

from __future__ import annotations

import calendar
import random
import time
from typing import Final, Literal

BreakerState = Literal["closed", "open", "half-open"]

MAX_RETRY_AFTER_SECONDS: Final = 86400.0
_HTTP_DATE_FORMATS: Final = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
"""RFC 9110, section 5.6.7. The parser of `email.utils` would make `import svc` 10% slower."""
_MAX_DOUBLINGS: Final = 64
"""Keeps the power of two within the range of a float."""


class Backoff:
    """Delays that grow from `min_seconds` to `max_seconds`."""

    __slots__ = ("max_seconds", "min_seconds")

    def __init__(self, min_seconds: float, max_seconds: float) -> None:
        self.min_seconds = min_seconds
        self.max_seconds = max_seconds

    def exponential(self, attempt: int) -> float:
        """Return the delay after `attempt` earlier delays: the minimum, doubled each time, without jitter."""
        return min(self.max_seconds, self.min_seconds * 2.0 ** min(attempt, _MAX_DOUBLINGS))

    def decorrelated(self, previous: float) -> float:
        """Return a delay with decorrelated jitter, given the delay before it in seconds (0 for the first)."""
        upper_bound = 3 * (previous or self.min_seconds)
        return min(self.max_seconds, random.uniform(self.min_seconds, upper_bound))  # noqa: S311 not a secret


class CircuitBreaker:
    """Blocks requests to a server that fails, and admits one probe at a time to detect its recovery.

    closed ── open() ──> open ── after `open_seconds` ──> half-open
       ^                   ^                                 │ │
       └───── close() ─────┼─────────────────────────────────┘ │
                           └────────────── open() ─────────────┘

    The owner decides what counts as a failure, and when to call `open` and `close`. Times are in seconds, on any one
    monotonic clock.
    """

    __slots__ = ("_failed_probes", "_open_backoff", "_probe_allowed_at", "_probe_timeout", "_probe_until", "state")

    def __init__(self, open_backoff: Backoff, probe_timeout_seconds: float) -> None:
        """`open_backoff` is the time that the breaker stays open after 0, 1, 2… failed probes.

        After `probe_timeout_seconds`, a probe without an outcome no longer blocks the next one.
        """
        self.state: BreakerState = "closed"
        self._open_backoff = open_backoff
        self._probe_timeout = probe_timeout_seconds
        self._failed_probes = 0
        self._probe_allowed_at = 0.0
        self._probe_until = 0.0

    @property
    def open_seconds(self) -> float:
        """Seconds that the breaker stays open after the last call of `open`."""
        return self._open_backoff.exponential(self._failed_probes)

    def acquire_request(self, now: float) -> bool:
        """Return whether a request may be sent. While half-open, the request that gets True claims the probe."""
        if self.state == "closed":
            return True
        if self.state == "open":
            if now < self._probe_allowed_at:
                return False
            self.state = "half-open"
            self._probe_until = 0.0
        if now < self._probe_until:
            return False
        self._probe_until = now + self._probe_timeout
        return True

    def may_serve(self, now: float) -> bool:
        """Return what `acquire_request` would return, and change nothing."""
        return self.seconds_until_allowed(now) <= 0

    def seconds_until_allowed(self, now: float) -> float:
        """Return the seconds until `acquire_request` returns True if no outcome is recorded. 0 or less means now."""
        if self.state == "closed":
            return 0.0
        return (self._probe_allowed_at if self.state == "open" else self._probe_until) - now

    def open(self, now: float) -> None:
        """Block requests, for longer than before if a probe has failed."""
        self._failed_probes = 0 if self.state == "closed" else self._failed_probes + 1
        self.open_until(now + self.open_seconds)

    def open_until(self, end: float) -> None:
        """Block requests until the time `end`."""
        self.state = "open"
        self._probe_allowed_at = end

    def close(self) -> None:
        """Admit all requests: the server has recovered."""
        self.state = "closed"

    def record_abandoned(self) -> None:
        """Record that the probe ended without an outcome, because its client left. The next request is a probe."""
        self._probe_until = 0.0


def parse_retry_after(milliseconds: str | None, value: str | None) -> float | None:
    """Return the delay in seconds that a server requests, between 0 and MAX_RETRY_AFTER_SECONDS.

    `milliseconds` is the value of `retry-after-ms`, which openai-python and anthropic-sdk-python support too. It has
    precedence. `value` is that of `Retry-After`: a number or a date (RFC 9110, section 10.2.3). Invalid values and
    negative numbers are ignored. Returns None if there is no valid value.
    """
    for text, unit in ((milliseconds, 0.001), (value, 1.0)):
        if text:
            try:
                seconds = float(text) * unit
            except ValueError:
                seconds = _seconds_until(text)
            if seconds >= 0:  # False for NaN
                return min(seconds, MAX_RETRY_AFTER_SECONDS)
    return None


def _seconds_until(date: str) -> float:
    """Return the seconds until a date: 0 for a date in the past, and -1 for an invalid date."""
    for date_format in _HTTP_DATE_FORMATS:
        try:
            return max(0.0, calendar.timegm(time.strptime(date, date_format)) - time.time())
        except ValueError:
            continue
    return -1.0
