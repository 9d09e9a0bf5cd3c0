"""What is owed for an answer, and for the parts that other targets have said of it. Pure."""

from __future__ import annotations

import msgspec

from svc.gateway.providers import Offer
from svc.wire.chat import Usage


class Part(msgspec.Struct, frozen=True):
    """What a target said of a stream before it broke; `guessed`: the provider did not come to say the tokens."""

    offer: Offer
    usage: Usage
    guessed: bool


class Bill(msgspec.Struct, frozen=True):
    """`usage` is None when nothing is known, `usd` when no price is."""

    usage: Usage | None
    usd: float | None
    guessed: bool = False

    def plus(self, other: Bill) -> Bill:
        """Both together; the price is known if both prices are."""
        if self.usage is None or other.usage is None:
            return self if other.usage is None else other
        usage = Usage(*(a + b for a, b in zip(_numbers(self.usage), _numbers(other.usage), strict=True)))
        usd = None if self.usd is None or other.usd is None else round(self.usd + other.usd, 9)
        return Bill(usage, usd, self.guessed or other.guessed)


NOTHING = Bill(None, None)
FREE = Bill(Usage(), 0.0)
"""An answer from the cache."""


def _numbers(usage: Usage) -> tuple[int, ...]:
    return msgspec.structs.astuple(usage)
