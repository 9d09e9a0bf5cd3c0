"""What a key may use: requests and tokens in any minute, requests at the same time, money in a day, a month or ever.

    admit ─ reserves a request, the prompt's estimate and the longest possible answers, and their price ─> Lease
    Lease.settle ─ the real usage takes the reservation's place

With Redis the question goes there first; the counters of this machine count along, and decide alone while it is down.
A request that no limit can ever let through is the client's fault (400); any other is told to come back (429).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from svc.dialects.base import Head
from svc.errors import RateLimited, SvcError
from svc.gateway.estimate import prompt_tokens
from svc.gateway.offers import Offer
from svc.gateway.pricing import Prices, cost_of
from svc.gateway.refusals import NANO, WORDS, check_alone, check_end, refusal, shown
from svc.settings import LimitSettings
from svc.stores.aside import Aside
from svc.stores.base import Database, StoreDown, midnight
from svc.stores.counting import BUCKETS, Denied, Limits, Use
from svc.stores.redis_counters import FROM_NOTHING, Held, RedisCounters, Unsaid
from svc.stores.shared import SharedCounters, Taken
from svc.wire.key import Key
from svc.wire.usage import Usage

log = logging.getLogger("svc.limits")

ASSUMED_ANSWER: Final = 1024
"""Tokens reserved for an answer whose length nobody limits: neither the request nor the model's settings."""
BOOKS_SECONDS: Final = 2.0
"""So long it waits for the database, to hear what the key has spent."""
SILENT_SECONDS: Final = 1.0
"""A database that did not answer is not asked again for so long."""
MAX_KNOWN: Final = 10_000
DAY: Final = 86_400


class Lease:
    """A reservation that is held while a request runs. `headers` are lines, each with its CRLF."""

    __slots__ = ("_counters", "_taken", "headers")

    def __init__(self, counters: SharedCounters, taken: Taken, headers: str) -> None:
        self._counters = counters
        self._taken: Taken | None = taken
        self.headers = headers

    def settle(self, tokens: int, usd: float) -> None:
        """Ends it with what was used; twice is the same as once."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self._counters.settle(taken, tokens, round(usd * NANO))


class SharedLease(Lease):
    """One that Redis has to know of too; `held` is None when it was taken without Redis."""

    __slots__ = ("_held", "_key_id", "_shared")

    def __init__(
        self,
        counters: SharedCounters,
        taken: Taken,
        headers: str,
        shared: RedisCounters,
        key_id: str,
        held: Held | None = None,
    ) -> None:
        super().__init__(counters, taken, headers)
        self._shared = shared
        self._key_id = key_id
        self._held = held

    def settle(self, tokens: int, usd: float) -> None:
        if self._taken is not None and self._held is not None:
            self._shared.settle(self._held, tokens, round(usd * NANO))
        elif self._taken is not None:
            self._shared.spend(self._key_id, round(usd * NANO))
        super().settle(tokens, usd)


Then = Callable[[Lease | SvcError], None]


class _Asked:
    """A request that cannot be let through, or refused, at once."""

    __slots__ = ("key", "limits", "nanos", "then", "tokens")

    def __init__(self, key: Key, limits: Limits, tokens: int, nanos: int, then: Then) -> None:
        self.key = key
        self.limits = limits
        self.tokens = tokens
        self.nanos = nanos
        self.then = then


class _Known:
    """A key's limits, as they hold `until` the day ends."""

    __slots__ = ("key", "limits", "until")

    def __init__(self, key: Key, limits: Limits, until: float) -> None:
        self.key = key
        self.limits = limits
        self.until = until


def _longest(chain: tuple[Offer, ...]) -> int:
    """Tokens of the longest answer that any of them gives; 0 if that is known of none."""
    most = 0
    for offer in chain:
        most = max(most, offer.target.max_output_tokens or 0)
    return most


def _guessed(prompt: int, whole: int, limit: int) -> int:
    """What is reserved for a prompt, and for an answer of unknown length: of the limit, a tenth at most for the answer.

    So a key with a small limit can send one request after the other, and the guess alone refuses none for good.
    """
    return max(prompt, min(whole, prompt + limit // 10, limit))


class Gate:
    """Lets requests through, or not. Belongs to one event loop."""

    def __init__(
        self,
        settings: LimitSettings,
        counters: SharedCounters,
        prices: Prices,
        books: Aside,
        shared: RedisCounters | None = None,
    ) -> None:
        self._rpm: int = settings.rpm
        self._tpm: int = settings.tpm
        """For keys that carry none of their own."""
        self._known: dict[str, _Known] = {}
        self._counters = counters
        self._prices = prices
        self._books = books
        self._shared = shared
        self._silent_until = 0.0
        """Of the database: monotonic time."""
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, settings: LimitSettings) -> None:
        """Other limits for keys that carry none of their own."""
        self._rpm, self._tpm = settings.rpm, settings.tpm
        self._known.clear()

    async def use(self, wanted: Iterable[Limits]) -> list[Use]:
        """What counts against these now: over all machines, or on this one while Redis is down."""
        wanted = list(wanted)
        if self._shared is not None and not self._shared.down:
            try:
                return list(await asyncio.gather(*[self._shared.use(limits) for limits in wanted]))
            except StoreDown:
                log.info("the use of limits is told by this machine alone")
        return [self._counters.use(limits) for limits in wanted]

    def limited(self, key: Key) -> bool:
        """Whether there is anything to count for the key."""
        own = key.rpm or key.tpm or key.concurrency or key.budget_usd is not None
        return bool(own or self._rpm or self._tpm)

    def admit(self, key: Key, head: Head, raw: bytes, chain: tuple[Offer, ...], then: Then) -> None:
        """Calls `then` with a lease, or with the error: at once where memory knows all, else when others have said."""
        limits = self._limits(key)
        budget: int = limits.budget
        tokens = nanos = 0
        if limits.tokens or budget:
            prompt = prompt_tokens(raw, head.outline)
            check_end(head)
            longest = head.answers * max(head.max_tokens or _longest(chain), head.least_reserved)
            usage = Usage(prompt, longest or head.answers * ASSUMED_ANSWER)
            tokens = prompt + usage.completion_tokens if limits.tokens else 0
            nanos = self._dearest(chain, usage) if budget else 0
            if not longest:
                tokens = _guessed(prompt, tokens, limits.tokens)
                nanos = _guessed(self._dearest(chain, Usage(prompt)), nanos, budget) if budget else 0
        check_alone(limits, tokens, nanos)
        unsaid = budget and self._counters.needs_spent(limits)
        if self._shared is None and not unsaid:
            then(self._take(key, limits, tokens, nanos))
            return
        asked = _Asked(key, limits, tokens, nanos, then)
        if unsaid:
            self._spawn(self._ask(asked))
        else:
            self._go_on(asked, None)

    def counts(self, key: Key) -> bool:
        """Whether the requests of the key are limited."""
        return bool(key.rpm or self._rpm)

    def count(self, key: Key, then: Then) -> None:
        """Like `admit`, for a request that reaches for no model: only `rpm` counts it."""
        self._go_on(_Asked(key, Limits(key_id=key.id, requests=key.rpm or self._rpm), 0, 0, then), None)

    def check(self, key: Key) -> None:
        """Raises RateLimited if the key has no request left, as far as this machine knows. Counts nothing."""
        limits = self._limits(key)
        if limits.requests and self._counters.use(limits).requests >= limits.requests:
            raise RateLimited(WORDS["rpm"].format(limits.requests), limit="rpm")

    def admit_free(self, key: Key, then: Then) -> None:
        """Like `admit`, for what costs neither tokens nor money: requests count, and those at the same time."""
        limits = Limits(key_id=key.id, requests=key.rpm or self._rpm, concurrency=key.concurrency)
        self._go_on(_Asked(key, limits, 0, 0, then), None)

    def _limits(self, key: Key) -> Limits:
        known = self._known.get(key.id)
        if known is not None and known.key is key and time.time() < known.until:
            return known.limits
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        budget = 0 if key.budget_usd is None else max(1, round(key.budget_usd * NANO))
        limits = Limits(
            key_id=key.id,
            requests=key.rpm or self._rpm,
            tokens=key.tpm or self._tpm,
            concurrency=key.concurrency,
            budget=budget,
            period=key.budget_period,
            start=int(midnight(key.budget_period)) if budget else 0,
        )
        self._known[key.id] = _Known(key, limits, midnight("day") + DAY)
        return limits

    def _dearest(self, chain: tuple[Offer, ...], usage: Usage) -> int:
        """What it may cost at the dearest target that may answer; one whose price is not known counts nothing."""
        most = 0.0
        for offer in chain:
            price = self._prices.of(offer.provider_name, offer.model_id)
            if price is not None:
                most = max(most, cost_of(price, usage))
        return round(most * NANO)

    def _take(self, key: Key, limits: Limits, tokens: int, nanos: int) -> Lease | SvcError:
        """By what this machine knows."""
        got = self._counters.take(limits, tokens, nanos)
        if isinstance(got, Denied):
            return refusal(limits, got)
        lines = shown(limits, got.requests_left, got.tokens_left, got.reset, got.reset)
        if self._shared is not None:
            return SharedLease(self._counters, got, lines, self._shared, key.id)
        return Lease(self._counters, got, lines)

    # with others

    def _go_on(self, asked: _Asked, spent: int | None) -> None:
        """`spent` is what the database has said of the key, if it was asked."""
        shared = self._shared
        if shared is None:
            asked.then(self._take(asked.key, asked.limits, asked.tokens, asked.nanos))
        else:
            shared.take(asked.limits, asked.tokens, asked.nanos, spent, lambda got: self._told(shared, asked, got))

    def _told(self, shared: RedisCounters, asked: _Asked, got: Held | Denied | Unsaid | StoreDown) -> None:
        """By Redis."""
        if isinstance(got, Held):
            asked.then(self._count_along(shared, asked, got))
        elif isinstance(got, Denied):
            asked.then(refusal(asked.limits, got))
        elif isinstance(got, Unsaid):
            self._spawn(self._ask(asked))
        else:
            asked.then(self._take(asked.key, asked.limits, asked.tokens, asked.nanos))

    def _count_along(self, shared: RedisCounters, asked: _Asked, held: Held) -> Lease | SvcError:
        """Redis lets it through. Of the minute before it came (back) it knows nothing: until then both decide."""
        limits = asked.limits
        taken = self._counters.take(limits, asked.tokens, asked.nanos, forced=shared.age > BUCKETS)
        if isinstance(taken, Denied):
            shared.settle(held, 0, 0)
            return refusal(limits, taken)
        lines = shown(limits, held.requests_left, held.tokens_left, held.reset, held.reset)
        return SharedLease(self._counters, taken, lines, shared, asked.key.id, held)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, asked: _Asked) -> None:
        """Nobody here has said what the key has spent already."""
        limits = asked.limits
        spent = await self._spent(limits)
        if spent != FROM_NOTHING:
            self._counters.begin(limits, spent)
            spent = max(spent, self._counters.spent(limits))  # the last entries are not in the database yet
        self._go_on(asked, spent)

    async def _spent(self, limits: Limits) -> int:
        """Nano-USD by the database; FROM_NOTHING until it answers."""

        def question(database: Database) -> float:
            if time.monotonic() < self._silent_until:  # it did not answer those who were before
                raise StoreDown("The database did not answer a moment ago.")
            return database.spent({limits.key_id: float(limits.start)})[limits.key_id]

        try:
            return round(await asyncio.wait_for(self._books.ask(question), BOOKS_SECONDS) * NANO)
        except (StoreDown, TimeoutError) as error:
            if time.monotonic() >= self._silent_until:
                log.warning("the budget of key %s is counted from 0: %s", limits.key_id, error or "no answer in time")
            self._silent_until = time.monotonic() + SILENT_SECONDS
            return FROM_NOTHING

    def start(self) -> None:
        if self._shared is not None:
            self._shared.start()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._shared is not None:
            await self._shared.close()
        self._counters.close()
