"""The types of RedisCounters (`redis`), and the names of its keys. No implementation. On the hot path."""

from __future__ import annotations

from typing import Final

from svc.stores.counters.base import LimitExceeded

MAX_AMOUNT: Final = 2**53
"""Maximum tokens and nano-USD of a request. Larger numbers of Lua are not exact."""


class RedisReservation:
    """A reservation in Redis, to be committed once, with the requests and tokens that remained after it. Immutable."""

    def __init__(
        self,
        *,
        key_id: str,
        process: str,
        second: int,
        created: int,
        tokens: int,
        nano_usd: int,
        has_budget: bool,
        requests_left: int,
        tokens_left: int,
        reset_seconds: float,
        has_full_window: bool,
    ) -> None:
        self.key_id: Final = key_id
        self.process: Final = process
        self.second: Final = second
        self.created: Final = created
        """The microsecond in which the key's hash was created, which identifies it."""
        self.tokens: Final = tokens
        self.nano_usd: Final = nano_usd
        self.has_budget: Final = has_budget
        self.requests_left: Final = requests_left
        self.tokens_left: Final = tokens_left
        self.reset_seconds: Final = reset_seconds
        """Seconds until this request leaves the window."""
        self.has_full_window: Final = has_full_window
        """False if Redis may lack counts of the last minute: after a connect, or because the key's hash is younger."""


class CachedRejection:
    """A rejection that Redis sent at `created_at` (monotonic seconds), under `request_limit`. Immutable."""

    def __init__(self, request_limit: int, created_at: float, rejection: LimitExceeded) -> None:
        self.request_limit: Final = request_limit
        self.created_at: Final = created_at
        self.rejection: Final = rejection


class Spending:
    """Money of a key, with the number under which a process reports it to Redis. Immutable.

    `seed` is the id of the sum that it was spent from.
    """

    def __init__(self, key_id: str, process: str, number: int, nano_usd: int, seed: int) -> None:
        self.key_id: Final = key_id
        self.process: Final = process
        self.number: Final = number
        self.nano_usd: Final = nano_usd
        self.seed: Final = seed


class SpentRequired:
    """The counters do not have the spent sum of the key. The caller must repeat the reservation with it."""


def redis_key(key_id: str) -> str:
    """Return the name of the hash with a key's counters."""
    return f"svc:key:{key_id}"
