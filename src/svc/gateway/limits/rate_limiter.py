"""The limits of a key: requests and tokens per minute, concurrent requests, and a budget per day, month or in total.

    admit ─ reserves one request, the estimated prompt and maximum output tokens, and their cost ─> Reservation
    Reservation.commit ─ replaces the reserved amounts with the actual usage

With Redis, Redis decides. The counters of this machine count as well, and decide alone while Redis is unavailable.
A request that can never meet a limit gets status 400. Any other request over a limit gets status 429.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import LimitsUnavailable, RateLimited, SvcError
from svc.gateway.accounting.cost import NANO_USD_PER_USD, PriceTable
from svc.gateway.limits.budget_comparison import BudgetComparison
from svc.gateway.limits.limit_errors import (
    build_limit_error,
    describe_reached_limit,
    format_rate_limit_headers,
)
from svc.gateway.limits.reservation import EphemeralReservation, MirroredReservation, Reservation
from svc.gateway.limits.reserved_amounts import estimate_amounts
from svc.gateway.limits.spent_query import SpentQuery
from svc.gateway.routing.backends import Backend
from svc.settings import LimitSettings
from svc.stores.budget_period import budget_period_start
from svc.stores.counters.base import LimitExceeded, LimitUsage
from svc.stores.counters.key_limits import KeyLimits
from svc.stores.counters.local import LocalCounters, LocalReservation
from svc.stores.counters.redis import SPENT_UNAVAILABLE, RedisCounters
from svc.stores.counters.redis_types import RedisReservation, SpentRequired
from svc.stores.database.base import StoreUnavailable
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import ApiKey, EphemeralKey

MAX_CACHED_KEY_LIMITS: Final = 10_000
BUDGET_DAY_SECONDS: Final = 86_400


AdmissionCallback = Callable[[Reservation | SvcError], None]
RedisOutcome = RedisReservation | LimitExceeded | SpentRequired | StoreUnavailable


class _Admission:
    """What a request needs of the limits of its key, and the callback for the decision.

    `is_decided` is true after the reply of Redis, or once Redis was too slow. A late reply then belongs to
    `reservation`, if there is one.
    """

    __slots__ = ("_limiter", "callback", "cost_nano_usd", "is_decided", "limits", "reservation", "tokens")

    def __init__(
        self, limiter: RateLimiter, limits: KeyLimits, tokens: int, cost_nano_usd: int, callback: AdmissionCallback
    ) -> None:
        self._limiter = limiter
        self.limits = limits
        self.tokens = tokens
        self.cost_nano_usd = cost_nano_usd
        self.callback = callback
        self.is_decided = False
        self.reservation: MirroredReservation | None = None

    def on_redis_outcome(self, outcome: RedisOutcome) -> None:
        self._limiter.on_redis_outcome(self, outcome)

    def on_redis_slow(self) -> None:
        self._limiter.on_redis_slow(self)


class _CachedKeyLimits:
    """The limits of a key, valid until the end of the day (`expires_at`, Unix seconds)."""

    __slots__ = ("expires_at", "key", "limits")

    def __init__(self, key: ApiKey, limits: KeyLimits, expires_at: float) -> None:
        self.key = key
        self.limits = limits
        self.expires_at = expires_at


def _own_limits(key: ApiKey) -> KeyLimits | None:
    """Return the limits that an ephemeral key has in addition to its parent's, or None."""
    if not isinstance(key, EphemeralKey) or not (key.own_rpm or key.own_budget_usd is not None):
        return None
    budget_usd = key.own_budget_usd
    return KeyLimits(
        key_id=key.ephemeral_id or "",
        requests=key.own_rpm,
        budget_nano_usd=0 if budget_usd is None else max(1, round(budget_usd * NANO_USD_PER_USD)),
        period_start=key.issued_at,
        parent_id=key.id,
    )


class RateLimiter:
    """Admits or rejects requests by the limits of their keys. Belongs to one event loop."""

    def __init__(
        self,
        settings: LimitSettings,
        counters: LocalCounters,
        prices: PriceTable,
        database: DatabaseThread,
        redis_counters: RedisCounters | None = None,
    ) -> None:
        self._default_rpm: int = settings.rpm
        self._default_tpm: int = settings.tpm
        """The limits of keys without their own."""
        self._refuses_without_redis: bool = settings.on_redis_down == "refuse"
        self._cached_limits: dict[str, _CachedKeyLimits] = {}
        self._counters = counters
        self._prices = prices
        self._spent_query = SpentQuery(database)
        self._redis_counters = redis_counters
        self._budget_comparison = (
            BudgetComparison(redis_counters, counters, database) if redis_counters is not None else None
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, settings: LimitSettings) -> None:
        """Apply changed limits for keys without their own."""
        self._default_rpm, self._default_tpm = settings.rpm, settings.tpm
        self._refuses_without_redis = settings.on_redis_down == "refuse"
        self._cached_limits.clear()

    async def current_usage(self, key_limits: Iterable[KeyLimits]) -> list[LimitUsage]:
        """Return the current usage of limits on all machines, or on this one where Redis does not have it."""
        return list(await asyncio.gather(*map(self._current_usage, key_limits)))

    async def _current_usage(self, limits: KeyLimits) -> LimitUsage:
        if self._redis_counters is not None and not self._redis_counters.is_down:
            with contextlib.suppress(StoreUnavailable):  # logged by the batcher, or with the connection
                return await self._redis_counters.get_usage(limits)
        return self._counters.get_usage(limits)

    def has_limits(self, key: ApiKey) -> bool:
        """Return whether the key has any limit."""
        has_own_limit = key.rpm or key.tpm or key.concurrency or key.budget_usd is not None
        return bool(has_own_limit or self._default_rpm or self._default_tpm or _own_limits(key) is not None)

    def admit(
        self,
        key: ApiKey,
        routing_info: RoutingInfo,
        body: RequestBody,
        backends: tuple[Backend, ...],
        callback: AdmissionCallback,
    ) -> None:
        """Call `callback` with a reservation or an error, at once or after a query to Redis or the database.

        Raises InvalidRequest for a request that can never meet the limits.
        """
        limits, own_limits = self._limits_of(key), _own_limits(key)
        tokens, cost_nano_usd = estimate_amounts(limits, routing_info, body, backends, self._prices)
        admission = _Admission(self, limits, tokens, cost_nano_usd, callback)
        if own_limits is None:
            self._start_admission(admission)
        else:
            own_cost_nano_usd = estimate_amounts(own_limits, routing_info, body, backends, self._prices)[1]
            self._admit_ephemeral(own_limits, own_cost_nano_usd, admission)

    def _admit_ephemeral(self, own_limits: KeyLimits, own_cost_nano_usd: int, parent: _Admission) -> None:
        """Reserve by the own limits of an ephemeral key, then by those of its parent.

        A request that the own limits reject does not count for the parent, whose other keys it must not disturb.
        """
        on_own = partial(self._admit_parent, parent)
        self._start_admission(_Admission(self, own_limits, 0, own_cost_nano_usd, on_own))

    def _admit_parent(self, parent: _Admission, own: Reservation | SvcError) -> None:
        limits = parent.limits
        has_parent_limit = limits.requests or limits.tokens or limits.concurrency or limits.budget_nano_usd
        if isinstance(own, SvcError) or not has_parent_limit:
            parent.callback(own)
        else:
            on_parent = partial(self._on_parent, parent.callback, own)
            self._start_admission(_Admission(self, limits, parent.tokens, parent.cost_nano_usd, on_parent))

    def _on_parent(self, callback: AdmissionCallback, own: Reservation, parent: Reservation | SvcError) -> None:
        if isinstance(parent, SvcError):
            own.commit(0, 0.0)
            callback(parent)
        else:
            callback(EphemeralReservation(self._counters, own, parent))

    def _start_admission(self, admission: _Admission) -> None:
        limits = admission.limits
        if self._redis_counters is None:
            outcome = self._counters.reserve_if_spent_known(limits, admission.tokens, admission.cost_nano_usd)
            if outcome is not None:
                admission.callback(self._build_reservation(admission, outcome))
                return
        if self._redis_counters is None or (limits.budget_nano_usd and self._counters.needs_spent(limits)):
            self._start_task(self._load_spent(admission))
        else:
            self._reserve(admission, None)

    def has_request_limit(self, key: ApiKey) -> bool:
        """Return whether the key has a limit on requests per minute."""
        return bool(key.rpm or self._default_rpm or (isinstance(key, EphemeralKey) and key.own_rpm))

    def count_request(self, key: ApiKey, callback: AdmissionCallback) -> None:
        """Like `admit`, for a request without a backend: it counts for `rpm` only."""
        self._admit_unpriced(key, KeyLimits(key_id=key.id, requests=key.rpm or self._default_rpm), callback)

    async def count_attempt(self, name: str, max_per_minute: int) -> None:
        """Count an attempt that has no API key, such as a login. Raises RateLimited if the last minute is full.

        While Redis is unavailable, the counters of this machine decide, whatever `on_redis_down` says.
        """
        limits = KeyLimits(key_id=name, requests=max_per_minute)
        decision: asyncio.Future[Reservation | SvcError] = asyncio.get_running_loop().create_future()

        def on_decision(outcome: Reservation | SvcError) -> None:
            if not isinstance(outcome, SvcError):
                outcome.commit(0, 0.0)
            if not decision.done():  # the client can disconnect before the reply of Redis
                decision.set_result(outcome)

        admission = _Admission(self, limits, 0, 0, on_decision)
        self._reserve(admission, None)
        outcome = await decision
        if isinstance(outcome, LimitsUnavailable):
            outcome = self._reserve_locally(admission)
        if isinstance(outcome, SvcError):
            raise outcome

    def check_request_rate(self, key: ApiKey) -> None:
        """Raise RateLimited if this machine's counters show no remaining request of the key. Counts nothing.

        The error is not LimitReached. Therefore `Exchange.reject` counts the request, and the counters that decide
        can replace the error by theirs, which has rate limit headers.
        """
        for limits in (_own_limits(key), self._limits_of(key)):
            limit: int = 0 if limits is None else limits.requests
            if limits is not None and limit and self._counters.get_usage(limits).requests >= limit:
                raise RateLimited(describe_reached_limit("rpm", limit), limit="rpm")

    def admit_unmetered(self, key: ApiKey, callback: AdmissionCallback) -> None:
        """Like `admit`, for a request without tokens and cost: only `rpm` and `concurrency` apply."""
        limits = KeyLimits(key_id=key.id, requests=key.rpm or self._default_rpm, concurrency=key.concurrency)
        self._admit_unpriced(key, limits, callback)

    def _admit_unpriced(self, key: ApiKey, limits: KeyLimits, callback: AdmissionCallback) -> None:
        admission = _Admission(self, limits, 0, 0, callback)
        if isinstance(key, EphemeralKey) and key.own_rpm:
            own_limits = KeyLimits(key_id=key.ephemeral_id or "", requests=key.own_rpm, parent_id=key.id)
            self._admit_ephemeral(own_limits, 0, admission)
        else:
            self._reserve(admission, None)

    def _limits_of(self, key: ApiKey) -> KeyLimits:
        """Return the limits of a key, or those of its parent for an ephemeral key."""
        if isinstance(key, EphemeralKey):
            key = key.parent
        cached = self._cached_limits.get(key.id)
        now = time.time()  # read once: a day can begin between two readings
        if cached is not None and cached.key is key and now < cached.expires_at:
            return cached.limits
        if len(self._cached_limits) >= MAX_CACHED_KEY_LIMITS:
            self._cached_limits.clear()
        budget = 0 if key.budget_usd is None else max(1, round(key.budget_usd * NANO_USD_PER_USD))
        limits = KeyLimits(
            key_id=key.id,
            requests=key.rpm or self._default_rpm,
            tokens=key.tpm or self._default_tpm,
            concurrency=key.concurrency,
            budget_nano_usd=budget,
            period=key.budget_period,
            period_start=int(budget_period_start(key.budget_period, now)) if budget else 0,
        )
        self._cached_limits[key.id] = _CachedKeyLimits(
            key, limits, budget_period_start("day", now) + BUDGET_DAY_SECONDS
        )
        return limits

    def _reserve_locally(self, admission: _Admission, *, awaits_redis: bool = False) -> Reservation | SvcError:
        """Reserve by the counters of this machine."""
        outcome = self._counters.reserve(admission.limits, admission.tokens, admission.cost_nano_usd)
        return self._build_reservation(admission, outcome, awaits_redis=awaits_redis)

    def _build_reservation(
        self, admission: _Admission, outcome: LocalReservation | LimitExceeded, *, awaits_redis: bool = False
    ) -> Reservation | SvcError:
        limits = admission.limits
        if not isinstance(outcome, LocalReservation):
            return build_limit_error(limits, outcome, admission.tokens, admission.cost_nano_usd)
        lines = format_rate_limit_headers(
            limits, outcome.requests_left, outcome.tokens_left, outcome.reset_seconds, outcome.reset_seconds
        )
        if self._redis_counters is not None:
            return MirroredReservation(
                self._counters, outcome, lines, self._redis_counters, limits.key_id, awaits_redis=awaits_redis
            )
        return Reservation(self._counters, outcome, lines)

    # Redis and database

    def _reserve(self, admission: _Admission, spent: int | None) -> None:
        """Reserve in Redis, or locally without Redis. `spent` is the spending from the database, if it was queried."""
        redis_counters = self._redis_counters
        if redis_counters is None:
            admission.callback(self._reserve_locally(admission))
        else:
            redis_counters.reserve(
                admission.limits,
                admission.tokens,
                admission.cost_nano_usd,
                spent,
                admission.on_redis_outcome,
                admission.on_redis_slow,
            )

    def on_redis_outcome(self, admission: _Admission, outcome: RedisOutcome) -> None:
        """Handle the reply of Redis."""
        if admission.is_decided:
            self._handle_late_outcome(admission, outcome)
            return
        admission.is_decided = not isinstance(outcome, SpentRequired)
        if isinstance(outcome, RedisReservation):
            admission.callback(self._mirror_reservation(admission, outcome))
        elif isinstance(outcome, LimitExceeded):
            admission.callback(build_limit_error(admission.limits, outcome, admission.tokens, admission.cost_nano_usd))
        elif isinstance(outcome, SpentRequired):
            self._start_task(self._load_spent(admission))
        else:
            self._decide_without_redis(admission, awaits_redis=False)

    def on_redis_slow(self, admission: _Admission) -> None:
        """Decide without the reply of Redis. Redis still counts the request."""
        if not admission.is_decided:
            admission.is_decided = True
            self._decide_without_redis(admission, awaits_redis=True)

    def _decide_without_redis(self, admission: _Admission, *, awaits_redis: bool) -> None:
        if self._refuses_without_redis:
            admission.callback(LimitsUnavailable("The limits of this API key cannot be checked at the moment."))
            return
        outcome = self._reserve_locally(admission, awaits_redis=awaits_redis)
        if awaits_redis and isinstance(outcome, MirroredReservation):
            admission.reservation = outcome
        admission.callback(outcome)

    def _handle_late_outcome(self, admission: _Admission, outcome: RedisOutcome) -> None:
        """Give a late reservation to its request, or release it if the request was rejected."""
        redis_reservation = outcome if isinstance(outcome, RedisReservation) else None
        if admission.reservation is not None:
            admission.reservation.set_outcome(redis_reservation)
        elif redis_reservation is not None and self._redis_counters is not None:
            self._redis_counters.commit(redis_reservation, 0, 0)

    def _mirror_reservation(self, admission: _Admission, redis_reservation: RedisReservation) -> Reservation | SvcError:
        """Reserve locally after Redis. Both decide while Redis may lack counts of the last minute."""
        limits, redis_counters = admission.limits, self._redis_counters
        assert redis_counters is not None
        if limits.budget_nano_usd and redis_counters.begin_comparison(limits.key_id):
            assert self._budget_comparison is not None
            self._budget_comparison.add(limits)
        local_reservation = self._counters.reserve(
            limits, admission.tokens, admission.cost_nano_usd, force=redis_reservation.has_full_window
        )
        if isinstance(local_reservation, LimitExceeded):
            redis_counters.commit(redis_reservation, 0, 0)
            return build_limit_error(limits, local_reservation, admission.tokens, admission.cost_nano_usd)
        lines = format_rate_limit_headers(
            limits,
            redis_reservation.requests_left,
            redis_reservation.tokens_left,
            redis_reservation.reset_seconds,
            redis_reservation.reset_seconds,
        )
        return MirroredReservation(
            self._counters, local_reservation, lines, redis_counters, limits.key_id, redis_reservation
        )

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_spent(self, admission: _Admission) -> None:
        """Load the spending of a key from the database, then reserve."""
        limits = admission.limits
        spent = await self._spent_query.run(limits)
        if spent != SPENT_UNAVAILABLE:
            self._counters.set_spent(limits, spent)
            spent = max(spent, self._counters.get_spent_nano_usd(limits))  # the database lacks the most recent entries
        self._reserve(admission, spent)

    def start(self) -> None:
        """Start the Redis counters, if there are any."""
        if self._redis_counters is not None:
            self._redis_counters.start()

    async def close(self) -> None:
        """Cancel pending queries, and close the counters."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._budget_comparison is not None:
            await self._budget_comparison.close()
        if self._redis_counters is not None:
            await self._redis_counters.close()
        self._counters.close()
