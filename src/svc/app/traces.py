"""Start and close the export of traces, if OTEL_EXPORTER_OTLP_ENDPOINT is set."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final

from svc import plugins
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.request_content import ContentCapture
from svc.gateway.observability.request_traces import RequestTracer
from svc.registry.traces import RegistryTracer
from svc.tracing.sampler import Sampler
from svc.tracing.settings import DEFAULT_SERVICE_NAME, read_trace_settings

if TYPE_CHECKING:
    from svc.tracing.exporter import SpanExporter

REGISTRY_SERVICE_NAME: Final = "svc-registry"
"""The registry's `service.name` without OTEL_SERVICE_NAME."""


@contextlib.asynccontextmanager
async def run_request_traces(
    environ: Mapping[str, str], *, has_content: bool, uses_tls: bool
) -> AsyncIterator[tuple[tuple[RequestObserver, ...], Callable[[], dict[str, float]]]]:
    """Run the export of the gateway's traces. Yields its observers, and a function that returns its metrics.

    `uses_tls`: clients speak TLS with the gateway.
    With `has_content`, spans of sampled requests have prompts and answers.
    Without an endpoint there is no observer, so that requests cost nothing more.
    """
    async with _run_exporter(environ, DEFAULT_SERVICE_NAME) as running:
        if running is None:
            yield (), dict
            return
        sampler, exporter = running
        content = ContentCapture(sampler) if has_content else None
        tracer = RequestTracer(sampler, exporter.add, content, "https" if uses_tls else "http")
        yield (tracer,), exporter.values


@contextlib.asynccontextmanager
async def run_registry_traces(environ: Mapping[str, str]) -> AsyncIterator[RegistryTracer | None]:
    """Run the export of the registry's traces. Yields its tracer, or None without an endpoint."""
    async with _run_exporter(environ, REGISTRY_SERVICE_NAME) as running:
        yield None if running is None else RegistryTracer(running[0], running[1].add, running[1].values)


@contextlib.asynccontextmanager
async def _run_exporter(
    environ: Mapping[str, str], service_name: str
) -> AsyncIterator[tuple[Sampler, SpanExporter] | None]:
    trace_settings = read_trace_settings(environ, service_name)
    if trace_settings is None:
        yield None
        return
    # The HTTP library of the exporter takes memory, so only a server with traces loads it.
    exporter: SpanExporter = plugins.load("tracing", "exporter").SpanExporter(trace_settings)
    exporter.start()
    try:
        yield trace_settings.create_sampler(), exporter
    finally:
        await asyncio.to_thread(exporter.close)
