"""Joins the span of a worker process with the request that it belongs to, whichever of the two ends first.

Only sampled requests are joined. Both tables are bounded: their oldest entries are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from svc.tracing.sampler import SampledTrace, generate_span_id
from svc.tracing.span import SPAN_KIND_INTERNAL, Attributes, SharedAttributes, Span

MAX_UNJOINED_REQUESTS: Final = 1024
"""Requests that are kept for later spans, and requests whose spans wait for their end."""
MAX_WAITING_SPANS: Final = 64
"""Spans of one request that wait for its end."""
_NO_SHARED_ATTRIBUTES: Final = SharedAttributes(())


class WorkerSpan:
    """The span of a worker. `build_spans` runs on the exporter's thread, after `set_parent`."""

    span_count = 1

    def __init__(
        self, name: str, start_ns: int, end_ns: int, attributes: Attributes, error_message: str | None
    ) -> None:
        self._name, self._start_ns, self._end_ns = name, start_ns, end_ns
        self._attributes, self._error_message = attributes, error_message
        self._trace = SampledTrace(b"")
        self._parent_id = b""

    def set_parent(self, trace: SampledTrace, parent_id: bytes) -> None:
        """Make the span a child of a span of this trace."""
        self._trace, self._parent_id = trace, parent_id

    def build_spans(self) -> list[Span]:
        """Return the span."""
        span = Span(
            self._name,
            SPAN_KIND_INTERNAL,
            self._trace.trace_id,
            generate_span_id(),
            self._parent_id,
            self._trace.trace_state,
            self._start_ns,
            self._end_ns,
            _NO_SHARED_ATTRIBUTES,
            self._attributes,
            self._error_message,
        )
        return [span]


class WorkerSpans:
    """Exports the spans of workers for sampled requests. Belongs to the event loop."""

    def __init__(self, add: Callable[[WorkerSpan], bool]) -> None:
        self._add = add
        self._requests: OrderedDict[str, tuple[SampledTrace, bytes]] = OrderedDict()
        """The trace and the span of each sampled request that has ended, by request id."""
        self._spans: OrderedDict[str, list[WorkerSpan]] = OrderedDict()
        """The spans of requests that have not ended, or are not sampled."""

    def add_span(self, request_id: str, span: WorkerSpan) -> None:
        """Export the span of a request, when the request ends if it has not."""
        if (request := self._requests.get(request_id)) is not None:
            span.set_parent(*request)
            self._add(span)
            return
        spans = self._spans.setdefault(request_id, [])
        if len(spans) < MAX_WAITING_SPANS:
            spans.append(span)
        if len(self._spans) > MAX_UNJOINED_REQUESTS:
            self._spans.popitem(last=False)

    def add_request(self, request_id: str, trace: SampledTrace, parent_id: bytes) -> None:
        """Export the spans of a sampled request that has ended, also those that follow."""
        for span in self._spans.pop(request_id, ()):
            span.set_parent(trace, parent_id)
            self._add(span)
        self._requests[request_id] = (trace, parent_id)
        if len(self._requests) > MAX_UNJOINED_REQUESTS:
            self._requests.popitem(last=False)
