"""The headers of a distributed trace (W3C Trace Context, https://www.w3.org/TR/trace-context/). No I/O."""

from __future__ import annotations

from typing import Final

TRACE_CONTEXT_HEADERS: Final = frozenset((b"traceparent", b"tracestate"))
MAX_TRACE_HEADER_BYTES: Final = 1024
"""A longer value is dropped. Section 3.3.1.5 asks for at least 512 characters of the state."""


def encode_trace_header(name: bytes, value: bytes) -> bytes:
    """Return a header line with CRLF, or nothing for a value that is empty, too long or not printable ASCII."""
    if 0 < len(value) <= MAX_TRACE_HEADER_BYTES and value.isascii() and value.decode().isprintable():
        return b"%b: %b\r\n" % (name, value)
    return b""
