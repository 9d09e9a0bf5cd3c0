"""Exports spans from a thread, so that a slow collector never delays a request.

add ──> bounded queue ──> thread: encode in small slices ──> POST, with retries until a timeout
         └── full: dropped and counted
"""

from __future__ import annotations

import gzip
import http.client
import logging
import random
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from email.message import Message
from typing import IO, Any, Final, Protocol

from svc import __version__
from svc.tls_context import create_client_context
from svc.tracing import otlp
from svc.tracing.settings import PROTOBUF, TraceExportSettings
from svc.tracing.span import Attributes, Span

log = logging.getLogger("svc.tracing")

SLICE_SPANS: Final = 32
"""Spans that the thread encodes before it lets the event loop run. That takes about 0.3 ms."""
SLICE_PAUSE_SECONDS: Final = 0.001
RETRYABLE_EXPORT_STATUSES: Final = frozenset((429, 502, 503, 504))
"""https://opentelemetry.io/docs/specs/otlp/#failures-1"""
EXPORT_RETRY_SECONDS: Final = 1.0
"""The first pause before a retry. It doubles with each retry."""
FLUSH_SECONDS: Final = 2.0
"""Maximum time that `close` waits for the spans in the queue."""
LOG_INTERVAL_SECONDS: Final = 60.0


class SpanSource(Protocol):
    """A sampled request. The exporter's thread makes its spans."""

    span_count: int
    """The number of spans that `build_spans` returns."""

    def build_spans(self) -> list[Span]:
        """Return the spans of the request."""


class ExportFailure(Exception):
    """A batch that the collector did not accept. `retry_after` is in seconds, or None if a retry cannot help."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SpanExporter:
    """Exports spans from `start` to `close`. `add` is called on one thread."""

    def __init__(self, settings: TraceExportSettings) -> None:
        self._settings = settings
        self._queue: deque[SpanSource] = deque()
        self._queued_spans = 0
        """Total spans, updated by `add` only. The thread alone updates `_taken_spans`, so neither needs a lock."""
        self._taken_spans = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._stop_at = float("inf")
        """Time of `time.monotonic` at which the thread stops to send."""
        self._opener = _create_opener(settings)
        self._logged_at = -LOG_INTERVAL_SECONDS
        self._logged_drops = 0
        self.exported_spans = 0
        self.queue_drops = 0
        """Spans dropped because the queue was full."""
        self.export_drops = 0
        """Spans dropped because the collector did not accept them."""
        self._thread = threading.Thread(target=self._run, name="span-exporter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, source: SpanSource) -> bool:
        """Queue the spans of a request. Return False if they are dropped because the queue is full."""
        queued = self._queued_spans - self._taken_spans
        if queued + source.span_count > self._settings.max_queue_spans:
            self.queue_drops += source.span_count
            return False
        self._queued_spans += source.span_count
        self._queue.append(source)
        if queued < self._settings.max_batch_spans <= queued + source.span_count:
            self._wake.set()
        return True

    def close(self) -> None:
        """Send the spans in the queue, within FLUSH_SECONDS. Blocks."""
        self._stop_at = time.monotonic() + FLUSH_SECONDS
        self._stopping.set()
        self._wake.set()
        self._thread.join(FLUSH_SECONDS)
        if lost := self._queued_spans - self._taken_spans:
            log.warning("%d spans were not exported before the end of the process", lost)

    def values(self) -> dict[str, float]:
        """Return the metrics by their rendered names."""
        return {
            "svc_trace_spans_exported_total": self.exported_spans,
            'svc_trace_spans_dropped_total{reason="queue_full"}': self.queue_drops,
            'svc_trace_spans_dropped_total{reason="export_failed"}': self.export_drops,
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._settings.schedule_delay)
            self._wake.clear()
            self._export_queued()
        self._export_queued()

    def _export_queued(self) -> None:
        while self._queue and time.monotonic() < self._stop_at:
            batch = self._create_batch()
            self._fill_batch(batch)
            try:
                self._send_with_retries(self._encode(batch))
                self.exported_spans += batch.span_count
            except ExportFailure as failure:
                self.export_drops += batch.span_count
                self._log_failure(failure)
            except Exception:  # as in `_fill_batch`
                self.export_drops += batch.span_count
                log.exception("a batch of spans was not exported")

    def _create_batch(self) -> _Batch:
        return _ProtobufBatch() if self._settings.protocol == PROTOBUF else _JsonBatch()

    def _fill_batch(self, batch: _Batch) -> None:
        slice_end = SLICE_SPANS
        while self._queue and batch.span_count < self._settings.max_batch_spans:
            source = self._queue.popleft()
            self._taken_spans += source.span_count
            try:
                batch.add(source.build_spans())
            except Exception:  # the boundary of the thread: a defect must not end the export of other spans
                self.export_drops += source.span_count
                log.exception("spans of a request were not exported")
            if batch.span_count >= slice_end:
                slice_end = batch.span_count + SLICE_SPANS
                self._yield_to_event_loop()

    def _encode(self, batch: _Batch) -> bytes:
        body = batch.encode(self._settings.resource)
        return gzip.compress(body, 1) if self._settings.compresses else body

    def _yield_to_event_loop(self) -> None:
        """Release the GIL. Otherwise the event loop would wait up to 5 ms for each batch."""
        if not self._stopping.is_set():
            time.sleep(SLICE_PAUSE_SECONDS)

    def _send_with_retries(self, body: bytes) -> None:
        deadline = min(time.monotonic() + self._settings.timeout, self._stop_at)
        pause = EXPORT_RETRY_SECONDS
        while True:
            try:
                self._send(body, max(deadline - time.monotonic(), 0.1))
                return
            except ExportFailure as failure:
                if failure.retry_after is None:
                    raise
                wait = max(failure.retry_after, pause * random.uniform(0.8, 1.2))  # noqa: S311
                deadline = min(deadline, self._stop_at)
                if time.monotonic() + wait >= deadline:
                    raise
                self._stopping.wait(wait)
                pause *= 2

    def _send(self, body: bytes, timeout: float) -> None:
        settings = self._settings
        headers = {
            "content-type": "application/x-protobuf" if settings.protocol == PROTOBUF else "application/json",
            "user-agent": f"svc/{__version__}",
            **({"content-encoding": "gzip"} if settings.compresses else {}),
            **dict(settings.headers),
        }
        request = urllib.request.Request(settings.url, body, headers, method="POST")  # noqa: S310 - checked: http or https
        try:
            self._opener.open(request, timeout=timeout).close()  # a body may never end, and the status is enough
        except urllib.error.HTTPError as error:
            error.close()
            is_retryable = error.code in RETRYABLE_EXPORT_STATUSES
            raise ExportFailure(
                f"status {error.code}", _parse_retry_after(error.headers) if is_retryable else None
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ExportFailure(f"{type(reason).__name__}: {reason}", 0.0) from None

    def _log_failure(self, failure: ExportFailure) -> None:
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL_SECONDS:
            return
        drops = self.export_drops + self.queue_drops
        log.warning("spans were not exported: %s [%d spans dropped]", failure, drops - self._logged_drops)
        self._logged_at, self._logged_drops = now, drops


class _Batch(Protocol):
    """The spans of one message."""

    span_count: int

    def add(self, spans: list[Span]) -> None:
        """Add the spans of a request."""

    def encode(self, resource: Attributes) -> bytes:
        """Return the message."""


class _ProtobufBatch:
    def __init__(self) -> None:
        self.span_count = 0
        self._encoded: list[bytes] = []

    def add(self, spans: list[Span]) -> None:
        self._encoded += [otlp.encode_span(span) for span in spans]
        self.span_count = len(self._encoded)

    def encode(self, resource: Attributes) -> bytes:
        return otlp.encode_protobuf(resource, __version__, self._encoded)


class _JsonBatch:
    def __init__(self) -> None:
        self.span_count = 0
        self._spans: list[Span] = []

    def add(self, spans: list[Span]) -> None:
        self._spans += spans
        self.span_count = len(self._spans)

    def encode(self, resource: Attributes) -> bytes:
        return otlp.encode_json(resource, __version__, self._spans)


class _RefusedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that no other server gets the headers with credentials."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def _create_opener(settings: TraceExportSettings) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_RefusedRedirects()]
    if settings.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=create_client_context(settings.certificate_path)))
    return urllib.request.build_opener(*handlers)


def _parse_retry_after(headers: Message) -> float:
    """Return the seconds of Retry-After, or 0 for none or a date."""
    value = headers.get("retry-after", "")
    return min(float(value), 3600.0) if value.isascii() and value.isdigit() else 0.0
