"""Decides which requests are traced (https://opentelemetry.io/docs/specs/otel/trace/sdk/#sampling). No I/O."""

from __future__ import annotations

import random
import re
from typing import Final

TRACE_ID_BYTES: Final = 16
_ID_RANGE: Final = 1 << 64
_TRACEPARENT: Final = re.compile(
    rb"^traceparent: (?:00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})\r|"
    rb"(?!00|ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})[-\r])",
    re.MULTILINE,
)
_TRACESTATE: Final = re.compile(rb"^tracestate: ([^\r]*)\r", re.MULTILINE)
_get_random_bits: Final = random.getrandbits  # ids need not be secret, and the generator has its own seed
_random: Final = random.random


class SampledTrace:
    """The trace of a sampled request. `parent_id` is empty if the client sent no trace."""

    __slots__ = ("parent_id", "trace_id", "trace_state")

    def __init__(self, trace_id: bytes, parent_id: bytes = b"", trace_state: str = "") -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.trace_state = trace_state


class Sampler:
    """Samples a share of the requests. With `uses_parent`, the client's own decision has precedence."""

    def __init__(self, share: float, *, uses_parent: bool) -> None:
        self._share = share
        self._bound = round(share * _ID_RANGE)
        self._uses_parent = uses_parent

    def sample(self, trace_context: bytes) -> SampledTrace | None:
        """Return the trace of a request, or None. `trace_context` are the header lines of the client's trace."""
        parent = _TRACEPARENT.search(trace_context) if trace_context else None
        if parent is None:
            return SampledTrace(self._generate_trace_id()) if _random() < self._share else None
        trace_hex, parent_hex, flags = parent.groups()[:3] if parent[1] else parent.groups()[3:]
        trace_id = bytes.fromhex(trace_hex.decode())
        is_sampled = int(flags, 16) & 1 if self._uses_parent else self._is_in_share(trace_id)
        if not is_sampled:
            return None
        states = b",".join(_TRACESTATE.findall(trace_context))
        return SampledTrace(trace_id, bytes.fromhex(parent_hex.decode()), states.decode("ascii", "replace"))

    def _is_in_share(self, trace_id: bytes) -> bool:
        return int.from_bytes(trace_id[8:]) < self._bound

    def _generate_trace_id(self) -> bytes:
        """Return an id that any sampler with the same share or a larger one also samples."""
        low = _get_random_bits(64) * self._bound // _ID_RANGE
        return (_get_random_bits(64) or 1).to_bytes(8) + low.to_bytes(8)


def generate_span_id() -> bytes:
    """Return a random span id."""
    return (_get_random_bits(64) or 1).to_bytes(8)
