"""Limits the retries at a provider to a share of its recent requests, so that retries cannot overload it. Pure."""

from __future__ import annotations

from typing import Final

from svc.gateway.routing.sliding_window import SlidingWindow

RETRY_WINDOW_SECONDS: Final = 10.0
MIN_RETRIES_PER_WINDOW: Final = 10
"""Retries in the window that are always allowed."""
REQUESTS_COLUMN: Final = 0
RETRIES_COLUMN: Final = 1


class RetryBudget:
    """The retry budget of one provider. Times are loop times."""

    __slots__ = ("_window", "max_retry_share")

    def __init__(self, max_retry_share: float) -> None:
        self.max_retry_share = max_retry_share
        self._window = SlidingWindow(RETRY_WINDOW_SECONDS, 2)

    def record_request(self, now: float) -> None:
        """Record the first attempt of a request at the provider."""
        self._window.add(now, REQUESTS_COLUMN)

    def acquire_retry(self, now: float) -> bool:
        """Return whether a retry is allowed, and count it if so."""
        requests, retries = self._window.sums(now)
        if retries >= max(MIN_RETRIES_PER_WINDOW, self.max_retry_share * requests):
            return False
        self._window.add(now, RETRIES_COLUMN)
        return True
