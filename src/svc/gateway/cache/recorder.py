"""Records a response for the cache while it is sent to the client. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable

from svc.gateway.routing.backends import Backend
from svc.gateway.upstream.splice import StreamSink

StoreResponse = Callable[[bytes, Backend, tuple[str, ...]], None]


class RecordingQuota:
    """Memory for incomplete responses: `max_bytes` in total, and `max_response_bytes` for each."""

    def __init__(self, max_bytes: int, max_response_bytes: int) -> None:
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self.max_response_bytes = max_response_bytes


class ResponseRecorder(StreamSink):
    """Forwards a response to `downstream` and records it. A response beyond the quota is not recorded."""

    __slots__ = ("_chunks", "_downstream", "_quota", "_recorded_bytes", "_store")

    def __init__(self, downstream: StreamSink, quota: RecordingQuota, store: StoreResponse) -> None:
        self._downstream = downstream
        self._quota = quota
        self._store = store
        self._chunks: list[bytes] | None = []
        self._recorded_bytes = 0

    def write(self, chunk: bytes, is_last: bool) -> None:
        """Record and forward a chunk of a stream."""
        self.append(chunk)
        self._downstream.write(chunk, is_last)

    def write_keep_alive(self, event: bytes) -> None:
        """Forward an event without recording it."""
        self._downstream.write_keep_alive(event)

    def append(self, chunk: bytes) -> None:
        """Record a chunk of a response, or all of it."""
        if self._chunks is None:
            return
        self._chunks.append(chunk)
        self._recorded_bytes += len(chunk)
        self._quota.used_bytes += len(chunk)
        if self._recorded_bytes > self._quota.max_response_bytes or self._quota.used_bytes > self._quota.max_bytes:
            self.discard()

    def finish(self, backend: Backend, dropped_fields: tuple[str, ...]) -> None:
        """Store the complete response, unless recording was discarded."""
        chunks = self._chunks
        self.discard()
        if chunks is not None:
            self._store(b"".join(chunks), backend, dropped_fields)

    def discard(self) -> None:
        """Stop recording, and free the memory. Further calls have no effect."""
        self._quota.used_bytes -= self._recorded_bytes
        self._chunks, self._recorded_bytes = None, 0
