"""Which of several accounts (keys, addresses) of a provider a request uses: by weight, and by what each has left. Pure.

What is left is what the provider's last response says: a share from 0 to 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from svc.dialects.rate_limit_headers import RATE_LIMIT_HEADERS

RATE_LIMIT_WINDOW_SECONDS: Final = 60.0
"""Seconds after which what an account had left says nothing any more: these limits are per minute."""
MAX_NUMBER_DIGITS: Final = 15
"""Digits of a number that is believed."""
MIN_ACCOUNT_SHARE: Final = 0.01
"""The share that an account with nothing left still gets: its limit may be back before it says so."""


def remaining_share(headers: Mapping[bytes, bytes]) -> float | None:
    """The smallest share of its limits that an answer says is left; None when it says nothing usable."""
    shares = [
        min(1.0, max(0.0, int(left) / int(limit)))
        for left, limit in [(headers.get(left, b""), headers.get(limit, b"")) for left, limit in RATE_LIMIT_HEADERS]
        if left.isdigit() and limit.isdigit() and len(left) <= MAX_NUMBER_DIGITS >= len(limit) and int(limit)
    ]
    return min(shares, default=None)


def choose_account(weights: Sequence[float], remaining_shares: Sequence[float]) -> int:
    """An index, at random, in proportion to weight times what is left."""
    probabilities = [
        weight * max(MIN_ACCOUNT_SHARE, share) for weight, share in zip(weights, remaining_shares, strict=True)
    ]
    return random.choices(range(len(probabilities)), probabilities)[0]  # noqa: S311
