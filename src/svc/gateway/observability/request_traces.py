"""Makes spans of completed requests: a server span, and a client span for each attempt at a provider.

The names are those of OpenTelemetry's conventions for HTTP and for generative AI. docs/reference/traces.md lists them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Final

from svc.gateway.accounting.record import ATTEMPT_OUTCOME_LABELS, AttemptRecord, RequestRecord
from svc.gateway.observability.genai_messages import describe_content
from svc.gateway.observability.genai_names import operation_of, provider_name_of
from svc.gateway.observability.observer import RequestObserver
from svc.gateway.observability.request_content import ContentCapture, RequestContent
from svc.tracing.sampler import SampledTrace, Sampler, generate_span_id
from svc.tracing.span import SPAN_KIND_CLIENT, SPAN_KIND_SERVER, AttributeValue, SharedAttributes, Span
from svc.tracing.worker_spans import WorkerSpans
from svc.wire.key import ApiKey
from svc.wire.speech import LIVE_TRANSCRIPTION_PATH

_MAX_ERROR_CHARS: Final = 300
_SPEECH_PATHS: Final = "/v1/audio/"
_CLIENT_FIELD_START: Final = b',"client":"'


class RequestTracer(RequestObserver):
    """Passes sampled requests to an exporter. A request that is not sampled costs one method call."""

    def __init__(
        self,
        sampler: Sampler,
        add: Callable[[RequestTrace], bool],
        content: ContentCapture | None = None,
        url_scheme: str = "http",
        worker_spans: WorkerSpans | None = None,
    ) -> None:
        self._sample = sampler.sample
        self._add = add
        self.content = content
        """Keeps prompts and answers. None leaves them out of the spans."""
        self._url_scheme = url_scheme
        self._worker_spans = worker_spans

    def on_end(self, record: RequestRecord) -> None:
        content = self.content.take(record.request_id) if self.content is not None else None
        trace = self._sample(record.trace_context) if content is None else content.trace
        if trace is not None:
            request = RequestTrace(trace, record, time.time_ns(), time.monotonic(), self._url_scheme, content)
            if self._worker_spans is not None and record.endpoint.startswith(_SPEECH_PATHS):
                self._worker_spans.add_request(record.request_id, trace, request.set_worker_parent())
            if not self._add(request) and content is not None:
                content.cancel()


class RequestTrace:
    """A sampled request. `build_spans` runs on the exporter's thread."""

    __slots__ = (
        "_attempts",
        "_content",
        "_ended_at",
        "_ended_ns",
        "_record",
        "_trace",
        "_url_scheme",
        "_worker_parent_id",
        "span_count",
    )

    def __init__(
        self,
        trace: SampledTrace,
        record: RequestRecord,
        ended_ns: int,
        ended_at: float,
        url_scheme: str,
        content: RequestContent | None = None,
    ) -> None:
        self._trace = trace
        self._url_scheme = url_scheme
        self._content = content
        self._record = record
        self._ended_ns = ended_ns
        self._ended_at = ended_at
        """The same time as `ended_ns`, as a value of `time.monotonic`."""
        self._attempts = record.attempt_records
        if not self._attempts and record.attempt_count:  # one attempt that succeeded, which the record describes
            self._attempts = (record.last_attempt or _describe_attempt(record),)
        self.span_count = 1 + len(self._attempts)
        self._worker_parent_id = b""

    def set_worker_parent(self) -> bytes:
        """Return the id that the parent of a worker's span gets. Call it before `build_spans`."""
        self._worker_parent_id = generate_span_id()
        return self._worker_parent_id

    def build_spans(self) -> list[Span]:
        """Return the server span, and the client span of each attempt."""
        try:
            return self._build_spans()
        finally:
            if self._content is not None:
                self._content.free()

    def _build_spans(self) -> list[Span]:
        trace, record = self._trace, self._record
        main_attempt = self._find_main_attempt()
        server_span_id = (
            generate_span_id() if main_attempt is not None else self._worker_parent_id or generate_span_id()
        )
        attempts = [
            self._build_attempt_span(attempt, server_span_id, is_main=attempt is main_attempt)
            for attempt in self._attempts
        ]
        start_ns = self._ended_ns - int(record.duration_seconds * 1e9)
        # The record was made some microseconds before `on_end`, so its duration begins later than the first attempt.
        start_ns = min([start_ns, *[span.start_ns for span in attempts]])
        is_error = record.http_status >= 500 or record.status == "cut"
        server = Span(
            f"{_method_of(record.endpoint)} {record.endpoint}",
            SPAN_KIND_SERVER,
            trace.trace_id,
            server_span_id,
            trace.parent_id,
            trace.trace_state,
            start_ns,
            self._ended_ns,
            _server_attributes(
                record.key,
                record.endpoint,
                record.requested_model,
                record.status,
                record.http_status,
                record.attempt_count,
                record.code,
                record.limit_name,
                record.client_field,
                record.from_cache,
                self._url_scheme,
            ),
            self._describe_request(),
            record.error_message[:_MAX_ERROR_CHARS] if is_error else None,
        )
        return [server, *attempts]

    def _describe_request(self) -> list[tuple[str, AttributeValue]]:
        record = self._record
        attributes: list[tuple[str, AttributeValue]] = [("svc.request_id", record.request_id)]
        if record.client_request_id is not None:
            attributes.append(("svc.client_request_id", record.client_request_id))
        if record.bill.cost_usd is not None:
            attributes.append(("svc.cost_usd", record.bill.cost_usd))
        return attributes

    def _find_main_attempt(self) -> AttemptRecord | None:
        """Return the attempt whose span has the prompts, the answers and the worker's span.

        This is the successful one, or else the last.
        """
        if not self._attempts:
            return None
        return next((attempt for attempt in self._attempts if attempt.outcome == "ok"), self._attempts[-1])

    def _build_attempt_span(self, attempt: AttemptRecord, server_span_id: bytes, *, is_main: bool) -> Span:
        record = self._record
        operation = operation_of(record.endpoint)
        ended_at = attempt.ended_at or self._ended_at
        end_ns = self._ended_ns - int(max(self._ended_at - ended_at, 0.0) * 1e9)
        attributes: list[tuple[str, AttributeValue]] = [("svc.request_id", record.request_id)]
        if attempt.outcome == "ok":
            self._describe_response(attempt, ended_at, attributes)
        if is_main and self._content is not None:
            attributes += describe_content(self._content)
        return Span(
            f"{operation} {attempt.model}",
            SPAN_KIND_CLIENT,
            self._trace.trace_id,
            (self._worker_parent_id if is_main else b"") or generate_span_id(),
            server_span_id,
            self._trace.trace_state,
            end_ns - int(attempt.duration_ms * 1e6),
            end_ns,
            _attempt_attributes(
                record.key,
                operation,
                attempt.provider,
                attempt.model,
                attempt.account,
                ATTEMPT_OUTCOME_LABELS[attempt.outcome],
                attempt.code,
                attempt.http_status,
            ),
            attributes,
            attempt.code if attempt.outcome == "failed" else None,
        )

    def _describe_response(
        self, attempt: AttemptRecord, ended_at: float, attributes: list[tuple[str, AttributeValue]]
    ) -> None:
        """Add the attributes of a successful attempt. Its usage is that of the request."""
        record, usage = self._record, self._record.bill.usage
        if usage is not None:
            attributes.append(("gen_ai.usage.input_tokens", usage.prompt_tokens))
            attributes.append(("gen_ai.usage.output_tokens", usage.completion_tokens))
            if usage.cached_tokens:
                attributes.append(("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens))
            if usage.cache_write_tokens:
                attributes.append(("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens))
            if usage.reasoning_tokens:
                attributes.append(("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens))
        if record.first_byte_seconds is not None:
            started_at = self._ended_at - record.duration_seconds
            sent_at = ended_at - attempt.duration_ms / 1000
            first_chunk_seconds = max(started_at + record.first_byte_seconds - sent_at, 0.0)
            attributes.append(("gen_ai.response.time_to_first_chunk", first_chunk_seconds))
        if record.upstream_request_id is not None:
            attributes.append(("svc.upstream_request_id", record.upstream_request_id))


def _describe_attempt(record: RequestRecord) -> AttemptRecord:
    """Return the only attempt of a request, which succeeded."""
    return AttemptRecord(
        record.request_id,
        record.provider or "",
        record.model or "",
        None,
        "ok",
        None,
        record.http_status,
        record.duration_seconds * 1000,
    )


def _method_of(endpoint: str) -> str:
    return "GET" if endpoint == LIVE_TRANSCRIPTION_PATH else "POST"  # a WebSocket starts with GET


@functools.lru_cache(maxsize=1024)
def _server_attributes(
    key: ApiKey,
    endpoint: str,
    requested_model: str | None,
    status: str,
    http_status: int,
    attempt_count: int,
    code: str | None,
    limit_name: str,
    client_field: bytes,
    from_cache: bool,
    url_scheme: str,
) -> SharedAttributes:
    attributes: list[tuple[str, AttributeValue]] = [
        ("http.request.method", _method_of(endpoint)),
        ("http.route", endpoint),
        ("url.path", endpoint),
        ("url.scheme", url_scheme),
        ("http.response.status_code", http_status),
        ("svc.key_id", key.id),
        ("svc.status", status),
        ("svc.attempts", attempt_count),
    ]
    if requested_model is not None:
        attributes.append(("gen_ai.request.model", requested_model))
    if client_field.startswith(_CLIENT_FIELD_START):
        address = client_field[len(_CLIENT_FIELD_START) : -len(b'"}\n')]
        attributes.append(("client.address", address.decode("ascii", "replace")))
    if code is not None:
        attributes.append(("error.type", code))
    if limit_name:
        attributes.append(("svc.limit", limit_name))
    if from_cache:
        attributes.append(("svc.from_cache", True))
    return SharedAttributes(tuple(attributes))


@functools.lru_cache(maxsize=1024)
def _attempt_attributes(
    key: ApiKey,
    operation: str,
    provider: str,
    model: str,
    account: int | None,
    outcome: str,
    code: str | None,
    http_status: int | None,
) -> SharedAttributes:
    attributes: list[tuple[str, AttributeValue]] = [
        ("gen_ai.operation.name", operation),
        ("gen_ai.provider.name", provider_name_of(provider)),
        ("gen_ai.request.model", model),
        ("svc.provider", provider),
        ("svc.key_id", key.id),
        ("svc.outcome", outcome),
    ]
    if outcome == "ok":
        attributes.append(("gen_ai.response.model", model))
    if account is not None:
        attributes.append(("svc.account", account))
    if code is not None:
        attributes.append(("error.type", code))
    if http_status is not None:
        attributes.append(("http.response.status_code", http_status))
    return SharedAttributes(tuple(attributes))
