"""What is owed for an answer, and for the parts that other targets have said of it. Pure."""

from __future__ import annotations

from typing import Final

from svc.gateway.offers import Offer
from svc.wire.usage import Usage


class Part:
    """What a target said of a stream before it broke; `guessed`: the provider did not come to say the tokens."""

    __slots__ = ("guessed", "offer", "usage")

    def __init__(self, offer: Offer, usage: Usage, guessed: bool) -> None:
        self.offer = offer
        self.usage = usage
        self.guessed = guessed


class Bill:
    """`usage` is None when nothing is known, `usd` when no price is."""

    __slots__ = ("guessed", "usage", "usd")

    def __init__(self, usage: Usage | None, usd: float | None, guessed: bool = False) -> None:
        self.usage = usage
        self.usd = usd
        self.guessed = guessed

    def plus(self, other: Bill) -> Bill:
        """Both together; the price is known if both prices are."""
        if self.usage is None or other.usage is None:
            return self if other.usage is None else other
        usd = None if self.usd is None or other.usd is None else round(self.usd + other.usd, 9)
        return Bill(self.usage.plus(other.usage), usd, self.guessed or other.guessed)


NOTHING: Final = Bill(None, None)
FREE: Final = Bill(Usage(), 0.0)
"""An answer from the cache."""
