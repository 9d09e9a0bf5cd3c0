"""Encodes spans as an OTLP ExportTraceServiceRequest, in protobuf or JSON. No I/O.

The field numbers are those of opentelemetry/proto/trace/v1/trace.proto, version 1.x. A test decodes the messages with
the package of OpenTelemetry.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from svc.tracing.span import Attributes, AttributeValue, Span

SCOPE_NAME: Final = "svc"
_SAMPLED_FLAG: Final = 1
_STATUS_ERROR: Final = 2
_INT64_MASK: Final = (1 << 64) - 1
_LENGTHS: Final = tuple(bytes((number,)) for number in range(128))
"""Varints of one byte, which most lengths are."""
_MAX_SHORT_BYTES: Final = 127
_pack_times: Final = struct.Struct("<cQcQ").pack
_pack_double: Final = struct.Struct("<d").pack
_SPAN_FLAGS: Final = b"\x85\x01" + struct.pack("<I", _SAMPLED_FLAG)


def encode_protobuf(resource: Attributes, version: str, spans: Sequence[bytes]) -> bytes:
    """Return the message with spans that `encode_span` has encoded."""
    scope = _text(b"\x0a", SCOPE_NAME) + _text(b"\x12", version)
    scope_spans = b"\x0a%b%b%b" % (_varint(len(scope)), scope, b"".join(spans))
    resource_fields = b"".join([_attribute(b"\x0a", name, value) for name, value in resource])
    resource_spans = b"".join((_message(b"\x0a", resource_fields), _message(b"\x12", scope_spans)))
    return _message(b"\x0a", resource_spans)


def encode_span(span: Span) -> bytes:
    """Return a span as the field 2 of the protobuf message ScopeSpans."""
    shared = span.shared
    if shared.encoded is None:
        shared.encoded = b"".join([_attribute(b"\x4a", name, value) for name, value in shared.pairs])
    own = b"".join([_attribute(b"\x4a", name, value) for name, value in span.attributes])
    content = b"\x0a\x10%b\x12\x08%b%b%b%b\x30%c%b%b%b%b%b" % (
        span.trace_id,
        span.span_id,
        _text(b"\x1a", span.trace_state) if span.trace_state else b"",
        b"\x22\x08" + span.parent_id if span.parent_id else b"",
        _shared_text(b"\x2a", span.name),
        span.kind,
        _pack_times(b"\x39", span.start_ns, b"\x41", span.end_ns),
        shared.encoded,
        own,
        b"" if span.error_message is None else _encode_error(span.error_message),
        _SPAN_FLAGS,
    )
    return _message(b"\x12", content)


def _encode_error(message: str) -> bytes:
    return _message(b"\x7a", _text(b"\x12", message) + b"\x18" + _LENGTHS[_STATUS_ERROR])


def encode_json(resource: Attributes, version: str, spans: Sequence[Span]) -> bytes:
    """Return the message in the JSON encoding of OTLP: ids in hexadecimal, 64-bit numbers as strings."""
    scope_spans = {"scope": {"name": SCOPE_NAME, "version": version}, "spans": [_span_to_json(span) for span in spans]}
    resource_spans = {"resource": {"attributes": _attributes_to_json(resource)}, "scopeSpans": [scope_spans]}
    return msgspec.json.encode({"resourceSpans": [resource_spans]})


def _span_to_json(span: Span) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes_to_json((*span.shared.pairs, *span.attributes)),
        "flags": _SAMPLED_FLAG,
    }
    if span.trace_state:
        fields["traceState"] = span.trace_state
    if span.parent_id:
        fields["parentSpanId"] = span.parent_id.hex()
    if span.error_message is not None:
        fields["status"] = {"code": _STATUS_ERROR, "message": span.error_message}
    return fields


def _attributes_to_json(pairs: Attributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value_to_json(value)} for name, value in pairs]


def _value_to_json(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


# protobuf: https://protobuf.dev/programming-guides/encoding/


def _varint(number: int) -> bytes:
    if 0 <= number < len(_LENGTHS):
        return _LENGTHS[number]
    number &= _INT64_MASK
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _message(tag: bytes, content: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(content)), content)


def _text(tag: bytes, text: str) -> bytes:
    return _message(tag, text.encode("utf-8", "replace"))  # text of a client may have lone surrogates


@functools.lru_cache(maxsize=1024)
def _shared_text(tag: bytes, text: str) -> bytes:
    return _text(tag, text)


def _attribute(tag: bytes, name: str, value: AttributeValue) -> bytes:
    """Return an attribute as a KeyValue in a field with this tag."""
    if isinstance(value, str):
        data = value.encode("utf-8", "replace")
        any_value = b"\x0a%b%b" % (_varint(len(data)), data)
    elif isinstance(value, bool):
        any_value = b"\x10" + _LENGTHS[value]
    elif isinstance(value, int):
        any_value = b"\x18" + _varint(value)
    else:
        any_value = b"\x21" + _pack_double(value)
    name_field = _shared_text(b"\x0a", name)
    size = len(any_value)
    total = len(name_field) + 2 + size
    if total <= _MAX_SHORT_BYTES:  # all lengths are varints of one byte
        return b"%b%c%b\x12%c%b" % (tag, total, name_field, size, any_value)
    return _message(tag, b"%b\x12%b%b" % (name_field, _varint(size), any_value))
