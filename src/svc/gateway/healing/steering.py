"""Which target a request goes to next, by what is known of all of them. No sockets; times are loop times.

A target is passed over while its breaker is open, while it rests (a 429 with a long `retry-after`), and for a prompt
that it has no room for. When that leaves none, a target that is not dead is tried all the same: the provider has the
last word about its limits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from svc.dialects.base import Head
from svc.errors import ProviderFailed, RateLimited
from svc.gateway.failures import WAITABLE, Failure, Then
from svc.gateway.healing.accounts import FRESH, choose, share_left
from svc.gateway.healing.breaker import Breaker, State
from svc.gateway.healing.budget import Budget
from svc.gateway.healing.fits import fits
from svc.gateway.offers import EMBEDDED, Offer
from svc.settings import RoutingSettings

log = logging.getLogger("svc.gateway")

LONGEST_REST: Final = 120.0
"""Seconds; a longer `retry-after` is tried again after so long."""


class Health:
    """Of one target. `budget` is its provider's."""

    __slots__ = ("breaker", "budget", "embedded", "left", "left_at", "name", "rest_until")

    def __init__(self, name: str, breaker: Breaker, budget: Budget, *, embedded: bool) -> None:
        self.name = name
        self.embedded = embedded
        """On this machine: when it is slow, or late, it is busy, and no other place would be faster."""
        self.breaker = breaker
        self.budget = budget
        self.rest_until = 0.0
        self.left = 1.0
        """The share of its rate limits that it had at `left_at`."""
        self.left_at = 0.0

    def renew(self, breaker: Breaker) -> None:
        """It is reached at another address, or with another key."""
        self.breaker, self.rest_until, self.left, self.left_at = breaker, 0.0, 1.0, 0.0


def _place(offer: Offer) -> tuple[str, str, int]:
    return offer.provider_name, offer.model_id, offer.account


class Steering:
    """The health of every target that has been used."""

    def __init__(self, routing: RoutingSettings) -> None:
        self._routing = routing
        self._known: dict[Offer, Health] = {}
        self._last: Offer | None = None
        """Of which was asked last, and what was answered."""
        self._lasts: Health
        self._targets: dict[tuple[str, str, int], Health] = {}
        self._budgets: dict[str, Budget] = {}
        self._named: dict[str, Health] = {}
        self.tell: Callable[[Health], None] | None = None
        """Gets every breaker that opens or closes here."""

    def configure(self, routing: RoutingSettings, offers: Iterable[Offer]) -> None:
        """Other settings, and other offers: what is known of a target stays, unless its address or key is another."""
        self._routing = routing
        heads = {_place(offer): offer.head for offer in self._known}
        self._known = {offer: health for offer, health in self._known.items() if health.embedded}
        self._last = None
        for budget in self._budgets.values():
            budget.share = routing.retry_share
        for health in self._targets.values():
            if not health.embedded:
                health.breaker.slow_after = float(routing.slow_after)
        for offer in offers:
            for one in offer.accounts or (offer,):
                place = _place(one)
                used = self._targets.get(place)
                if used is None:
                    continue
                if heads.get(place, one.head) != one.head:
                    used.renew(Breaker(slow_after=routing.slow_after))
                self._known[one] = used  # for the next reload, which may come before a request

    def of(self, offer: Offer) -> Health:
        """The health of a target; it outlives the offer, which a provider that moves replaces."""
        if offer is self._last:  # a request asks several times for one
            return self._lasts
        found = self._known.get(offer) or self._add(offer)
        self._last, self._lasts = offer, found
        return found

    def states(self) -> dict[str, State]:
        """Of the breakers, by `provider/model`."""
        return {health.name: health.breaker.state for health in self._targets.values()}

    def first(self, chain: Sequence[Offer], raw: bytes, head: Head, now: float) -> int:
        """Where in the chain a request begins; raises ProviderFailed when every target is dead."""
        found = self.next(chain, 0, raw, head, now)
        if found >= 0:
            return found
        for index, offer in enumerate(chain):
            breakers = [self.of(one).breaker for one in offer.accounts or (offer,)]
            if any(breaker.state == "closed" or breaker.soft for breaker in breakers):
                return index
        raise ProviderFailed("The provider is out of order; it will be tried again in a few seconds.")

    def next(self, chain: Sequence[Offer], start: int, raw: bytes, head: Head, now: float) -> int:
        """The first target from `start` on that may be tried, or -1."""
        for index in range(start, len(chain)):
            offer = chain[index]
            if offer.accounts:
                if fits(offer, raw, head) and any(self._might(one, now) for one in offer.accounts):
                    return index
                continue
            health = self.of(offer)
            if health.rest_until <= now and fits(offer, raw, head) and self._admits(health, now):
                return index
        return -1

    def account(self, offer: Offer, used: Container[Offer], now: float) -> Offer:
        """Of a target with several accounts, the one to ask; not one of `used`, if there is a choice."""
        fresh = [one for one in offer.accounts if one not in used] or list(offer.accounts)
        well = [one for one in fresh if self._might(one, now)] or fresh
        states = [self.of(one) for one in well]
        left = [state.left if now - state.left_at < FRESH else 1.0 for state in states]
        chosen = choose([one.provider.weight for one in well], left)
        self._admits(states[chosen], now)
        return well[chosen]

    def told(self, offer: Offer, headers: Mapping[bytes, bytes], now: float) -> None:
        """An account's answer says what is left of its limits."""
        share = share_left(headers)
        if share is not None:
            health = self.of(offer)
            health.left, health.left_at = share, now

    def _might(self, offer: Offer, now: float) -> bool:
        health = self.of(offer)
        return health.rest_until <= now and health.breaker.might(now)

    def asked(self, offer: Offer, now: float) -> None:
        """A request goes to a target for the first time."""
        self.of(offer).budget.asked(now)

    def another(self, offer: Offer, used: Container[Offer], now: float) -> bool:
        """Whether a target has an account that is well, and not one of `used`."""
        return any(one not in used and self._might(one, now) for one in offer.accounts)

    def may_retry(self, offer: Offer, now: float) -> bool:
        """Whether a target may be asked once more (a probe may not); counts as a retry if so."""
        health = self.of(offer)
        return health.breaker.state != "half-open" and health.budget.take(now)

    def answered(self, offer: Offer, seconds: float, now: float, *, stream: bool) -> None:
        """The first byte came after so many seconds."""
        if self._routing.breaker:
            health = self.of(offer)
            before = health.breaker.state
            health.breaker.answered(now, seconds, stream=stream)
            if health.breaker.state != before:
                self._changed(health, before)

    def outrun(self, offer: Offer, seconds: float, now: float, *, stream: bool) -> None:
        """Another target, which was asked as well, has answered first."""
        if self._routing.breaker:
            health = self.of(offer)
            before = health.breaker.state
            health.breaker.outrun(now, seconds, stream=stream)
            if health.breaker.state != before:
                self._changed(health, before)

    def failed(self, offer: Offer, failure: Failure, now: float, *, counted: bool = False) -> None:
        """The request fails at this target, its retries included; `counted`: it had been answered, and broke."""
        health = self.of(offer)
        if isinstance(failure.error, RateLimited):
            if (failure.retry_after or 0.0) > WAITABLE:
                health.rest_until = now + min(LONGEST_REST, failure.retry_after or 0.0)
            health.breaker.forgotten()
        elif failure.then is Then.NOWHERE or (health.embedded and failure.then is Then.NEXT):
            health.breaker.forgotten()  # the request was at fault, or this machine is busy: the target is well
        elif self._routing.breaker:
            before = health.breaker.state
            health.breaker.failed(now, counted=counted, silent=failure.silent)
            if health.breaker.state != before:
                self._changed(health, before)

    def forgotten(self, offer: Offer) -> None:
        """An attempt was let go of: nothing can be said."""
        self.of(offer).breaker.forgotten()

    def _admits(self, health: Health, now: float) -> bool:
        return health.breaker.state == "closed" or health.breaker.admits(now)

    def _changed(self, health: Health, before: State) -> None:
        log.warning("breaker of %s: %s -> %s", health.name, before, health.breaker.state)
        if self.tell is not None and not health.embedded:
            self.tell(health)

    def follow(self, name: str, now: float, rest: float, *, slow: bool, soft: bool) -> None:
        """Another process has found a target failing, and leaves it alone for so many seconds more."""
        health = self._named.get(name)
        if health is None or health.embedded or not self._routing.breaker:
            return
        if health.breaker.follow(now, rest, slow=slow, soft=soft):
            log.warning("breaker of %s: open, as another process has found", name)

    def _add(self, offer: Offer) -> Health:
        provider, place = offer.provider_name, _place(offer)
        health = self._targets.get(place)
        if health is not None and health.embedded:  # a new offer is a new process: what the last one did is over
            health.breaker = Breaker(slow_after=math.inf)
        if health is None:
            budget = self._budgets.setdefault(provider, Budget(self._routing.retry_share))
            embedded = provider == EMBEDDED
            breaker = Breaker(slow_after=math.inf if embedded else self._routing.slow_after)
            name = f"{provider}/{offer.model_id}" + (f"#{offer.account}" if offer.account else "")
            health = self._targets[place] = self._named[name] = Health(name, breaker, budget, embedded=embedded)
        self._known[offer] = health
        return health
