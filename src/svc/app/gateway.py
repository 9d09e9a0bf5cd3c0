"""Assemble the gateway from settings, and run it. All of its dependencies are created here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from uvicorn.loops.auto import auto_loop_factory

from svc import telemetry
from svc.app import descriptors, listeners
from svc.app.config_reload import ConfigReloader
from svc.app.registry import RegistryThread
from svc.app.reload_signal import ReloadSignal
from svc.app.stop_signals import StopSignals
from svc.app.voices import run_voices
from svc.client import bundles
from svc.gateway.accounting.ledger import Ledger
from svc.gateway.cache.response_cache import ResponseCache, open_cache
from svc.gateway.endpoints import load_endpoints
from svc.gateway.endpoints.admin import AdminApi
from svc.gateway.endpoints.app import create_app
from svc.gateway.endpoints.ephemeral_keys import routes as ephemeral_key_routes
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.openapi import routes as openapi_routes
from svc.gateway.endpoints.stored_responses import routes as stored_response_routes
from svc.gateway.endpoints.usage import routes as usage_routes
from svc.gateway.limits.rate_limiter import RateLimiter
from svc.gateway.limits.warm_start import warm_start_counters
from svc.gateway.local_model.provider import LocalModels, run_local_models
from svc.gateway.observability.metrics import RequestMetrics
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.prometheus import WorkerMetrics
from svc.gateway.observability.request_log import RequestLog
from svc.gateway.proxy.context import GatewayContext, create_context
from svc.gateway.proxy.tracked_request import RequestTracker
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers, models_without_key
from svc.gateway.routing.router import Router
from svc.gateway.routing.shared_breakers import SharedBreakers
from svc.gateway.server.connection import ClientConnection
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.server.uvicorn_server import GatewayServer
from svc.gateway.server.websocket import WebSocketProtocol
from svc.gateway.stored_responses.store import ResponseStore
from svc.gateway.upstream.pool import UpstreamPool, default_ssl_context
from svc.keys.cache import KEY_QUERY_TIMEOUT_SECONDS, IssuedKeyCache
from svc.security import Keyring
from svc.settings import Settings
from svc.speech.accounting import SpeechMetrics
from svc.speech.model import MODEL_DESCRIPTION_FILE_NAME
from svc.speech.model_catalog import SpeechBundleSource
from svc.speech.routes import routes as speech_routes
from svc.speech.service import SpeechService as Speech
from svc.stores.bundles.content_index import BundleContentIndex
from svc.stores.bundles.install import find_unpacked
from svc.stores.counters.redis import RedisCounters
from svc.stores.counters.shared_memory import SharedCounters
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.base import RedisClient
from svc.stores.redis.factory import connect_redis
from svc.telemetry import LineWriter

log = logging.getLogger("svc")


@dataclass(frozen=True)
class SharedCountersSlot:
    """Counters that this process shares with other workers, and its slot in them."""

    path: Path
    slot_index: int
    slot_count: int

    @property
    def metrics_dir(self) -> Path:
        """Return the folder to which workers write their metrics."""
        return self.path.with_suffix(".metrics")

    def open(self) -> SharedCounters:
        return SharedCounters(self.path, worker=self.slot_index, workers=self.slot_count)


@dataclass(frozen=True)
class ConfigReload:
    """The reaction to SIGHUP. `load_settings` reads the configuration as at the start."""

    signal: ReloadSignal
    load_settings: Callable[[], Settings]


class _ReloadableApp:
    """The current ASGI routes. A reload rebuilds them, since they depend on the configuration."""

    def __init__(
        self, build: Callable[[], Starlette], endpoints: EndpointTable, local_models: LocalModels | None = None
    ) -> None:
        self._build = build
        self.local_models = local_models
        self.endpoints = endpoints
        """The endpoints that the server handles without these routes."""
        self._app = build()

    @property
    def routes(self) -> list[BaseRoute]:
        """Return the current routes."""
        return self._app.routes

    def rebuild(self) -> None:
        self._app = self._build()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def serve_gateway(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    counters_slot: SharedCountersSlot | None = None,
    *,
    reload: ConfigReload | None = None,
) -> None:
    """Run the gateway on a bound socket until SIGINT or SIGTERM. `on_ready` gets its address once it serves."""
    writer = telemetry.configure()
    descriptors.raise_open_file_limit()
    try:
        with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(stop.run(_serve(settings, listener, on_ready, writer, counters_slot, stop, reload)))
    finally:
        writer.close()


def serve_gateway_and_registry(
    settings: Settings,
    gateway_listener: socket.socket,
    registry_listener: socket.socket,
    on_ready: Callable[[str, str], None],
    *,
    reload: ConfigReload | None = None,
) -> None:
    """Run gateway and registry in one process until SIGINT or SIGTERM. `on_ready` gets both addresses."""
    with RegistryThread(settings, registry_listener):
        serve_gateway(
            settings,
            gateway_listener,
            lambda address: on_ready(address, listeners.listener_url(registry_listener)),
            reload=reload,
        )


async def _serve(
    settings: Settings,
    listener: socket.socket,
    print_address: Callable[[str], None],
    writer: LineWriter,
    counters_slot: SharedCountersSlot | None,
    stop: StopSignals,
    reload: ConfigReload | None,
) -> None:
    async with (
        gateway_services(settings, writer, counters_slot) as (context, speech, app),
        contextlib.AsyncExitStack() as stack,
    ):
        if reload is not None:
            reloader = ConfigReloader(context, reload.load_settings, functools.partial(_apply_settings, speech, app))
            stack.push_async_callback(reloader.close)
            reload.signal.set_callback(reloader.request)
        report_address = functools.partial(_report_address, print_address, listener)
        server = create_server(context, speech, app, report_address)
        stop.set_callback(server.stop)
        await server.serve([listener])


def create_server(
    context: GatewayContext, speech: Speech, app: _ReloadableApp, on_ready: Callable[[], None]
) -> GatewayServer:
    """Return the server of the services that `gateway_services` runs."""
    return GatewayServer(_uvicorn_config(context, app), on_ready, speech.stop_sessions)


def _apply_settings(speech: Speech, app: _ReloadableApp, settings: Settings) -> None:
    speech.configure(settings)
    if app.local_models is not None:
        app.local_models.reload(settings)
    app.rebuild()


def _report_address(on_ready: Callable[[str], None], listener: socket.socket) -> None:
    on_ready(listeners.listener_url(listener))


@contextlib.asynccontextmanager
async def gateway_services(
    settings: Settings,
    writer: LineWriter,
    counters_slot: SharedCountersSlot | None = None,
    *,
    observers: Sequence[RequestObserver] = (),
) -> AsyncIterator[tuple[GatewayContext, Speech, _ReloadableApp]]:
    """Run all services of a gateway process, without its server. `observers` come after the built-in ones."""
    speech_metrics = SpeechMetrics()
    endpoints = EndpointTable(load_endpoints())
    async with (
        _database_thread(settings, "limits") as limits_database,
        _database_thread(settings, "admin") as admin_database,
        _database_thread(settings, "responses") as responses_database,
        connect_redis(settings.environ) as redis,
        open_cache(settings) as cache,
        _gateway_context(
            settings,
            writer,
            endpoints,
            limits_database,
            counters_slot,
            redis,
            cache=cache,
            response_store=ResponseStore(responses_database, prunes=settings.responses.store),
            observers=observers,
            extra_metrics=speech_metrics.values,
        ) as (context, metrics_publisher, local_models),
        _speech_service(settings, context, speech_metrics) as speech,
        run_voices(settings, context),
    ):
        routes = [
            *metrics_publisher.routes(),
            *stored_response_routes(context, admin_database),
            *usage_routes(context, admin_database),
            *ephemeral_key_routes(context),
            *AdminApi(context, admin_database, metrics_publisher).routes(),
            *openapi_routes(),
        ]
        routes = [*speech_routes(speech), *routes]
        yield (
            context,
            speech,
            _ReloadableApp(
                functools.partial(
                    create_app,
                    context,
                    endpoints,
                    routes,
                    list_degraded=metrics_publisher.list_degraded,
                    speech_models=speech.list_models,
                    local_status=local_models.runtime.status if local_models is not None else None,
                ),
                endpoints,
                local_models,
            ),
        )


@contextlib.asynccontextmanager
async def _gateway_context(
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
) -> AsyncIterator[tuple[GatewayContext, MetricsPublisher, LocalModels | None]]:
    backends: list[Backend] = []
    providers = build_providers(settings)
    for provider in providers:
        backends += build_backends(provider)
    upstream = UpstreamPool(
        connect_timeout=settings.gateway.connect_timeout,
        ssl_context=default_ssl_context() if any(backend.origin.tls for backend in backends) else None,
        fast_paths=settings.fast_paths,
    )
    router = Router(
        backends,
        settings.routing.fallbacks,
        models_without_key(settings, providers),
        endpoints.paths_by_kind(),
        settings.models_by_alias,
    )
    issued_keys = IssuedKeyCache(open_state_database(settings.environ, settings.home, KEY_QUERY_TIMEOUT_SECONDS))
    ledger = Ledger(
        settings.home,
        settings.ledger,
        open_state_database(settings.environ, settings.home),
        backends,
        fast_paths=settings.fast_paths,
    )
    counters = counters_slot.open() if counters_slot else SharedCounters()
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
        Keyring(settings.api_keys, issued_keys),
        upstream,
        ledger,
        rate_limiter,
        metrics,
        request_log,
        cache=cache,
        response_store=response_store,
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
        )
        shared_breakers = SharedBreakers(context.load_balancer, redis) if redis else None
        async with contextlib.AsyncExitStack() as stack:  # closes what was opened, even if the start fails
            stack.push_async_callback(issued_keys.close)
            await issued_keys.start()
            for component in (ledger, rate_limiter, response_store, context, shared_breakers, metrics_publisher):
                if component is not None:
                    component.start()
                    stack.push_async_callback(component.close)
            yield context, metrics_publisher, local_models


@contextlib.asynccontextmanager
async def _database_thread(settings: Settings, name: str) -> AsyncIterator[DatabaseThread]:
    thread = DatabaseThread(open_state_database(settings.environ, settings.home), name)
    try:
        yield thread
    finally:
        await thread.close()


@contextlib.asynccontextmanager
async def _speech_service(settings: Settings, context: GatewayContext, metrics: SpeechMetrics) -> AsyncIterator[Speech]:
    root = settings.registry_root
    model_catalog = SpeechBundleSource(
        functools.partial(find_unpacked, root),
        functools.partial(BundleContentIndex(root).models_with_file, MODEL_DESCRIPTION_FILE_NAME),
    )
    speech = Speech(
        settings, context.keyring, RequestTracker(context), model_catalog, _bundle_fetcher(settings), metrics=metrics
    )
    speech.find_other_endpoint = context.router.endpoint_for
    context.router.find_other_endpoint = speech.endpoint_for
    speech.start()
    try:
        yield speech
    finally:
        await speech.close()


def _bundle_fetcher(settings: Settings) -> Callable[[str], object] | None:
    """Return a function that downloads bundles from the configured registry, or None."""
    environ = settings.environ
    if not (url := environ.get("SVC_REGISTRY_URL")):
        return None
    options = bundles.ResolveOptions(
        root=settings.registry_root,
        registry=url,
        key=environ.get("SVC_REGISTRY_KEY") or environ.get("SVC_API_KEY") or None,
        trusted_keys=tuple(key.strip() for key in environ.get("SVC_TRUSTED_KEYS", "").split(",") if key.strip()),
        warn=log.warning,
    )
    return lambda reference: bundles.resolve_bundle(reference, options)


def _uvicorn_config(context: GatewayContext, app: _ReloadableApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(ClientConnection, context, app.endpoints),  # type: ignore[arg-type]
        ws=functools.partial(WebSocketProtocol, context),  # type: ignore[arg-type]
        ws_per_message_deflate=False,  # audio does not compress, and each session would use memory
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # clients can forge them, and the access log needs the peer address
        server_header=False,
        timeout_graceful_shutdown=math.ceil(context.config.current.settings.gateway.drain_timeout),
        timeout_keep_alive=int(context.config.current.settings.gateway.keep_alive),
    )
