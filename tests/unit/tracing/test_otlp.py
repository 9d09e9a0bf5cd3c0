"""Messages decoded with OpenTelemetry's own package."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from svc.tracing import otlp
from svc.tracing.span import SPAN_KIND_CLIENT, Attributes, SharedAttributes, Span
from tests.fakes.collector import attributes_of, decode_message

RESOURCE: Attributes = (("service.name", "svc"), ("a", 1))
VALUES: Attributes = (
    ("text", "x"),
    ("empty", ""),
    ("long", "y" * 5000),
    ("unicode", "gr\u00fc\U0001f600"),
    ("zero", 0),
    ("small", 127),
    ("large", 300),
    ("huge", (1 << 63) - 1),
    ("negative", -5),
    ("float", 0.25),
    ("true", True),
    ("false", False),
)


def make_span(**changed: object) -> Span:
    fields: dict[str, object] = {
        "name": "chat m",
        "kind": SPAN_KIND_CLIENT,
        "trace_id": bytes(range(1, 17)),
        "span_id": bytes(range(8, 16)),
        "parent_id": bytes(range(1, 9)),
        "trace_state": "a=1",
        "start_ns": 1_800_000_000_123_456_789,
        "end_ns": 1_800_000_001_123_456_789,
        "shared": SharedAttributes((("shared", "yes"),)),
        "attributes": VALUES,
    }
    return Span(**{**fields, **changed})  # type: ignore[arg-type]


def decode(spans: list[Span], encoding: str) -> ExportTraceServiceRequest:
    if encoding == "json":
        return decode_message("application/json", otlp.encode_json(RESOURCE, "1.2.3", spans))
    encoded = [otlp.encode_span(span) for span in spans]
    return decode_message("application/x-protobuf", otlp.encode_protobuf(RESOURCE, "1.2.3", encoded))


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_otlp_span_decodes_to_same_values(encoding: str) -> None:
    spans = [make_span(), make_span(parent_id=b"", trace_state="", error_message="provider_error")]
    message = decode(spans, encoding)
    (resource_spans,) = message.resource_spans
    assert attributes_of(resource_spans.resource) == dict(RESOURCE)
    (scope_spans,) = resource_spans.scope_spans
    assert (scope_spans.scope.name, scope_spans.scope.version) == ("svc", "1.2.3")
    first, second = scope_spans.spans
    assert attributes_of(first) == {"shared": "yes", **dict(VALUES)}
    assert (first.trace_id, first.span_id, first.parent_span_id) == (
        bytes(range(1, 17)),
        bytes(range(8, 16)),
        bytes(range(1, 9)),
    )
    assert (first.name, first.kind, first.trace_state, first.flags & 1) == ("chat m", SPAN_KIND_CLIENT, "a=1", 1)
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (spans[0].start_ns, spans[0].end_ns)
    assert first.status.code == first.status.STATUS_CODE_UNSET
    assert (second.parent_span_id, second.trace_state) == (b"", "")
    assert (second.status.code, second.status.message) == (second.status.STATUS_CODE_ERROR, "provider_error")


def test_otlp_lone_surrogate_is_replaced() -> None:
    message = decode([make_span(name="a\ud800", attributes=(("x", "b\udfff"),))], "protobuf")
    span = message.resource_spans[0].scope_spans[0].spans[0]
    assert (span.name, attributes_of(span)["x"]) == ("a?", "b?")


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 129, 16_383, 16_384, 70_000])
def test_otlp_any_length_decodes(size: int) -> None:
    span = decode([make_span(attributes=(("x", "z" * size),))], "protobuf").resource_spans[0].scope_spans[0].spans[0]
    assert attributes_of(span)["x"] == "z" * size
