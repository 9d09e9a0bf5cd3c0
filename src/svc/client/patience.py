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

FIRST_DELAY = 0.5
LAST_DELAY = 8.0
LONGEST_WAIT = 120.0
"""A `Retry-After` beyond this means "never" to a client that waits (wire facts)."""
RETRIED = frozenset({408, 409, 429})
HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
FAILURES = 5
OPEN_SECONDS = 10.0


def may_retry(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the same request may go out again after this answer; the server's own word comes first."""
    match headers.get("x-should-retry", "").lower():
        case "true":
            return True
        case "false":
            return False
    return status in RETRIED or status >= 500


def delay(attempt: int, headers: Mapping[str, str] | None = None) -> float | None:
    """Seconds before the next try, `attempt` counted from 0; None when the server asks for more than is bearable."""
    asked = _asked(headers or {})
    if asked is not None and asked > LONGEST_WAIT:
        return None
    own: float = min(LAST_DELAY, FIRST_DELAY * 2**attempt)
    jitter = random.random()  # noqa: S311 not a secret
    if asked is not None:
        return asked + jitter * min(0.25, FIRST_DELAY)
    return own * (0.5 + 0.5 * jitter)


def _asked(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if value := headers.get(name):
            try:
                seconds = float(value) * unit
            except ValueError:
                seconds = _until(value)
            if seconds >= 0:  # not for what is no number and no date
                return seconds
    return None


def _until(date: str) -> float:
    try:
        return max(0.0, calendar.timegm(time.strptime(date, HTTP_DATE)) - time.time())
    except ValueError:
        return -1.0


class Breaker:
    """Spares a gateway that is down, and those who wait for it. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, whose: str = "gateway") -> None:
        self._whose, self._clock = whose, clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    def enter(self) -> None:
        """Before a request. Raises GatewayFailed while open; when the time is over one caller may try."""
        with self._lock:
            if self._failures < FAILURES:
                return
            left = self._until - self._clock()
            if left > 0:
                raise GatewayFailed(
                    f"The {self._whose} failed {self._failures} times in a row; it is tried again in {left:.0f} s."
                )
            self._until = self._clock() + OPEN_SECONDS

    def answered(self) -> None:
        """The gateway is there, whatever it said."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """It could not be reached, or broke."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._until = self._clock() + OPEN_SECONDS
