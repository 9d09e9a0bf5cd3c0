"""A finished span, as the exporter sends it. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

AttributeValue = str | int | float | bool
Attributes = Sequence[tuple[str, AttributeValue]]

SPAN_KIND_INTERNAL: Final = 1
SPAN_KIND_SERVER: Final = 2
SPAN_KIND_CLIENT: Final = 3


class SharedAttributes:
    """Attributes that many spans have. Their encoding is kept, which saves most of the time of a span."""

    __slots__ = ("encoded", "pairs")

    def __init__(self, pairs: Attributes) -> None:
        self.pairs = pairs
        self.encoded: bytes | None = None
        """The attributes as fields of a protobuf span. The exporter's thread sets it."""


class Span:
    """One span. Times are nanoseconds since 1970. `error_message` is None unless the span's status is an error."""

    __slots__ = (
        "attributes",
        "end_ns",
        "error_message",
        "kind",
        "name",
        "parent_id",
        "shared",
        "span_id",
        "start_ns",
        "trace_id",
        "trace_state",
    )

    def __init__(
        self,
        name: str,
        kind: int,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes,
        trace_state: str,
        start_ns: int,
        end_ns: int,
        shared: SharedAttributes,
        attributes: Attributes,
        error_message: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.trace_state = trace_state
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.shared = shared
        self.attributes = attributes
        self.error_message = error_message
