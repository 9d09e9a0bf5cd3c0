"""The state that all requests share: configuration, routes, upstream connections, limits, clock and observers."""

from __future__ import annotations

import logging
import secrets
import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from svc.errors import ProviderFailed
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.request_content import ContentCapture
from svc.gateway.observability.request_log import RequestLog
from svc.gateway.observability.request_observers import RequestObservers
from svc.gateway.observability.request_traces import RequestTracer
from svc.gateway.observability.upstream_error_log import UpstreamErrorLog
from svc.gateway.proxy.attempt import Attempt
from svc.gateway.proxy.clock import Clock
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure, RetryDecision
from svc.gateway.routing.load_balancer import LoadBalancer
from svc.gateway.routing.request_policy import RequestPolicy
from svc.gateway.routing.router import Router
from svc.gateway.stored_responses.origins import ResponseOrigins
from svc.gateway.stored_responses.store import ResponseStore
from svc.gateway.upstream.pool import UpstreamPool
from svc.security import Keyring
from svc.settings import Settings

log = logging.getLogger("svc.gateway")

_REQUEST_ID_SUFFIXES: Final = tuple(f"{number:02x}" for number in range(256))
"""The suffixes of request ids. Precomputed, because each request needs one."""


class SupportsTimeouts(Protocol):
    """An object with timeouts: an attempt, an exchange or a client connection."""

    def check_timeouts(self, now: float) -> None:
        """Handle the timeouts that have passed. `now` is loop time in seconds."""


class InFlightRequest(Protocol):
    """A request whose response is not complete."""

    @property
    def is_streaming(self) -> bool:
        """Whether the response is a stream that has started."""

    def check_timeouts(self, now: float) -> None:
        """Handle the timeouts that have passed. `now` is loop time in seconds."""

    def stop(self, failure: AttemptFailure) -> None:
        """End the request with an error."""


class RequestIds:
    """Generates request ids. Their random prefix makes them unique across processes and restarts."""

    def __init__(self) -> None:
        self._prefix = f"req_{secrets.token_hex(8)}"
        self._count = 0
        self._block = f"{self._prefix}{0:06x}"
        """The common start of 256 request ids."""

    def generate(self) -> str:
        """Return a new request id."""
        count = self._count = self._count + 1
        suffix = count & 0xFF
        if not suffix:
            self._block = f"{self._prefix}{count >> 8:06x}"
        return self._block + _REQUEST_ID_SUFFIXES[suffix]


@dataclass(frozen=True)
class Configuration:
    """The objects that a configuration reload replaces, in one step."""

    settings: Settings
    policy: RequestPolicy
    cache: ResponseCache | None
    """None if the response cache is disabled."""


class CurrentConfiguration:
    """The configuration of new requests. Only `GatewayContext.configure` replaces `current`."""

    def __init__(self, configuration: Configuration) -> None:
        self.current = configuration


@dataclass(frozen=True)
class GatewayContext:
    """The state that all requests of one event loop share, from `start` to `close`. `create_context` creates it."""

    config: CurrentConfiguration
    router: Router
    keyring: Keyring
    upstream: UpstreamPool
    ledger: Ledger
    load_balancer: LoadBalancer
    rate_limiter: RateLimiter
    metrics: RequestMetrics
    request_log: RequestLog
    upstream_error_log: UpstreamErrorLog
    response_store: ResponseStore | None
    """None if the gateway cannot store responses. `settings.responses.store` turns it on."""
    response_origins: ResponseOrigins
    """The providers of native responses that it does not store."""
    clock: Clock
    request_ids: RequestIds
    observers: RequestObservers
    trace_content: ContentCapture | None
    """Keeps prompts and answers for spans. None unless `[telemetry] content` is true and traces are exported."""
    client_connections: set[SupportsTimeouts]
    exchanges: set[InFlightRequest]
    attempts: set[Attempt]
    tracked_request_ids: set[str]
    """Ids of requests that have a record, and whose response is still being sent."""

    def start(self) -> None:
        """Start the clock."""
        self.clock.start(self._on_tick)

    def configure(
        self,
        settings: Settings,
        cache: ResponseCache | None,
        backends: list[Backend],
        models_without_key: dict[str, str],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Apply a changed configuration. Attempts in progress keep their backends and timeouts."""
        self.config.current = Configuration(settings, RequestPolicy(settings), cache)
        self.request_log.is_enabled = settings.gateway.access_log
        self.router.replace(backends, settings.routing.fallbacks, models_without_key, settings.models_by_alias)
        self.upstream.configure(settings.gateway.connect_timeout, tls)
        self.ledger.configure(settings.ledger, self.router.backends())
        self.load_balancer.configure(settings.routing, backends)
        self.rate_limiter.configure(settings.limits)

    def _on_tick(self, now: float) -> None:
        self.upstream.io_batch.handle()  # data that has arrived in time
        self.request_log.flush()
        self.ledger.journal.seal_segment_if_idle()
        for attempt in list(self.attempts):
            if attempt.is_done:
                self.attempts.discard(attempt)
        watched: list[SupportsTimeouts] = [*self.attempts, *self.exchanges, *self.client_connections]
        for item in watched:
            try:
                item.check_timeouts(now)
            except Exception:  # an error in one object must not stop the timeouts of the others
                log.exception("error in a timeout handler")
        self.upstream.close_idle(now)

    async def close(self) -> None:
        """Stop every request in progress, and close the upstream connections."""
        self.clock.stop()
        self.ledger.stop_accepting()
        failure = AttemptFailure(ProviderFailed("The gateway is shutting down."), RetryDecision.GIVE_UP)
        for exchange in list(self.exchanges):
            exchange.stop(failure)
        for attempt in list(self.attempts):
            attempt.cancel()
        await self.upstream.close()
        self.request_log.flush()


def create_context(
    settings: Settings,
    router: Router,
    keyring: Keyring,
    upstream: UpstreamPool,
    ledger: Ledger,
    rate_limiter: RateLimiter,
    metrics: RequestMetrics,
    request_log: RequestLog,
    *,
    cache: ResponseCache | None = None,
    response_store: ResponseStore | None = None,
    response_origins: ResponseOrigins | None = None,
    observers: tuple[RequestObserver, ...],
) -> GatewayContext:
    """Create the context of the running event loop. `observers` get the events of its requests."""
    load_balancer = LoadBalancer(settings.routing)
    load_balancer.strategies.estimate_cost = ledger.compute_cost
    return GatewayContext(
        config=CurrentConfiguration(Configuration(settings, RequestPolicy(settings), cache)),
        router=router,
        keyring=keyring,
        upstream=upstream,
        ledger=ledger,
        load_balancer=load_balancer,
        rate_limiter=rate_limiter,
        metrics=metrics,
        request_log=request_log,
        upstream_error_log=UpstreamErrorLog(),
        response_store=response_store,
        response_origins=response_origins or ResponseOrigins(),
        clock=Clock(),
        request_ids=RequestIds(),
        observers=RequestObservers(observers, upstream.io_batch),
        trace_content=next((observer.content for observer in observers if isinstance(observer, RequestTracer)), None),
        client_connections=set(),
        exchanges=set(),
        attempts=set(),
        tracked_request_ids=set(),
    )
