"""Assemble all services of a gateway process and its routes, without its server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from starlette.routing import BaseRoute

from svc.app.context import run_context
from svc.app.counters_slot import SharedCountersSlot
from svc.app.log_files import reopened
from svc.app.pipeline_routes import PipelineApi
from svc.app.reloadable_app import ReloadableApp
from svc.app.traces import run_request_traces
from svc.app.voices import run_voices
from svc.client import bundles
from svc.console.assets import ConsoleAssets
from svc.console.sessions import LoginLinks, SessionApi
from svc.console.trusted_proxies import TrustedProxies
from svc.errors import UsageError
from svc.gateway.cache.response_cache import open_cache
from svc.gateway.endpoints import load_endpoints
from svc.gateway.endpoints.admin import AdminApi
from svc.gateway.endpoints.app import create_app
from svc.gateway.endpoints.bundle_access import BundleAccess
from svc.gateway.endpoints.bundles import BundleApi
from svc.gateway.endpoints.ephemeral_keys import routes as ephemeral_key_routes
from svc.gateway.endpoints.events import EventPublisher
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.openapi import routes as openapi_routes
from svc.gateway.endpoints.overview import routes as overview_routes
from svc.gateway.endpoints.providers import ProviderApi
from svc.gateway.endpoints.requests import RequestsApi
from svc.gateway.endpoints.stored_responses import routes as stored_response_routes
from svc.gateway.endpoints.uploads import UploadApi
from svc.gateway.endpoints.usage import routes as usage_routes
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.refusals import REFUSALS_FOLDER, RefusalLog
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.proxy.tracked_request import RequestTracker
from svc.gateway.server.endpoint_table import EndpointTable
from svc.gateway.stored_responses.store import ResponseStore
from svc.ledger_queries.process import QueryProcess
from svc.line_output import RotatedFile
from svc.settings import Settings
from svc.speech.metrics import SpeechMetrics
from svc.speech.model import MODEL_DESCRIPTION_FILE_NAME
from svc.speech.model_catalog import SpeechBundleSource
from svc.speech.routes import routes as speech_routes
from svc.speech.service import SpeechService
from svc.stores.bundles.content_index import BundleContentIndex
from svc.stores.bundles.factory import open_store
from svc.stores.bundles.install import find_unpacked
from svc.stores.database.factory import open_state_database
from svc.stores.database.thread import DatabaseThread
from svc.stores.redis.factory import connect_redis
from svc.telemetry import LineWriter

log = logging.getLogger("svc")


@contextlib.asynccontextmanager
async def gateway_services(
    settings: Settings,
    writer: LineWriter,
    counters_slot: SharedCountersSlot | None = None,
    *,
    observers: Sequence[RequestObserver] = (),
    login_links: LoginLinks | None = None,
    registry_url: str | None = None,
) -> AsyncIterator[tuple[GatewayContext, SpeechService, ReloadableApp]]:
    """Run all services of a gateway process, without its server. `observers` come after the built-in ones."""
    speech_metrics = SpeechMetrics()
    role = settings.gateway.role
    endpoints = EndpointTable(load_endpoints(), are_served=role != "admin")
    async with (
        _database_thread(settings, "limits") as limits_database,
        _database_thread(settings, "admin") as admin_database,
        _database_thread(settings, "responses") as responses_database,
        contextlib.aclosing(QueryProcess(settings.environ, settings.home)) as queries,
        _refusal_log(settings) as refusals,
        connect_redis(settings.environ) as redis,
        run_request_traces(
            settings.environ,
            has_content=settings.telemetry.content,
            uses_tls=settings.gateway.tls_cert is not None,
        ) as (
            trace_observers,
            trace_metrics,
            export_speech_work,
        ),
        _access_log_writer(settings, writer) as access_log_writer,
        open_cache(settings) as cache,
        run_context(
            settings,
            access_log_writer,
            endpoints,
            limits_database,
            counters_slot,
            redis,
            cache=cache,
            response_store=ResponseStore(responses_database, prunes=settings.responses.store),
            observers=(refusals, *trace_observers, *observers),
            extra_metrics=lambda: {**speech_metrics.values(), **trace_metrics()},
            extra_histograms=speech_metrics.histograms,
        ) as (context, metrics_publisher, local_models),
        _speech_service(settings, context, speech_metrics) as speech,
        run_voices(settings, context, speech_metrics) as voices,
        contextlib.aclosing(EventPublisher(context, queries, metrics_publisher)) as events,
        contextlib.aclosing(_bundle_access(settings, registry_url)) as bundle_access,
    ):
        if export_speech_work is not None:
            speech_metrics.on_work = export_speech_work
        data_routes = [
            *speech_routes(speech, voices.list_entries),
            *stored_response_routes(context, admin_database),
            *ephemeral_key_routes(context),
        ]
        admin_routes = [
            *_usage_routes(context, queries, refusals, metrics_publisher),
            *events.routes(),
            *_admin_routes(context, admin_database, queries, metrics_publisher, bundle_access),
            *_console_routes(settings, context, login_links),
        ]
        routes = [
            *metrics_publisher.routes(),
            *openapi_routes(),
            *(data_routes if role != "admin" else []),
            *(admin_routes if role != "data" else []),
        ]
        yield (
            context,
            speech,
            ReloadableApp(
                functools.partial(
                    create_app,
                    context,
                    endpoints,
                    routes,
                    other_role_routes={"all": [], "data": admin_routes, "admin": data_routes}[role],
                    list_degraded=metrics_publisher.list_degraded,
                    speech_models=speech.list_models,
                    local_status=local_models.runtime.status if local_models is not None else None,
                ),
                endpoints,
                events.stop,
                local_models,
            ),
        )


def _usage_routes(
    context: GatewayContext,
    queries: QueryProcess,
    refusals: RefusalLog,
    metrics_publisher: MetricsPublisher,
) -> list[BaseRoute]:
    return [
        *usage_routes(context, queries),
        *RequestsApi(context, queries, refusals).routes(),
        *overview_routes(context, queries, metrics_publisher),
    ]


def _admin_routes(
    context: GatewayContext,
    database: DatabaseThread,
    queries: QueryProcess,
    metrics_publisher: MetricsPublisher,
    bundle_access: BundleAccess,
) -> list[BaseRoute]:
    return [
        *AdminApi(context, database, queries, metrics_publisher).routes(),
        *ProviderApi(context, metrics_publisher, load_endpoints()).routes(),
        *BundleApi(context, bundle_access).routes(),
        *UploadApi(context, bundle_access).routes(),
        *PipelineApi(context).routes(),
    ]


def _console_routes(settings: Settings, context: GatewayContext, login_links: LoginLinks | None) -> list[BaseRoute]:
    if not settings.console.enabled:
        return []
    try:
        trusted_proxies = TrustedProxies(settings.gateway.trusted_proxies)
    except ValueError as error:
        raise UsageError(f"trusted_proxies in [gateway]: {error}.") from error
    sessions = SessionApi(context.keyring, trusted_proxies, login_links, context.rate_limiter.count_attempt)
    return [*sessions.routes(), *ConsoleAssets().routes()]


@contextlib.asynccontextmanager
async def _database_thread(settings: Settings, name: str) -> AsyncIterator[DatabaseThread]:
    thread = DatabaseThread(open_state_database(settings.environ, settings.home), name)
    try:
        yield thread
    finally:
        await thread.close()


@contextlib.asynccontextmanager
async def _access_log_writer(settings: Settings, log_writer: LineWriter) -> AsyncIterator[LineWriter]:
    """Yield the writer of the file for the access log, or `log_writer` if there is none."""
    path = settings.telemetry.access_log_file
    if path is None:
        yield log_writer
        return
    file = _open_access_log(path)
    writer = LineWriter(file, settings.telemetry.log)
    try:
        with reopened(writer):
            yield writer
    finally:
        await asyncio.to_thread(writer.close)
        file.close()


def _open_access_log(path: str) -> RotatedFile:
    try:
        return RotatedFile(Path(path).expanduser())
    except OSError as error:
        raise UsageError(f"telemetry.access_log_file: {path} cannot be written: {error.strerror}.") from error


@contextlib.asynccontextmanager
async def _refusal_log(settings: Settings) -> AsyncIterator[RefusalLog]:
    refusals = RefusalLog(settings.home / REFUSALS_FOLDER)
    refusals.start()
    try:
        yield refusals
    finally:
        await refusals.close()


@contextlib.asynccontextmanager
async def _speech_service(
    settings: Settings, context: GatewayContext, metrics: SpeechMetrics
) -> AsyncIterator[SpeechService]:
    root = settings.registry_root
    model_catalog = SpeechBundleSource(
        functools.partial(find_unpacked, root),
        functools.partial(BundleContentIndex(root).models_with_file, MODEL_DESCRIPTION_FILE_NAME),
    )
    speech = SpeechService(
        settings, context.keyring, RequestTracker(context), model_catalog, _bundle_fetcher(settings), metrics=metrics
    )
    speech.find_other_endpoint = context.router.endpoint_for
    context.router.find_other_endpoint = speech.endpoint_for
    if settings.gateway.role != "admin":
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
        trusted_keys=bundles.read_trusted_keys(environ),
        warn=log.warning,
    )
    return lambda reference: bundles.resolve_bundle(reference, options)


def _bundle_access(settings: Settings, registry_url: str | None) -> BundleAccess:
    return BundleAccess(
        functools.partial(open_store, settings.registry_root, settings.environ),
        bundles.read_trusted_keys(settings.environ),
        registry_url or settings.environ.get("SVC_REGISTRY_URL") or None,
    )
