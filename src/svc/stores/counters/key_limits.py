"""The limits of a key and the constants that all counters share. On the hot path."""

from __future__ import annotations

from typing import Final

COUNTER_WINDOW_SECONDS: Final = 61
"""One-second buckets of a window. 61 buckets contain any interval of 60 seconds."""
PERIOD_CODES: Final = {"day": 1, "month": 2, "total": 3}


class KeyLimits:
    """The limits of a key. 0 means no limit. `period_start` is in Unix seconds. Immutable, and equal only to itself.

    The own limits of an ephemeral key have the id of its parent, and its period starts when it was issued.
    """

    def __init__(
        self,
        key_id: str,
        *,
        requests: int = 0,
        tokens: int = 0,
        concurrency: int = 0,
        budget_nano_usd: int = 0,
        period: str = "total",
        period_start: int = 0,
        parent_id: str = "",
    ) -> None:
        self.key_id: Final = key_id
        self.requests: Final = requests
        self.tokens: Final = tokens
        self.concurrency: Final = concurrency
        self.budget_nano_usd: Final = budget_nano_usd
        self.period: Final = period
        self.period_start: Final = period_start
        self.parent_id: Final = parent_id
