"""Tries of which a second one may run beside the first, when that has not said a byte for a while (`hedge_after`).

one ── no first byte for a while ──> two ── the first byte of either ──> one      (the loser is let go of)
                                      └── one of them has failed ──────> one      (the other goes on alone)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svc.dialects.base import Dialect, Head
from svc.errors import SvcError
from svc.gateway.attempt import Attempt
from svc.gateway.failures import Failure, Then
from svc.gateway.offers import Offer
from svc.gateway.tries import Tries, TriesOwner

if TYPE_CHECKING:
    from svc.gateway.plane import Plane


class HedgedTries(Tries):
    """`attempt` is the first of the two until the other, its rival, has won or is the only one left."""

    __slots__ = ("_hedge", "_rival", "_rival_dropped", "_rival_index")

    def __init__(
        self, owner: TriesOwner, plane: Plane, dialect: Dialect, head: Head, raw: bytes, chain: tuple[Offer, ...]
    ) -> None:
        super().__init__(owner, plane, dialect, head, raw, chain)
        self._hedge: asyncio.TimerHandle | None = None
        self._rival: Attempt | None = None
        self._rival_index = 0
        self._rival_dropped: tuple[str, ...] = ()

    def start(self, now: float) -> None:
        super().start(now)
        if self._index + 1 < len(self._chain):
            plane = self._plane
            self._hedge = plane.loop.call_later(plane.bounds.hedge_after, self._second)

    def end(self) -> None:
        self._cancel_hedge()
        rival, self._rival = self._rival, None
        if rival is not None and not rival.over:
            rival.cancel()
            self._count(rival, "cancelled")
            self._plane.steering.forgotten(rival.offer)
        super().end()

    def abandoned(self) -> None:
        """The client leaves: neither of two has lost, so that the second costs what the first does."""
        if self._rival is not None:
            self.losses = (self._part(self._rival, self._rival.usage),)

    def _go_on(self, attempt: Attempt, failure: Failure) -> None:
        if self._rival is None or self._stopped is not None or not self._outlived(self._rival, attempt, failure):
            super()._go_on(attempt, failure)

    def _cancel_hedge(self) -> None:
        if self._hedge is not None:
            self._hedge.cancel()
            self._hedge = None

    def _second(self) -> None:
        """No first byte for a while: the next target is tried beside the first."""
        self._hedge = None
        if self._won or self.attempt is None or self.attempt.over:
            return
        index = self._after(self._index)
        if index < 0:
            return
        try:
            built = self._build(self._chain[index])
        except SvcError:  # this dialect cannot say it: there is no hedge, and no harm
            return
        first = self.offer
        self._round = 0
        self._rival = self._launch(self._chain[index], built, self._plane.now())
        self._rival_index, self._rival_dropped = index, built.dropped
        self.offer = first

    def _outlived(self, rival: Attempt, failed: Attempt, failure: Failure) -> bool:
        """One of two has failed, and is not tried again; whether the other goes on alone."""
        if failed is rival:  # the first target has the word, even on whether the request is a good one
            self._chain = self._chain[: self._rival_index] + self._chain[self._rival_index + 1 :]
        elif failure.then is Then.NOWHERE:
            return False
        else:
            self._follow(rival)
            self._round = 1
        self._rival = None
        self._plane.steering.failed(failed.offer, failure, self._plane.now())
        return True

    def _follow(self, rival: Attempt) -> None:
        self.attempt, self._index = rival, self._rival_index
        self.offer, self.dropped = rival.offer, self._rival_dropped

    def _settle(self, winner: Attempt, now: float) -> None:
        super()._settle(winner, now)
        self._cancel_hedge()
        rival, self._rival = self._rival, None
        if rival is None:
            return
        loser = self.attempt if winner is rival else rival
        if winner is rival:
            self._follow(rival)
        if loser is not None and not loser.over:
            self._let_go(loser)

    def _let_go(self, loser: Attempt) -> None:
        """It costs what it has said by now, and silence costs nothing."""
        loser.cancel()
        self._count(loser, "cancelled")
        if loser.received and (part := self._part(loser, loser.usage)).usage.completion_tokens:
            self.losses = (part,)
        plane, now = self._plane, self._plane.now()
        plane.steering.outrun(loser.offer, now - loser.sent, now, stream=self._head.stream)
