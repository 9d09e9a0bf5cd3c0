"""Selects the next backend of a request by the health of all backends. No I/O. Times are loop times in seconds.

A backend is skipped while its circuit breaker is open, and during a cooldown after a 429 with a long `retry-after`. It
is also skipped if its context window is too small for the prompt. If that skips all backends, the first attempt uses
the first backend that is not down, because the provider can enforce its own limits. A later attempt gives up. A backend
is down if its breaker is not closed and nearly all of its requests failed without a response or with a server error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import MIN_BYTES_PER_TOKEN, estimate_body_tokens
from svc.errors import ProviderFailed, RateLimited
from svc.gateway.routing.accounts import RATE_LIMIT_WINDOW_SECONDS, choose_account, remaining_share
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.circuit_breaker import BackendCircuitBreaker
from svc.gateway.routing.failures import MAX_RETRY_WAIT_SECONDS, AttemptFailure, RetryDecision
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.gateway.routing.retry_budget import RetryBudget
from svc.gateway.routing.strategies import RoutingStrategies
from svc.resilience import BreakerState
from svc.settings import RoutingSettings

log = logging.getLogger("svc.gateway")

MAX_COOLDOWN_SECONDS: Final = 120.0
"""Maximum seconds of a cooldown, even if `retry-after` is longer."""


class BackendHealth:
    """The health of one backend. All backends of a provider share `retry_budget`."""

    __slots__ = (
        "breaker",
        "cooldown_until",
        "is_embedded",
        "name",
        "remaining_share",
        "remaining_share_at",
        "retry_budget",
    )

    def __init__(
        self, name: str, breaker: BackendCircuitBreaker, retry_budget: RetryBudget, *, is_embedded: bool
    ) -> None:
        self.name = name
        self.is_embedded = is_embedded
        """Whether the backend is the embedded model. Slow responses mean that this machine is busy."""
        self.breaker = breaker
        self.retry_budget = retry_budget
        self.cooldown_until = 0.0
        self.remaining_share = 1.0
        """The remaining share of its rate limits at `remaining_share_at`."""
        self.remaining_share_at = 0.0

    def reset(self, breaker: BackendCircuitBreaker) -> None:
        """Reset the health after a change of address or key."""
        self.breaker, self.cooldown_until, self.remaining_share, self.remaining_share_at = breaker, 0.0, 1.0, 0.0


def _backend_id(backend: Backend) -> tuple[str, str, int]:
    return backend.provider_name, backend.model_id, backend.account_number


class LoadBalancer:
    """Keeps the health of every backend that has been used, and selects backends by it."""

    def __init__(self, routing: RoutingSettings) -> None:
        self._routing = routing
        self.strategies = RoutingStrategies(routing)
        self._health_by_backend: dict[Backend, BackendHealth] = {}
        self._last_backend: Backend | None = None
        """The last argument of `health_of`. `_last_health` is its result."""
        self._last_health: BackendHealth
        self._health_by_id: dict[tuple[str, str, int], BackendHealth] = {}
        self._retry_budgets: dict[str, RetryBudget] = {}
        self._health_by_name: dict[str, BackendHealth] = {}
        self.on_breaker_change: Callable[[BackendHealth], None] | None = None
        """Called when this process opens or closes a breaker."""

    def configure(self, routing: RoutingSettings, backends: Iterable[Backend]) -> None:
        """Apply changed settings and backends. A backend keeps its health unless its address or key changes."""
        self._routing = routing
        self.strategies.configure(routing)
        heads = {_backend_id(previous): previous.request_head for previous in self._health_by_backend}
        self._health_by_backend = {
            previous: health for previous, health in self._health_by_backend.items() if health.is_embedded
        }
        self._last_backend = None
        for budget in self._retry_budgets.values():
            budget.max_retry_share = routing.retry_share
        for health in self._health_by_id.values():
            if not health.is_embedded:
                health.breaker.slow_after = float(routing.slow_after)
        for backend in backends:
            for account in backend.account_backends or (backend,):
                backend_id = _backend_id(account)
                existing_health = self._health_by_id.get(backend_id)
                if existing_health is None:
                    continue
                if heads.get(backend_id, account.request_head) != account.request_head:
                    existing_health.reset(BackendCircuitBreaker(slow_after=routing.slow_after))
                # For the next reload, which may happen before a request uses the backend.
                self._health_by_backend[account] = existing_health

    def health_of(self, backend: Backend) -> BackendHealth:
        """Return the health of a backend. It stays the same when a reload replaces the `Backend` object."""
        if backend is self._last_backend:  # a request looks up the same backend several times
            return self._last_health
        health = self._health_by_backend.get(backend) or self._add_health(backend)
        self._last_backend, self._last_health = backend, health
        return health

    def breaker_states(self) -> dict[str, BreakerState]:
        """Return the breaker states by `provider/model`."""
        return {health.name: health.breaker.state for health in self._health_by_id.values()}

    def select_first(
        self, backends: Sequence[Backend], body: RequestBody, routing_info: RoutingInfo, now: float
    ) -> int:
        """Return the index of a request's first backend, like `select_next`. Raises ProviderFailed if all are down."""
        selected = self.select_next(backends, 0, body, routing_info, now)
        return selected if selected >= 0 else self.select_last_resort(backends)

    def select_last_resort(self, backends: Sequence[Backend]) -> int:
        """Return the index of the first backend that still responds. Raises ProviderFailed if all are down."""
        for index, backend in enumerate(backends):
            breakers = [self.health_of(account).breaker for account in backend.account_backends or (backend,)]
            if any(breaker.state == "closed" or breaker.has_responses for breaker in breakers):
                return index
        raise ProviderFailed("The provider is unavailable: its circuit breaker is open. Retry in a few seconds.")

    def select_next(
        self, backends: Sequence[Backend], start: int, body: RequestBody, routing_info: RoutingInfo, now: float
    ) -> int:
        """Return the index of the first usable backend from `start` on, or -1. May claim the probe of its breaker."""
        for index in range(start, len(backends)):
            backend = backends[index]
            if backend.account_backends:
                if fits_context_window(backend, body, routing_info) and any(
                    self._may_serve(account, now) for account in backend.account_backends
                ):
                    return index
                continue
            health = self.health_of(backend)
            if (
                health.cooldown_until <= now
                and fits_context_window(backend, body, routing_info)
                and self._acquire_request(health, now)
            ):
                return index
        return -1

    def select_account(self, backend: Backend, used: Container[Backend], now: float) -> Backend:
        """Select an account of a backend with several, not one of `used` if possible. May claim a breaker's probe."""
        unused = [account for account in backend.account_backends if account not in used] or list(
            backend.account_backends
        )
        available = [account for account in unused if self._may_serve(account, now)] or unused
        health_states = [self.health_of(account) for account in available]
        remaining_shares = [
            health.remaining_share if now - health.remaining_share_at < RATE_LIMIT_WINDOW_SECONDS else 1.0
            for health in health_states
        ]
        chosen = choose_account([account.provider.weight for account in available], remaining_shares)
        self._acquire_request(health_states[chosen], now)  # claims the probe: the account is used in any case
        return available[chosen]

    def record_rate_limits(self, backend: Backend, headers: Mapping[bytes, bytes], now: float) -> None:
        """Record the remaining share of an account's rate limits from the headers of its response."""
        share = remaining_share(headers)
        if share is not None:
            health = self.health_of(backend)
            health.remaining_share, health.remaining_share_at = share, now

    def _may_serve(self, backend: Backend, now: float) -> bool:
        health = self.health_of(backend)
        return health.cooldown_until <= now and health.breaker.may_serve(now)

    def record_request(self, backend: Backend, now: float) -> None:
        """Record the first attempt of a request at a backend."""
        self.health_of(backend).retry_budget.record_request(now)

    def has_other_account(self, backend: Backend, used: Container[Backend], now: float) -> bool:
        """Return whether a backend has a usable account that is not one of `used`."""
        return any(account not in used and self._may_serve(account, now) for account in backend.account_backends)

    def acquire_retry(self, backend: Backend, now: float) -> bool:
        """Return whether a backend may get a retry, and count it if so. A half-open breaker allows no retry."""
        health = self.health_of(backend)
        return health.breaker.state != "half-open" and health.retry_budget.acquire_retry(now)

    def record_success(self, backend: Backend, seconds: float, now: float, *, stream: bool) -> None:
        """Record a successful attempt. `seconds`: to the first byte of a stream, or to the last of another response."""
        if self.strategies.tracks_load:
            self.strategies.load_of(backend).record_latency(seconds, now, stream=stream)
        if self._routing.breaker:
            health = self.health_of(backend)
            previous_state = health.breaker.state
            health.breaker.record_success(now, seconds, stream=stream)
            if health.breaker.state != previous_state:
                self._handle_breaker_change(health, previous_state)

    def record_hedge_loss(self, backend: Backend, seconds: float, now: float, *, stream: bool) -> None:
        """Record an attempt that was cancelled after `seconds`, because the other attempt of a hedge was faster."""
        if self._routing.breaker:
            health = self.health_of(backend)
            previous_state = health.breaker.state
            health.breaker.record_hedge_loss(now, seconds, stream=stream)
            if health.breaker.state != previous_state:
                self._handle_breaker_change(health, previous_state)

    def record_failure(
        self, backend: Backend, failure: AttemptFailure, now: float, *, already_counted: bool = False
    ) -> None:
        """Record that a request failed at a backend, retries included.

        `already_counted`: a stream was recorded as a success, and was interrupted later.
        """
        health = self.health_of(backend)
        if isinstance(failure.error, RateLimited):
            if (failure.retry_after or 0.0) > MAX_RETRY_WAIT_SECONDS:
                health.cooldown_until = now + min(MAX_COOLDOWN_SECONDS, failure.retry_after or 0.0)
            health.breaker.record_abandoned()
        elif (
            failure.is_local
            or failure.retry_decision is RetryDecision.GIVE_UP
            or (health.is_embedded and failure.retry_decision is RetryDecision.NEXT_BACKEND)
        ):
            health.breaker.record_abandoned()  # the request is invalid, or this machine is busy
        elif self._routing.breaker:
            previous_state = health.breaker.state
            health.breaker.record_failure(now, already_counted=already_counted, is_outage=failure.counts_as_outage)
            if health.breaker.state != previous_state:
                self._handle_breaker_change(health, previous_state)

    def record_abandoned(self, backend: Backend) -> None:
        """Record an attempt that was cancelled without an outcome."""
        self.health_of(backend).breaker.record_abandoned()

    def _acquire_request(self, health: BackendHealth, now: float) -> bool:
        """Return whether the breaker allows a request. If it is half-open, the request becomes its probe."""
        return health.breaker.state == "closed" or health.breaker.acquire_request(now)

    def _handle_breaker_change(self, health: BackendHealth, previous_state: BreakerState) -> None:
        log.warning("breaker of %s: %s -> %s", health.name, previous_state, health.breaker.state)
        if self.on_breaker_change is not None and not health.is_embedded:
            self.on_breaker_change(health)

    def open_from_peer(self, name: str, now: float, open_seconds: float, *, is_slow: bool, has_responses: bool) -> None:
        """Open a breaker for `open_seconds`, because another process did."""
        health = self._health_by_name.get(name)
        if health is None or health.is_embedded or not self._routing.breaker:
            return
        if health.breaker.open_from_peer(now, open_seconds, is_slow=is_slow, has_responses=has_responses):
            log.warning("breaker of %s: opened by another process", name)

    def _add_health(self, backend: Backend) -> BackendHealth:
        provider, backend_id = backend.provider_name, _backend_id(backend)
        health = self._health_by_id.get(backend_id)
        if health is not None and health.is_embedded:  # a new backend is a new process with its own health
            health.breaker = BackendCircuitBreaker(slow_after=math.inf)
        if health is None:
            budget = self._retry_budgets.setdefault(provider, RetryBudget(self._routing.retry_share))
            embedded = provider == LOCAL_PROVIDER
            breaker = BackendCircuitBreaker(slow_after=math.inf if embedded else self._routing.slow_after)
            name = f"{provider}/{backend.model_id}" + (f"#{backend.account_number}" if backend.account_number else "")
            health = self._health_by_id[backend_id] = self._health_by_name[name] = BackendHealth(
                name, breaker, budget, is_embedded=embedded
            )
        self._health_by_backend[backend] = health
        return health


def fits_context_window(backend: Backend, body: RequestBody, routing_info: RoutingInfo) -> bool:
    """Return False if the estimated prompt tokens plus the output tokens exceed the context window."""
    if not routing_info.has_single_prompt:
        return True
    window = backend.context_window
    output_tokens = routing_info.max_tokens or 0
    if backend.profile.max_output_tokens is not None:
        output_tokens = min(output_tokens, backend.profile.max_output_tokens)
    if not body.earlier_tokens and len(body.raw) <= (window - output_tokens) * MIN_BYTES_PER_TOKEN:  # nearly always
        return True
    return estimate_body_tokens(body) + body.earlier_tokens + output_tokens <= window
