"""The state that all requests share: configuration, routes, upstream connections, limits, clock and observers."""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from svc.errors import ProviderFailed
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.observability.access_log import AccessLogEntry
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.observer import RequestObserver, RequestStart
from svc.gateway.observability.request_content import ContentCapture
from svc.gateway.observability.request_log import RequestLog
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

OBSERVER_FAULT: Final = "error in the observer's method %r"
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
    observers: tuple[RequestObserver, ...]
    """All observers. The next six tuples hold the methods of observers that override the default."""
    on_start: tuple[Callable[[RequestStart], None], ...]
    on_attempt: tuple[Callable[[AttemptRecord], None], ...]
    on_first_byte: tuple[Callable[[str, float], None], ...]
    on_refusal: tuple[Callable[[RequestRecord], None], ...]
    on_end: tuple[Callable[[RequestRecord], None], ...]
    on_other_response: tuple[Callable[[AccessLogEntry, bytes, str], None], ...]
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

    def report_start(self, request: RequestStart) -> None:
        """Tell the observers that a request starts."""
        for on_start in self.on_start:
            try:
                on_start(request)
            except Exception:  # an error in an observer must not affect the client
                log.exception(OBSERVER_FAULT, on_start)

    def report_attempt(self, attempt: AttemptRecord) -> None:
        """Tell the observers that an attempt ended."""
        for on_attempt in self.on_attempt:
            try:
                on_attempt(attempt)
            except Exception:  # as in `report_start`
                log.exception(OBSERVER_FAULT, on_attempt)

    def report_first_byte(self, request_id: str, seconds: float) -> None:
        """Tell the observers that a response starts, `seconds` after its request."""
        for on_first_byte in self.on_first_byte:
            try:
                on_first_byte(request_id, seconds * 1000)
            except Exception:  # as in `report_start`
                log.exception(OBSERVER_FAULT, on_first_byte)

    def report_end(self, record: RequestRecord) -> None:
        """Tell the observers that a request ended. Call this before the last byte of the response is sent."""
        if record.code is not None:
            self.report_refusal(record)
        for on_end in self.on_end:
            try:
                on_end(record)
            except Exception:  # as in `report_start`
                log.exception(OBSERVER_FAULT, on_end)

    def report_refusal(self, record: RequestRecord) -> None:
        """Tell the observers that a request ended with an error, if there was no attempt at a provider."""
        if record.attempt_count or record.from_cache:
            return
        for on_refusal in self.on_refusal:
            try:
                on_refusal(record)
            except Exception:  # as in `report_start`
                log.exception(OBSERVER_FAULT, on_refusal)

    def report_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str = "") -> None:
        """Tell the observers of a response without a `RequestRecord`."""
        for on_other_response in self.on_other_response:
            try:
                on_other_response(entry, client_field, limit_name)
            except Exception:  # as in `report_start`
                log.exception(OBSERVER_FAULT, on_other_response)

    def _on_tick(self, now: float) -> None:
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
        observers=observers,
        on_start=tuple([observer.on_start for observer in _overriding(observers, "on_start")]),
        on_attempt=tuple([observer.on_attempt for observer in _overriding(observers, "on_attempt")]),
        on_first_byte=tuple([observer.on_first_byte for observer in _overriding(observers, "on_first_byte")]),
        on_refusal=tuple([observer.on_refusal for observer in _overriding(observers, "on_refusal")]),
        on_end=tuple([observer.on_end for observer in _overriding(observers, "on_end")]),
        on_other_response=tuple(
            [observer.on_other_response for observer in _overriding(observers, "on_other_response")]
        ),
        trace_content=next((observer.content for observer in observers if isinstance(observer, RequestTracer)), None),
        client_connections=set(),
        exchanges=set(),
        attempts=set(),
        tracked_request_ids=set(),
    )


def _overriding(observers: tuple[RequestObserver, ...], method: str) -> list[RequestObserver]:
    """Return the observers that override a method of `RequestObserver`."""
    default: object = getattr(RequestObserver, method)
    return [observer for observer in observers if getattr(type(observer), method) is not default]
