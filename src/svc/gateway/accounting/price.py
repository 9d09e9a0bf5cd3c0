"""What a model's tokens cost. Data only; who knows the prices, and multiplies, is `pricing`."""

from __future__ import annotations

import msgspec


class Price(msgspec.Struct, frozen=True):
    """USD per million tokens. `tiers`: prices that hold for all tokens once the prompt is longer, shortest first."""

    input: float
    output: float
    cached: float | None = None
    """Read from the provider's cache; None is as any other input."""
    written: float | None = None
    """Written to the provider's cache."""
    tiers: tuple[tuple[int, Price], ...] = ()
