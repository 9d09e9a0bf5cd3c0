"""An OTLP collector on a socket, which decodes requests with the package of OpenTelemetry."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps the received messages. `statuses` are the statuses of the next responses, and 200 follows."""

    def __init__(self) -> None:
        self.messages: list[ExportTraceServiceRequest] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[tuple[int, dict[str, str]]] = []
        self.released = threading.Event()
        """Cleared: responses wait, as those of a hanging collector."""
        self.released.set()
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def spans(self) -> list[Span]:
        """All spans of accepted messages."""
        return [
            span
            for message in list(self.messages)
            for resource_spans in message.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]

    def resource(self) -> dict[str, Any]:
        return attributes_of(self.messages[0].resource_spans[0].resource)

    def wait_spans(self, count: int, timeout: float = 15.0) -> list[Span]:
        """Return all spans once there are `count`, in the order of their start."""
        self.until(lambda: len(self.spans) >= count, timeout)
        return sorted(self.spans, key=lambda span: (span.start_time_unix_nano, span.kind))

    def until(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait for a condition on what was received. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise TimeoutError(f"{len(self.requests)} requests, {len(self.spans)} spans")

    def _receive(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        with self._changed:
            self.requests.append((path, headers, body))
            self._changed.notify_all()
        self.released.wait(30)
        with self._changed:
            status, response_headers = self.statuses.pop(0) if self.statuses else (200, {})
            if status == 200:
                data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
                self.messages.append(decode_message(headers["content-type"], data))
            self._changed.notify_all()
        return status, response_headers

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, headers = receive(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", "0")
                    self.end_headers()
                except OSError:
                    pass  # the gateway gave up

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def decode_message(content_type: str, data: bytes) -> ExportTraceServiceRequest:
    """Decode a message as OTLP says: in JSON, ids are hexadecimal and not base64."""
    message = ExportTraceServiceRequest()
    if content_type != "application/json":
        message.ParseFromString(data)
        return message
    json_format.Parse(data, message)
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                for name in ("trace_id", "span_id", "parent_span_id"):
                    setattr(span, name, _hex_read_as_base64(getattr(span, name)))
    return message


def _hex_read_as_base64(value: bytes) -> bytes:
    import base64

    return bytes.fromhex(base64.b64encode(value).decode())


def attributes_of(carrier: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource. No name occurs twice."""
    names = [attribute.key for attribute in carrier.attributes]
    assert len(names) == len(set(names)), names
    return {attribute.key: _value_of(attribute.value) for attribute in carrier.attributes}


def _value_of(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value"))
