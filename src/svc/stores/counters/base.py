"""The types that all counters of rate limits and budgets share. No implementation.

InProcessCounters (`in_process`) count for one process, SharedCounters (`shared_memory`) for the workers of one machine,
and RedisCounters (`redis`) for several machines. tests/contracts/test_counters.py tests all of them.
"""

from __future__ import annotations

import msgspec


class LimitUsage(msgspec.Struct, frozen=True):
    """The current usage of a key: the last minute, and the requests in flight."""

    requests: int = 0
    tokens: int = 0
    running: int = 0
    spent_nano_usd: int | None = None
    """Spent in the key's budget period. None if the sum is not yet loaded."""
    reserved_nano_usd: int = 0
    """Reserved for requests in flight."""


class LimitExceeded(msgspec.Struct, frozen=True):
    """The limit that is reached (`rpm`, `tpm`, `concurrency` or `budget`). Times are in seconds.

    `retry_after` is infinite if the budget suffices only in its next period.
    `requests_reset` and `tokens_reset` are the times until the full limit is available without further requests.
    """

    limit: str
    retry_after: float
    requests_left: int
    tokens_left: int
    requests_reset: float = 0.0
    tokens_reset: float = 0.0
    usage: LimitUsage = LimitUsage()
    """The usage of the key before the rejected request."""
