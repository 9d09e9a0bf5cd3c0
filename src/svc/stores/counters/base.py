"""What is counted of a key, and how reservations end: the words that all counters share. No implementation.

SharedCounters (`shared`) count in memory, for one process or for all workers of a machine; RedisCounters
(`redis_counters`) count for several machines. tests/contracts/test_counters.py holds both to the same.
"""

from __future__ import annotations

import msgspec

COUNTER_WINDOW_SECONDS = 61
"""Buckets of a second in a window: whatever 60 seconds one takes lie within it."""
PERIOD_CODES = {"day": 1, "month": 2, "total": 3}


class KeyLimits(msgspec.Struct, frozen=True):
    """What holds for a key; 0 is no limit. Money in nano-USD; `start` is when its period began (Unix seconds)."""

    key_id: str
    requests: int = 0
    tokens: int = 0
    concurrency: int = 0
    budget_nano_usd: int = 0
    period: str = "total"
    period_start: int = 0


class LimitUsage(msgspec.Struct, frozen=True):
    """What counts against a key's limits now: of the last minute, and what runs. Money in nano-USD."""

    requests: int = 0
    tokens: int = 0
    running: int = 0
    spent_nano_usd: int | None = None
    """In the key's period; None while nobody has said."""
    reserved_nano_usd: int = 0
    """For what runs."""


class LimitExceeded(msgspec.Struct, frozen=True):
    """Which limit is reached (`rpm`, `tpm`, `concurrency`, `budget`), and seconds until it is worth asking.

    `retry_after` is infinite for a budget that suffices no earlier than in its next period.
    `requests_reset` and `tokens_reset`: seconds until all of it is there again, if nothing more is asked for.
    """

    limit: str
    retry_after: float
    requests_left: int
    tokens_left: int
    requests_reset: float = 0.0
    tokens_reset: float = 0.0
