"""Selects one of a provider's accounts (keys, addresses) by weight and by the remaining share of its rate limits. Pure.

The rate limit headers of the last response determine the remaining share, from 0 to 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from svc.dialects.rate_limit_headers import RATE_LIMIT_HEADERS

RATE_LIMIT_WINDOW_SECONDS: Final = 60.0
"""Seconds after which a remaining share is outdated: these limits are per minute."""
MAX_NUMBER_DIGITS: Final = 15
"""Digits of the largest number that is accepted from a header."""
MIN_ACCOUNT_SHARE: Final = 0.01
"""The minimum share of an account. An account without remaining requests may have recovered since its response."""


def remaining_share(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the smallest remaining share of the rate limits in response headers, or None if they have none."""
    shares = [
        min(1.0, max(0.0, int(remaining) / int(limit)))
        for remaining, limit in [
            (headers.get(remaining, b""), headers.get(limit, b"")) for remaining, limit in RATE_LIMIT_HEADERS
        ]
        if remaining.isdigit() and limit.isdigit() and len(remaining) <= MAX_NUMBER_DIGITS >= len(limit) and int(limit)
    ]
    return min(shares, default=None)


def choose_account(weights: Sequence[float], remaining_shares: Sequence[float]) -> int:
    """Return a random index, in proportion to weight times remaining share."""
    probabilities = [
        weight * max(MIN_ACCOUNT_SHARE, share) for weight, share in zip(weights, remaining_shares, strict=True)
    ]
    return random.choices(range(len(probabilities)), probabilities)[0]  # noqa: S311
