"""The counters of one machine, as the rate limiter uses them: of one process, or of several workers."""

from __future__ import annotations

import math

from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import KeyLimits


class LocalReservation:
    """A reservation, to be committed once, with the requests and tokens that remained after it."""

    __slots__ = ("nano_usd", "requests_left", "reset_seconds", "second", "tokens", "tokens_left")

    def __init__(
        self, second: int, tokens: int, nano_usd: int, requests_left: int, tokens_left: int, reset_seconds: float
    ) -> None:
        self.second = second
        self.tokens = tokens
        self.nano_usd = nano_usd
        self.requests_left = requests_left
        self.tokens_left = tokens_left
        self.reset_seconds = reset_seconds
        """Seconds until this request leaves the window."""


class LocalCounters:
    """Counts for each key what the last minute, the requests in flight and its budget period used."""

    __slots__ = ()

    def needs_spent(self, limits: KeyLimits) -> bool:
        """Return whether `set_spent` must be called before the budget of the key can be enforced."""
        raise NotImplementedError

    def get_spent_nano_usd(self, limits: KeyLimits) -> int:
        """Return the nano-USD that are recorded as spent in the key's period."""
        raise NotImplementedError

    def set_spent(self, limits: KeyLimits, spent_nano_usd: int) -> None:
        """Set the sum that was spent before, unless it is known, for example because another process has set it."""
        raise NotImplementedError

    def reserve(
        self, limits: KeyLimits, tokens: int, nano_usd: int, *, force: bool = False
    ) -> LocalReservation | LimitExceeded:
        """Reserve one request, tokens and nano-USD. `force` counts the request even if it exceeds a limit.

        A request that another limit than `rpm` rejects counts for `rpm` only. It reserves nothing. A budget whose spent
        sum is unknown counts from 0.
        """
        raise NotImplementedError

    def reserve_if_spent_known(
        self, limits: KeyLimits, tokens: int, nano_usd: int
    ) -> LocalReservation | LimitExceeded | None:
        """Reserve, or return None if `set_spent` must be called before the budget of the key can be enforced."""
        raise NotImplementedError

    def commit(self, reservation: LocalReservation, tokens: int, nano_usd: int) -> None:
        """End a reservation with the actual usage."""
        raise NotImplementedError

    def record_past_request(self, key_id: str, age_seconds: float, tokens: int) -> None:
        """Count a request that an earlier process accepted `age_seconds` ago."""
        raise NotImplementedError

    def get_usage(self, limits: KeyLimits) -> LimitUsage:
        """Return the current usage. It uses no memory for an unknown key."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the counters hold. Without effect for those of one process."""


def seconds_until_budget_suffices(limits: KeyLimits, spent_nano_usd: int, reserved_nano_usd: int, needed: int) -> float:
    """Return 0 if the budget suffices for a request that needs `needed` nano-USD, or when a client can try again.

    That is infinite if only another period helps. Requests in flight may cost less than they reserve.
    """
    needed_nano_usd = spent_nano_usd + max(1, needed)
    if needed_nano_usd > limits.budget_nano_usd:
        return math.inf
    return 1.0 if needed_nano_usd + reserved_nano_usd > limits.budget_nano_usd else 0.0
