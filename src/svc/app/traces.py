"""Start and close the export of traces, if OTEL_EXPORTER_OTLP_ENDPOINT is set."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final

from svc import plugins
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.request_content import ContentCapture
from svc.gateway.observability.request_traces import RequestTracer
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER
from svc.registry.traces import RegistryTracer
from svc.speech.work import SpeechWork
from svc.tracing.sampler import Sampler
from svc.tracing.settings import DEFAULT_SERVICE_NAME, read_trace_settings
from svc.tracing.span import AttributeValue
from svc.tracing.worker_spans import WorkerSpan, WorkerSpans

if TYPE_CHECKING:
    from svc.tracing.exporter import SpanExporter

REGISTRY_SERVICE_NAME: Final = "svc-registry"
"""The registry's `service.name` without OTEL_SERVICE_NAME."""


ExportSpeechWork = Callable[[SpeechWork], None]


@contextlib.asynccontextmanager
async def run_request_traces(
    environ: Mapping[str, str], *, has_content: bool, uses_tls: bool
) -> AsyncIterator[tuple[tuple[RequestObserver, ...], Callable[[], dict[str, float]], ExportSpeechWork | None]]:
    """Run the export of the gateway's traces.

    Yields its observers, a function that returns its metrics, and one that exports the work of speech processes.

    `uses_tls`: clients speak TLS with the gateway.
    With `has_content`, spans of sampled requests have prompts and answers.
    Without an endpoint there is no observer, so that requests cost nothing more.
    """
    async with _run_exporter(environ, DEFAULT_SERVICE_NAME) as running:
        if running is None:
            yield (), dict, None
            return
        sampler, exporter = running
        content = ContentCapture(sampler) if has_content else None
        worker_spans = WorkerSpans(exporter.add)
        tracer = RequestTracer(sampler, exporter.add, content, "https" if uses_tls else "http", worker_spans)
        yield (tracer,), exporter.values, functools.partial(_export_speech_work, worker_spans)


def _export_speech_work(spans: WorkerSpans, work: SpeechWork) -> None:
    attributes: list[tuple[str, AttributeValue]] = [
        ("gen_ai.operation.name", "speech_to_text" if work.operation == "transcribe" else "text_to_speech"),
        ("gen_ai.provider.name", LOCAL_PROVIDER),
        ("gen_ai.request.model", work.model),
        ("process.pid", work.pid),
        ("svc.request_id", work.request_id),
        ("svc.status", work.status),
        ("svc.speech.audio_seconds", work.audio_seconds),
        ("svc.speech.engine_seconds", work.engine_seconds),
        ("svc.speech.queue_seconds", work.queue_seconds),
        ("svc.speech.inferences", work.inferences),
    ]
    if work.audio_seconds > 0:
        attributes.append(("svc.speech.real_time_factor", work.engine_seconds / work.audio_seconds))
    if work.code is not None:
        attributes.append(("error.type", work.code))
    message = work.code or "error" if work.status == "error" else None
    name = f"{work.operation} {work.model}"
    spans.add_span(work.request_id, WorkerSpan(name, work.start_ns, work.end_ns, attributes, message))


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
