"""The response headers with the remaining rate limits of providers."""

from __future__ import annotations

from typing import Final

RATE_LIMIT_HEADERS: Final = tuple(
    (remaining.encode(), limit.encode())
    for unit in ("requests", "tokens")
    for remaining, limit in (
        (f"x-ratelimit-remaining-{unit}", f"x-ratelimit-limit-{unit}"),
        (f"anthropic-ratelimit-{unit}-remaining", f"anthropic-ratelimit-{unit}-limit"),
    )
)
"""Pairs of header names: the remaining amount, and the limit."""
