"""Count the registry's requests, and render `/metrics` in the Prometheus text format. See docs/reference/metrics.md."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from svc.registry.operations import RegistryOperation, describe_request
from svc.registry.traces import RegistryTracer
from svc.telemetry import SCOPE_ERROR_CODE

_LABELED_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST"))
OTHER_METHOD: Final = "other"
"""Label of all other methods, and of requests that cannot be parsed."""
REGISTRY_BUCKETS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""The buckets of the gateway's histograms."""
REGISTRY_METRIC_HELP: Final = {
    "svc_registry_requests_total": ("counter", "Responses, by method (GET, HEAD, PUT, POST or other) and HTTP status."),
    "svc_registry_request_seconds": (
        "histogram",
        "Seconds from the request to the last byte, by operation: download, head, publish, resolve, yank or other.",
    ),
    "svc_registry_bundle_bytes_total": ("counter", "Bytes of bundles in responses that have started."),
    "svc_registry_published_total": ("counter", "Bundles published at this registry."),
    "svc_registry_bundles": ("gauge", "Bundles in the store, including yanked ones."),
    "svc_trace_spans_exported_total": ("counter", "Spans that the collector accepted."),
    "svc_trace_spans_dropped_total": ("counter", "Spans dropped, by reason: queue_full or export_failed."),
}


class _Durations:
    """The histogram of one operation."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.counts = [0] * (len(REGISTRY_BUCKETS_SECONDS) + 1)

    def render(self, name: str, operation: str) -> list[str]:
        lines, total = [], 0
        for bound, count in zip((*REGISTRY_BUCKETS_SECONDS, "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{operation="{operation}",le="{bound}"}} {total}')
        return [
            *lines,
            f'{name}_sum{{operation="{operation}"}} {self.seconds}',
            f'{name}_count{{operation="{operation}"}} {total}',
        ]


class RegistryCounters:
    """The counters of one server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.bundle_bytes = 0
        self.published = 0
        self._durations: dict[RegistryOperation, _Durations] = {}

    def record_duration(self, operation: RegistryOperation, seconds: float) -> None:
        """Count a complete response."""
        durations = self._durations.setdefault(operation, _Durations())
        durations.seconds += seconds
        durations.counts[bisect_left(REGISTRY_BUCKETS_SECONDS, seconds)] += 1

    def render(self, bundles: int, trace_values: dict[str, float]) -> str:
        """Render the page with the number of bundles in the store, and the metrics of the span exporter."""
        values: dict[str, float] = {
            "svc_registry_bundle_bytes_total": self.bundle_bytes,
            "svc_registry_published_total": self.published,
            "svc_registry_bundles": bundles,
            **trace_values,
        }
        lines: list[str] = []
        for name, (kind, help_text) in REGISTRY_METRIC_HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            if name == "svc_registry_requests_total":
                lines += [
                    f'{name}{{method="{method}",status="{status}"}} {count}'
                    for (method, status), count in sorted(self.requests.items())
                ]
            elif name == "svc_registry_request_seconds":
                for operation, durations in sorted(self._durations.items()):
                    lines += durations.render(name, operation)
            else:
                lines += [f"{key} {value}" for key, value in values.items() if key.partition("{")[0] == name]
        return "\n".join(lines) + "\n"


class RequestCounterMiddleware:
    """Counts the responses of the ASGI application, and makes their spans."""

    def __init__(self, app: ASGIApp, counters: RegistryCounters, tracer: RegistryTracer | None) -> None:
        self._app = app
        self._counters = counters
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path, started_at = scope["method"], scope["path"], time.monotonic()
        described = describe_request(method, path)
        span = None
        if self._tracer is not None:
            client = scope.get("client")
            span = self._tracer.start(method, path, described, scope["headers"], client[0] if client else None)
        is_complete = False

        async def receive_and_count() -> Message:
            message = await receive()
            if span is not None:
                span.request_bytes += len(message.get("body", b""))
            return message

        async def send_and_count(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                self._counters.requests[method if method in _LABELED_METHODS else OTHER_METHOD, message["status"]] += 1
                if span is not None:
                    span.http_status = message["status"]
                    span.code = scope.get(SCOPE_ERROR_CODE)
            elif span is not None:
                span.response_bytes += len(message.get("body", b""))
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last:
                is_complete = True
                self._counters.record_duration(described.operation, time.monotonic() - started_at)
            await send(message)

        try:
            await self._app(scope, receive if span is None else receive_and_count, send_and_count)
        finally:
            if span is not None:
                span.finish(is_complete=is_complete)
