"""Assemble what model requests share: router, keys, ledger, limits and metrics. Starts and closes them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence

from svc.app.counters_slot import SharedCountersSlot
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.cache.response_cache import ResponseCache
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.limits.warm_start import warm_start_counters
from svc.gateway.local_model.provider import LocalModels, run_local_models
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.prometheus import WorkerMetrics
from svc.gateway.observability.request_log import RequestLog
from svc.gateway.proxy.context import GatewayContext, create_context
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers
from svc.gateway.routing.router import Router
from svc.gateway.routing.shared_breakers import SharedBreakers
from svc.gateway.routing.unconfigured_providers import models_without_key
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.stored_responses.origins import ResponseOrigins
from svc.gateway.stored_responses.store import ResponseStore
from svc.gateway.upstream.pool import UpstreamPool, default_ssl_context
from svc.keys.cache import KEY_QUERY_TIMEOUT_SECONDS, IssuedKeyCache
from svc.security import Keyring
from svc.settings import Settings
from svc.stores.counters.in_process import InProcessCounters
from svc.stores.counters.redis import RedisCounters
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.base import RedisClient
from svc.telemetry import LineWriter
from svc.wire.histogram import HistogramSeries


@contextlib.asynccontextmanager
async def run_context(
    settings: Settings,
    writer: LineWriter,
    endpoints: EndpointTable,
    limits_database: DatabaseThread,
    counters_slot: SharedCountersSlot | None,
    redis: RedisClient | None,
    *,
    cache: ResponseCache | None,
    response_store: ResponseStore,
    observers: Sequence[RequestObserver],
    extra_metrics: Callable[[], dict[str, float]],
    extra_histograms: Callable[[], list[HistogramSeries]],
) -> AsyncIterator[tuple[GatewayContext, MetricsPublisher, LocalModels | None]]:
    """Run what model requests share. Yields the context, the metrics, and the models of this machine."""
    router, upstream = _create_router(settings, endpoints)
    issued_keys = IssuedKeyCache(open_state_database(settings.environ, settings.home, KEY_QUERY_TIMEOUT_SECONDS))
    ledger = _create_ledger(settings, router)
    counters = counters_slot.open() if counters_slot else InProcessCounters()
    if counters_slot is None:
        await warm_start_counters(counters, limits_database)
    rate_limiter = RateLimiter(
        settings.limits, counters, ledger.prices, limits_database, RedisCounters(redis) if redis else None
    )
    metrics = RequestMetrics()
    request_log = RequestLog(writer, is_enabled=settings.gateway.access_log)
    context = create_context(
        settings,
        router,
        _create_keyring(settings, issued_keys),
        upstream,
        ledger,
        rate_limiter,
        metrics,
        request_log,
        cache=cache,
        response_store=response_store,
        response_origins=ResponseOrigins(redis),
        observers=(ledger, metrics, request_log, *observers),
    )

    def update_prices() -> None:
        ledger.prices.set_configured_prices(router.backends())

    async with run_local_models(settings, router, upstream, update_prices) as local_models:
        update_prices()
        metrics_publisher = MetricsPublisher(
            context,
            issued_keys,
            WorkerMetrics(counters_slot.metrics_dir if counters_slot else None, str(os.getpid())),
            redis,
            extra_metrics,
            extra_histograms,
        )
        shared_breakers = SharedBreakers(context.load_balancer, redis) if redis else None
        async with contextlib.AsyncExitStack() as stack:  # closes what was opened, even if the start fails
            stack.push_async_callback(issued_keys.close)
            await issued_keys.start()
            # The metrics close after the context, which ends the requests that are still open, and count those too.
            for component in (ledger, rate_limiter, response_store, metrics_publisher, context, shared_breakers):
                if component is not None:
                    component.start()
                    stack.push_async_callback(component.close)
            yield context, metrics_publisher, local_models


def _create_router(settings: Settings, endpoints: EndpointTable) -> tuple[Router, UpstreamPool]:
    providers = build_providers(settings)
    backends = [backend for provider in providers for backend in build_backends(provider)]
    upstream = UpstreamPool(
        connect_timeout=settings.gateway.connect_timeout,
        ssl_context=default_ssl_context() if any(backend.origin.uses_tls for backend in backends) else None,
        fast_paths=settings.fast_paths,
    )
    router = Router(
        backends,
        settings.routing.fallbacks,
        models_without_key(settings, providers),
        endpoints.paths_by_kind(),
        settings.models_by_alias,
        functools.partial(_is_served, endpoints),
    )
    return router, upstream


def _is_served(endpoints: EndpointTable, backend: Backend) -> bool:
    """Return whether a backend can serve one of the endpoints for models of its kind."""
    return any(
        endpoint.is_served_by(backend.dialect, backend.profile)
        for endpoint in endpoints.by_path.values()
        if endpoint.model_kind == backend.kind
    )


def _create_ledger(settings: Settings, router: Router) -> Ledger:
    return Ledger(
        settings.home,
        settings.ledger,
        open_state_database(settings.environ, settings.home),
        router.backends(),
        fast_paths=settings.fast_paths,
    )


def _create_keyring(settings: Settings, issued_keys: IssuedKeyCache) -> Keyring:
    console_secrets = [settings.console_key] if settings.console_key else []
    return Keyring(settings.api_keys, issued_keys, console_secrets=console_secrets)
