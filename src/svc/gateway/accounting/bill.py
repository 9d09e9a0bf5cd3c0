"""The usage and cost of a response, including parts from other backends. Pure."""

from __future__ import annotations

from typing import Final

from svc.gateway.routing.backends import Backend
from svc.wire.usage import TokenUsage


class PartialUsage:
    """Usage of an attempt before its stream was interrupted. `is_estimated`: the provider reported no usage."""

    __slots__ = ("backend", "is_estimated", "usage")

    def __init__(self, backend: Backend, usage: TokenUsage, is_estimated: bool) -> None:
        self.backend = backend
        self.usage = usage
        self.is_estimated = is_estimated


class Bill:
    """Usage and cost. `usage` is None if it is unknown, `cost_usd` is None if the price is unknown."""

    __slots__ = ("cost_usd", "is_estimated", "usage")

    def __init__(self, usage: TokenUsage | None, cost_usd: float | None, is_estimated: bool = False) -> None:
        self.usage = usage
        self.cost_usd = cost_usd
        self.is_estimated = is_estimated

    def add(self, other: Bill) -> Bill:
        """Return the sum of two bills. The cost is known if both costs are."""
        if self.usage is None or other.usage is None:
            return self if other.usage is None else other
        cost_usd = None if self.cost_usd is None or other.cost_usd is None else round(self.cost_usd + other.cost_usd, 9)
        return Bill(self.usage.add(other.usage), cost_usd, self.is_estimated or other.is_estimated)


EMPTY_BILL: Final = Bill(None, None)
ZERO_BILL: Final = Bill(TokenUsage(), 0.0)
"""The bill for a cached response."""
