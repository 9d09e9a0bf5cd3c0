"""Makes a server span of each sampled request of the registry. docs/reference/traces.md lists the attributes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from svc.registry.operations import DescribedRequest
from svc.tracing.sampler import SampledTrace, Sampler, generate_span_id
from svc.tracing.span import SPAN_KIND_SERVER, AttributeValue, SharedAttributes, Span

_TRACE_HEADERS = frozenset((b"traceparent", b"tracestate"))
_NO_ATTRIBUTES = SharedAttributes(())


class RegistryTracer:
    """Starts the spans of sampled requests, and passes them to an exporter when they end."""

    def __init__(
        self, sampler: Sampler, add: Callable[[RegistrySpan], bool], values: Callable[[], dict[str, float]]
    ) -> None:
        self._sample = sampler.sample
        self._add = add
        self.values = values
        """Returns the metrics of the exporter by their rendered names."""

    def start(
        self,
        method: str,
        path: str,
        described: DescribedRequest,
        headers: Iterable[tuple[bytes, bytes]],
        client_address: str | None,
    ) -> RegistrySpan | None:
        """Start the span of a request. Return None if it is not sampled, or concerns no bundle."""
        if described.operation == "other":
            return None
        context = b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] in _TRACE_HEADERS])
        trace = self._sample(context)
        return None if trace is None else RegistrySpan(self._add, trace, method, path, described, client_address)


class RegistrySpan:
    """The span of a request in flight. `build_spans` runs on the exporter's thread."""

    span_count = 1

    def __init__(
        self,
        add: Callable[[RegistrySpan], bool],
        trace: SampledTrace,
        method: str,
        path: str,
        described: DescribedRequest,
        client_address: str | None,
    ) -> None:
        self._add = add
        self._trace = trace
        self._method = method
        self._path = path
        self._described = described
        self._client_address = client_address
        self._start_ns = time.time_ns()
        self._started_at = time.monotonic()
        self._duration_seconds = 0.0
        self._status = "ok"
        self._is_done = False
        self.http_status = 0
        """The status of the response, or 0 before its head."""
        self.request_bytes = 0
        self.response_bytes = 0
        self.code: str | None = None
        """The code of the error."""

    def finish(self, *, is_complete: bool = True) -> None:
        """End the span, once. It is not complete if the client disconnected."""
        if self._is_done:
            return
        self._is_done = True
        self._duration_seconds = time.monotonic() - self._started_at
        if not is_complete:
            self._status = "client_closed"
        elif self.http_status >= 400:
            self._status = "error"
        self._add(self)

    def build_spans(self) -> list[Span]:
        """Return the span."""
        described = self._described
        attributes: list[tuple[str, AttributeValue]] = [
            ("http.request.method", self._method),
            ("http.route", described.route),
            ("url.path", self._path),
            ("url.scheme", "http"),
            ("svc.operation", described.operation),
            ("svc.status", self._status),
            ("http.response.body.size", self.response_bytes),
        ]
        if self.http_status:
            attributes.append(("http.response.status_code", self.http_status))
        if described.bundle:
            attributes.append(("svc.bundle", described.bundle))
        if described.platform:
            attributes.append(("svc.platform", described.platform))
        if self.request_bytes:
            attributes.append(("http.request.body.size", self.request_bytes))
        if self._client_address is not None:
            attributes.append(("client.address", self._client_address))
        if self.code is not None:
            attributes.append(("error.type", self.code))
        span = Span(
            f"{self._method} {described.route}",
            SPAN_KIND_SERVER,
            self._trace.trace_id,
            generate_span_id(),
            self._trace.parent_id,
            self._trace.trace_state,
            self._start_ns,
            self._start_ns + int(self._duration_seconds * 1e9),
            _NO_ATTRIBUTES,
            attributes,
            (self.code or "error") if self.http_status >= 500 else None,
        )
        return [span]
