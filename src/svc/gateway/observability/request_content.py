"""Keeps the bodies of sampled requests and their responses for spans, if `[telemetry] content` is true.

The memory is bounded: bodies beyond the bounds are left out, and the span says so.
"""

from __future__ import annotations

from typing import Final

from svc.gateway.upstream.splice import StreamSink
from svc.tracing.sampler import SampledTrace, Sampler

MAX_CONTENT_BODY_BYTES: Final = 512 * 1024
"""A longer body is left out, because decoding it would hold the interpreter lock for too long."""
MAX_CONTENT_TOTAL_BYTES: Final = 32 * 1024 * 1024
"""Bodies of requests in flight, and of those that wait for the exporter."""
CONTENT_ENDPOINTS: Final = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses"))


class ContentQuota:
    """The memory that bodies take."""

    def __init__(self, max_bytes: int = MAX_CONTENT_TOTAL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._reserved_bytes = 0
        """Updated on the event loop only. The exporter's thread alone updates `_freed_bytes`: neither needs a lock."""
        self._freed_bytes = 0

    def reserve(self, size: int) -> bool:
        """Reserve memory on the event loop. Return False if there is not enough."""
        if self._reserved_bytes - self._freed_bytes + size > self._max_bytes:
            return False
        self._reserved_bytes += size
        return True

    def cancel(self, size: int) -> None:
        """Give back memory on the event loop."""
        self._reserved_bytes -= size

    def free(self, size: int) -> None:
        """Give back memory on the exporter's thread."""
        self._freed_bytes += size


class RequestContent:
    """The bodies of one sampled request and its response. `trace` is None if the request is not sampled."""

    __slots__ = ("_quota", "chunks", "has_omissions", "is_response_full", "request_body", "response_bytes", "trace")

    def __init__(self, trace: SampledTrace | None, request_body: bytes, quota: ContentQuota) -> None:
        self.trace = trace
        self.request_body = b""
        self.chunks: list[bytes] = []
        self.response_bytes = 0
        self.has_omissions = False
        """Whether a body, or the rest of one, was left out."""
        self.is_response_full = False
        self._quota = quota
        if trace is None:
            return
        if len(request_body) <= MAX_CONTENT_BODY_BYTES and quota.reserve(len(request_body)):
            self.request_body = request_body
        else:
            self.has_omissions = True

    def append(self, chunk: bytes) -> None:
        """Keep a chunk of the response, or all of it."""
        size = len(chunk)
        if self.is_response_full:
            return
        if self.response_bytes + size <= MAX_CONTENT_BODY_BYTES and self._quota.reserve(size):
            self.chunks.append(chunk)
            self.response_bytes += size
        else:
            self.is_response_full = self.has_omissions = True

    def cancel(self) -> None:
        """Give back the memory on the event loop, because no span will have the content."""
        self._quota.cancel(self._clear())

    def free(self) -> None:
        """Give back the memory on the exporter's thread."""
        self._quota.free(self._clear())

    def _clear(self) -> int:
        size = len(self.request_body) + self.response_bytes
        self.request_body, self.chunks, self.response_bytes = b"", [], 0
        return size


class ContentSink(StreamSink):
    """Forwards a stream to `downstream` and keeps it. It has no `chunk_writer`, so each chunk is written here."""

    __slots__ = ("_content", "_downstream")

    def __init__(self, downstream: StreamSink, content: RequestContent) -> None:
        self._downstream = downstream
        self._content = content

    def write(self, chunk: bytes, is_last: bool) -> None:
        """Keep and forward a chunk. The exchange keeps the last one, before it reports the end of the request."""
        if not is_last:
            self._content.append(chunk)
        self._downstream.write(chunk, is_last)

    def write_keep_alive(self, event: bytes) -> None:
        """Forward an event that is not part of the response."""
        self._downstream.write_keep_alive(event)


class ContentCapture:
    """Decides at the start of a request whether it is sampled, and keeps its content until its end."""

    def __init__(self, sampler: Sampler) -> None:
        self._sample = sampler.sample
        self._quota = ContentQuota()
        self._contents: dict[str, RequestContent] = {}
        """By request id."""

    def start(self, request_id: str, endpoint: str, trace_context: bytes, body: bytes) -> RequestContent | None:
        """Return the object that keeps the content, or None for a request without: the caller adds the response."""
        if endpoint not in CONTENT_ENDPOINTS:
            return None
        content = self._contents[request_id] = RequestContent(self._sample(trace_context), body, self._quota)
        return content if content.trace is not None else None

    def take(self, request_id: str) -> RequestContent | None:
        """Return the content of a request that has ended, or None if its sampling is not decided."""
        return self._contents.pop(request_id, None)
