"""What a key may use: requests and tokens in any minute, requests at the same time, money in a day, a month or ever.

    admit ─ reserves a request, the prompt's estimate and the longest possible answer, and their price ─> Lease
    Lease.settle ─ the real usage takes the reservation's place

A request that no limit can ever let through is the client's fault (400); any other is told to come back (429).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping

from svc.dialects.base import Head
from svc.errors import InvalidRequest, RateLimited, SvcError
from svc.gateway.estimate import prompt_tokens
from svc.gateway.pricing import Prices
from svc.gateway.providers import Offer
from svc.security import Key
from svc.settings import LimitSettings
from svc.stores.aside import Aside
from svc.stores.base import StoreDown, midnight
from svc.stores.shared import Denied, Limits, SharedCounters, Taken
from svc.wire.chat import Usage

log = logging.getLogger("svc.limits")

NANO = 1e9
MAX_RETRY = 120.0
_WORDS = {
    "requests": "The limit of {} requests a minute is reached.",
    "tokens": "The limit of {} tokens a minute is reached.",
    "concurrency": "The limit of {} requests at the same time is reached.",
    "budget": "The budget of ${:g} is spent.",
}


class LimitReached(RateLimited):
    """A limit of ours, with what is left of it in the headers. Unlike an upstream's, trying again helps."""

    def __init__(self, message: str, *, retry_after: float, shown: str, limit: str) -> None:
        super().__init__(message, retry_after=min(MAX_RETRY, retry_after))
        self.limit = limit
        self._shown = shown

    @property
    def headers(self) -> Mapping[str, str]:
        lines = (line.partition(": ")[::2] for line in self._shown.split("\r\n") if line)
        return {**super().headers, **dict(lines)}


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


Then = Callable[[Lease | SvcError], None]


class Gate:
    """Lets requests through, or not. Belongs to one event loop."""

    def __init__(self, settings: LimitSettings, counters: SharedCounters, prices: Prices, books: Aside) -> None:
        self._settings = settings
        self._counters = counters
        self._prices = prices
        self._books = books
        self._tasks: set[asyncio.Task[None]] = set()
        self.reached: dict[str, int] = dict.fromkeys(_WORDS, 0)

    def limited(self, key: Key) -> bool:
        """Whether there is anything to count for the key."""
        own = key.rpm or key.tpm or key.concurrency or key.budget_usd is not None
        return bool(own or self._settings.rpm or self._settings.tpm)

    def admit(self, key: Key, head: Head, raw: bytes, chain: tuple[Offer, ...], then: Then) -> None:
        """Calls `then` with a lease, or with the error: usually at once, later when the database has to be asked."""
        budget = 0 if key.budget_usd is None else max(1, round(key.budget_usd * NANO))
        limits = Limits(
            key_id=key.id,
            requests=key.rpm or self._settings.rpm,
            tokens=key.tpm or self._settings.tpm,
            concurrency=key.concurrency,
            budget=budget,
            period=key.budget_period,
            start=int(midnight(key.budget_period)) if budget else 0,
        )
        tokens = nanos = 0
        most = Usage()
        if limits.tokens or budget:
            prompt = prompt_tokens(raw)
            longest = max(head.max_tokens or offer.target.max_output_tokens for offer in chain)
            tokens = prompt + longest if limits.tokens else 0
            most = Usage(prompt_tokens=prompt, completion_tokens=longest)
            nanos = self._dearest(chain, most) if budget else 0
        _check_alone(limits, tokens, nanos)
        if budget and self._counters.needs_spent(limits):
            self._spawn(self._ask(key, limits, tokens, lambda: self._dearest(chain, most), then))
        else:
            then(self._take(key, limits, tokens, nanos))

    def _dearest(self, chain: tuple[Offer, ...], usage: Usage) -> int:
        """What it may cost at the dearest target that may answer; one whose price is not known counts nothing."""
        prices = [self._prices.of(offer.provider.name, offer.model.id) for offer in chain]
        return max((round(price.cost(usage) * NANO) for price in prices if price is not None), default=0)

    def _take(self, key: Key, limits: Limits, tokens: int, nanos: int) -> Lease | SvcError:
        got = self._counters.take(limits, tokens, nanos)
        shown = _shown(limits, got.requests_left, got.tokens_left)
        if isinstance(got, Taken):
            return Lease(self._counters, got, shown)
        self.reached[got.limit] += 1
        return _refusal(key, limits, got, shown)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, key: Key, limits: Limits, tokens: int, price: Callable[[], int], then: Then) -> None:
        """The key's first request here: what has it spent already?"""
        try:
            spent = await self._books.ask(lambda database: database.spent({key.id: float(limits.start)}))
            self._counters.begin(limits, round(spent[key.id] * NANO))
        except StoreDown as error:  # counted from nothing until the database answers
            log.warning("the budget of key %s is counted from 0: %s", key.id, error.message)
        nanos = price()
        try:
            _check_alone(limits, tokens, nanos)
        except InvalidRequest as error:
            then(error)
        else:
            then(self._take(key, limits, tokens, nanos))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._counters.close()


def _shown(limits: Limits, requests: int, tokens: int) -> str:
    lines = ""
    for kind, limit, left in (("requests", limits.requests, requests), ("tokens", limits.tokens, tokens)):
        if limit:
            lines += (
                f"x-ratelimit-limit-{kind}: {limit}\r\nx-ratelimit-remaining-{kind}: {left}\r\n"
                f"x-ratelimit-reset-{kind}: 1m0s\r\n"
            )
    return lines


def _refusal(key: Key, limits: Limits, denied: Denied, shown: str) -> LimitReached:
    limit = {
        "requests": limits.requests,
        "tokens": limits.tokens,
        "concurrency": limits.concurrency,
        "budget": key.budget_usd,
    }[denied.limit]
    message = _WORDS[denied.limit].format(limit)
    if denied.limit == "budget" and limits.period != "total":
        message += f" It begins anew with the next {limits.period} (UTC)."
    return LimitReached(message, retry_after=denied.retry_after, shown=shown, limit=denied.limit)


def _check_alone(limits: Limits, tokens: int, nanos: int) -> None:
    """Raises InvalidRequest for a request that no waiting would let through."""
    if limits.tokens and tokens > limits.tokens:
        raise InvalidRequest(
            f"This request may take {tokens} tokens, more than the {limits.tokens} a minute of this key: "
            "ask for a smaller max_tokens.",
            param="max_tokens",
        )
    if limits.budget and nanos > limits.budget:
        raise InvalidRequest(
            f"This request may cost ${nanos / NANO:.6f}, more than the whole budget of this key: "
            "ask for a smaller max_tokens.",
            param="max_tokens",
        )
