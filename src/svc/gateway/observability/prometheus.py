"""Sums the metrics of all workers and renders them for Prometheus. docs/reference/metrics.md lists the names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from svc.gateway.observability.genai_names import operation_of, provider_name_of
from svc.gateway.observability.metrics import escape_label, format_model_labels
from svc.gateway.observability.series import (
    LATENCY_BUCKETS_SECONDS,
    OPERATION_BUCKETS_SECONDS,
    TOKEN_BUCKETS,
    AttemptSeries,
    LastError,
    MetricsSnapshot,
    OperationSeries,
    RequestSeries,
)
from svc.gateway.routing.circuit_breaker import worst_state
from svc.resilience import BreakerState
from svc.wire.histogram import HistogramSeries

STALE_SNAPSHOT_SECONDS: Final = 5.0
METRIC_HELP: Final = {
    "svc_requests_total": ("counter", "Completed requests, by provider, model, status and HTTP status."),
    "svc_errors_total": ("counter", "Responses and streams that ended with an error, by error code."),
    "svc_request_seconds": ("histogram", "Seconds from the request to the last byte, by provider and model."),
    "svc_first_byte_seconds": ("histogram", "Seconds from the request to the first byte, by provider and model."),
    "svc_prompt_tokens_total": ("counter", "Prompt tokens, by provider and model."),
    "svc_completion_tokens_total": ("counter", "Completion tokens, by provider and model."),
    "svc_cost_usd_total": ("counter", "Cost in USD where the price is known, by provider and model."),
    "svc_attempts_total": ("counter", "Attempts at providers, by provider, model, outcome and error code."),
    "svc_attempt_seconds": ("histogram", "Seconds from start to end of an attempt, by provider, model and outcome."),
    "gen_ai_client_operation_duration_seconds": (
        "histogram",
        "Seconds of an attempt, with the labels of OpenTelemetry's conventions: operation, provider, model and error.",
    ),
    "gen_ai_client_token_usage": (
        "histogram",
        "Tokens of a request, with the labels of OpenTelemetry's conventions: operation, provider, model, token type.",
    ),
    "svc_retries_total": ("counter", "Attempts after the first of a request, by provider and model of the attempt."),
    "svc_fallbacks_total": ("counter", "Requests that a model other than the requested one served."),
    "svc_limits_reached_total": (
        "counter",
        "Requests rejected by a limit: rpm, tpm, concurrency, budget, queue, upstream.",
    ),
    "svc_cache_hits_total": ("counter", "Requests served from the cache."),
    "svc_cache_misses_total": ("counter", "Requests whose response was not in the cache."),
    "svc_cache_bytes": ("gauge", "Bytes of cached responses in memory."),
    "svc_breaker_open": ("gauge", "1 while the circuit breaker of a provider and model is not closed."),
    "svc_open_requests": ("gauge", "Requests in flight."),
    "svc_open_streams": ("gauge", "Chat streams in flight."),
    "svc_open_connections": ("gauge", "Open client connections."),
    "svc_upstream_connections": ("gauge", "Open connections to providers."),
    "svc_tasks": ("gauge", "Tasks of the event loop. A request has no task of its own."),
    "svc_journal_lag_seconds": ("gauge", "Seconds since the journal was last written to the database completely."),
    "svc_journals_left_alone": ("gauge", "Journals that this user may not read: another user started a gateway."),
    "svc_journal_lost_total": ("counter", "Ledger entries lost because the journal was full."),
    "svc_log_lines_dropped_total": ("counter", "Access log lines dropped because of a slow reader or a full disk."),
    "svc_trace_spans_exported_total": ("counter", "Spans that the collector accepted."),
    "svc_trace_spans_dropped_total": ("counter", "Spans dropped, by reason: queue_full or export_failed."),
    "svc_speech_sessions": ("gauge", "Open live speech sessions."),
    "svc_speech_session_seconds": ("histogram", "Seconds of a live speech session, from its start to its end."),
    "svc_speech_requests_total": ("counter", "Speech requests, by kind: stream, upload or synthesis (local voices)."),
    "svc_speech_errors_total": ("counter", "Errors sent to speech clients, by error code."),
    "svc_speech_audio_seconds_total": ("counter", "Seconds of audio that speech models received."),
    "svc_speech_spoken_seconds_total": ("counter", "Seconds of audio that voices of this machine made."),
    "svc_speech_queue_seconds": (
        "histogram",
        "Seconds that an inference of a speech worker, or a text for a voice, waited for a thread, by model.",
    ),
    "svc_speech_decode_seconds": ("histogram", "Seconds of an inference of a speech worker, by model."),
    "svc_speech_synthesis_seconds": ("histogram", "Seconds that a voice needed for a text, by model."),
    "svc_speech_real_time_factor": (
        "histogram",
        "Seconds of the engine per second of audio, for each stream of audio and each spoken text, by model.",
    ),
    "svc_speech_workers": ("gauge", "Running speech worker processes."),
    "svc_speech_workers_lost_total": ("counter", "Speech worker processes that died during sessions."),
    "svc_degraded": ("gauge", "1 while a component is degraded: keys, ledger, journal or redis."),
}


class WorkerMetrics:
    """Exchanges metrics between workers through files in a folder. The folder is None for a single process."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"metrics-{name}.json" if folder else None

    def write(self, snapshot: MetricsSnapshot) -> None:
        """Write a snapshot for the other workers. Blocks briefly, for a few kilobytes once a second."""
        if self._path is not None:
            temporary_path = self._path.with_suffix(".part")
            with contextlib.suppress(OSError):
                temporary_path.write_bytes(msgspec.json.encode(snapshot))
                temporary_path.replace(self._path)

    def aggregate(self, own_snapshot: MetricsSnapshot) -> MetricsSnapshot:
        """Return the sum of the metrics of all workers."""
        snapshots = [own_snapshot, *self._other_snapshots()]
        series: dict[tuple[str, str, str, str], RequestSeries] = {}
        attempts: dict[tuple[str, str, str, str], AttemptSeries] = {}
        values: dict[str, float] = {}
        breakers: dict[str, BreakerState] = {}
        recent: dict[tuple[str, str, str, str], AttemptSeries] = {}
        operations: dict[tuple[str, str, str, str], OperationSeries] = {}
        last_errors: dict[str, LastError] = {}
        histograms: dict[tuple[str, tuple[tuple[str, str], ...]], HistogramSeries] = {}
        for snapshot in snapshots:
            for attempt_series in snapshot.recent:
                recent.setdefault(attempt_series.labels, AttemptSeries(attempt_series.labels)).merge(attempt_series)
            for histogram in snapshot.histograms:
                key = (histogram.name, histogram.labels)
                histograms.setdefault(key, HistogramSeries(*key, histogram.bounds)).merge(histogram)
            for name, error in snapshot.last_errors.items():
                if name not in last_errors or last_errors[name].time < error.time:
                    last_errors[name] = error
            for name, state in snapshot.breakers.items():
                breakers[name] = worst_state((state, breakers.get(name, "closed")))
            for request_series in snapshot.series:
                if request_series.labels in series:
                    series[request_series.labels].merge(request_series)
                else:
                    series[request_series.labels] = msgspec.convert(msgspec.to_builtins(request_series), RequestSeries)
            for attempt_series in snapshot.attempts:
                attempts.setdefault(attempt_series.labels, AttemptSeries(attempt_series.labels)).merge(attempt_series)
            for operation in snapshot.operations:
                operations.setdefault(operation.labels, OperationSeries(operation.labels)).merge(operation)
            for name, value in snapshot.values.items():
                takes_maximum = any(part in name for part in ("_lag_", "_degraded", "_breaker_"))
                values[name] = max(values.get(name, 0.0), value) if takes_maximum else values.get(name, 0.0) + value
        return MetricsSnapshot(
            list(series.values()),
            list(attempts.values()),
            values,
            breakers,
            list(recent.values()),
            last_errors,
            list(operations.values()),
            list(histograms.values()),
        )

    def _other_snapshots(self) -> Iterable[MetricsSnapshot]:
        if self._folder is None:
            return
        for path in self._folder.glob("metrics-*.json"):
            if path != self._path:
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    snapshot = msgspec.json.decode(path.read_bytes(), type=MetricsSnapshot)
                    # The worker has exited: counters stay, gauges do not.
                    if time.time() - path.stat().st_mtime > STALE_SNAPSHOT_SECONDS:
                        snapshot.values = {name: value for name, value in snapshot.values.items() if "_total" in name}
                        snapshot.breakers = {}
                        snapshot.recent = []
                    yield snapshot


def _format_number(value: float) -> str:
    """Format a value with as many digits as it needs: a counter of tokens can exceed 10 digits."""
    return f"{value:.15g}"


def render_prometheus(snapshot: MetricsSnapshot) -> str:
    """Return the metrics in the Prometheus text format, version 0.0.4."""
    lines: list[str] = []
    for name, (kind, help_text) in METRIC_HELP.items():
        rows = list(_RENDERERS.get(name, _render_metric)(name, snapshot))
        if rows:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(lines) + "\n"


_SUMMED_FIELDS: Final = {
    "svc_prompt_tokens_total": "prompt_tokens",
    "svc_completion_tokens_total": "completion_tokens",
    "svc_cost_usd_total": "cost_usd",
    "svc_fallbacks_total": "fallbacks",
}


def _render_metric(name: str, snapshot: MetricsSnapshot) -> Iterable[str]:
    if name == "svc_requests_total":
        for request_series in snapshot.series:
            provider, model, status, http_status = request_series.labels
            labels = f'{format_model_labels(provider, model)},status="{status}",http_status="{http_status}"'
            yield f"{name}{{{labels}}} {request_series.requests}"
    elif name in ("svc_request_seconds", "svc_first_byte_seconds"):
        for (provider, model), request_series in _sum_by_model(snapshot).items():
            is_first_byte = name == "svc_first_byte_seconds"
            counts, total = (
                (request_series.first, request_series.first_seconds)
                if is_first_byte
                else (request_series.latency, request_series.seconds)
            )
            yield from _render_histogram(name, format_model_labels(provider, model), counts, total)
    elif name in _SUMMED_FIELDS:
        for (provider, model), request_series in _sum_by_model(snapshot).items():
            if provider:
                total = getattr(request_series, _SUMMED_FIELDS[name])
                yield f"{name}{{{format_model_labels(provider, model)}}} {_format_number(total)}"
    else:
        for labelled_name, value in snapshot.values.items():
            if labelled_name.partition("{")[0] == name:
                yield f"{labelled_name} {_format_number(value)}"


def _render_attempt_metric(name: str, snapshot: MetricsSnapshot) -> Iterable[str]:
    if name == "svc_attempts_total":
        for attempt_series in snapshot.attempts:
            provider, model, outcome, code = attempt_series.labels
            labels = f'{format_model_labels(provider, model)},outcome="{outcome}"' + (f',code="{code}"' if code else "")
            yield f"{name}{{{labels}}} {attempt_series.attempts}"
        return
    by_outcome: dict[tuple[str, str, str], AttemptSeries] = {}
    for attempt_series in snapshot.attempts:
        by_outcome.setdefault(attempt_series.labels[:3], AttemptSeries(attempt_series.labels)).merge(attempt_series)
    for (provider, model, outcome), attempt_series in by_outcome.items():
        labels = f'{format_model_labels(provider, model)},outcome="{outcome}"'
        yield from _render_histogram(name, labels, attempt_series.latency, attempt_series.seconds)


def _render_operation_durations(name: str, snapshot: MetricsSnapshot) -> Iterable[str]:
    for (*target, error_type), operation in _sum_by_operation(snapshot).items():
        labels = _format_operation_labels(*target) + (f',error_type="{error_type}"' if error_type else "")
        if any(operation.durations):
            yield from _render_histogram(
                name, labels, operation.durations, operation.seconds, OPERATION_BUCKETS_SECONDS
            )


def _render_token_usage(name: str, snapshot: MetricsSnapshot) -> Iterable[str]:
    for (*target, _), operation in _sum_by_operation(snapshot).items():
        for token_type, counts, total in (
            ("input", operation.inputs, operation.input_tokens),
            ("output", operation.outputs, operation.output_tokens),
        ):
            labels = f'{_format_operation_labels(*target)},gen_ai_token_type="{token_type}"'
            if any(counts):
                yield from _render_histogram(name, labels, counts, total, TOKEN_BUCKETS)


def _format_operation_labels(operation: str, provider: str, model: str) -> str:
    return (
        f'gen_ai_operation_name="{operation}",gen_ai_provider_name="{escape_label(provider)}"'
        f',gen_ai_request_model="{escape_label(model)}"'
    )


def _sum_by_operation(snapshot: MetricsSnapshot) -> dict[tuple[str, str, str, str], OperationSeries]:
    """Return the sums by operation, provider, model and error type."""
    sums: dict[tuple[str, str, str, str], OperationSeries] = {}
    for series in snapshot.operations:
        endpoint, provider, model, error_type = series.labels
        labels = (operation_of(endpoint), provider_name_of(provider), model, error_type)
        sums.setdefault(labels, OperationSeries(labels)).merge(series)
    return sums


def _sum_by_model(snapshot: MetricsSnapshot) -> dict[tuple[str, str], RequestSeries]:
    sums: dict[tuple[str, str], RequestSeries] = {}
    for request_series in snapshot.series:
        labels = request_series.labels[:2]
        sums.setdefault(labels, RequestSeries((*labels, "", ""))).merge(request_series)
    return sums


def _render_histogram(
    name: str, labels: str, counts: list[int], total: float, buckets: Sequence[float] = LATENCY_BUCKETS_SECONDS
) -> Iterable[str]:
    running = 0
    separated = f"{labels}," if labels else ""
    for limit, count in zip((*buckets, None), counts, strict=True):
        running += count
        upper_bound = "+Inf" if limit is None else f"{limit:.10g}"
        yield f'{name}_bucket{{{separated}le="{upper_bound}"}} {running}'
    braced = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{braced} {_format_number(total)}"
    yield f"{name}_count{braced} {running}"


def _render_extra_histograms(name: str, snapshot: MetricsSnapshot) -> Iterable[str]:
    for histogram in snapshot.histograms:
        if histogram.name == name:
            labels = ",".join([f'{label}="{escape_label(value)}"' for label, value in histogram.labels])
            yield from _render_histogram(name, labels, histogram.counts, histogram.total, histogram.bounds)


_RENDERERS: Final[Mapping[str, Callable[[str, MetricsSnapshot], Iterable[str]]]] = {
    "svc_attempts_total": _render_attempt_metric,
    "svc_attempt_seconds": _render_attempt_metric,
    "gen_ai_client_operation_duration_seconds": _render_operation_durations,
    "gen_ai_client_token_usage": _render_token_usage,
    "svc_speech_session_seconds": _render_extra_histograms,
    "svc_speech_queue_seconds": _render_extra_histograms,
    "svc_speech_decode_seconds": _render_extra_histograms,
    "svc_speech_synthesis_seconds": _render_extra_histograms,
    "svc_speech_real_time_factor": _render_extra_histograms,
}
"""Functions for metrics that `_render_metric` does not render."""
