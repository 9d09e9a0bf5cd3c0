"""Takes down an answer while it passes by to the client. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable

from svc.gateway.routing.backends import Backend
from svc.gateway.upstream.splice import StreamSink

StoreResponse = Callable[[bytes, Backend, tuple[str, ...]], None]


class RecordingQuota:
    """For answers that have not ended yet: `most` bytes of all of them together, `most_each` of one."""

    def __init__(self, max_bytes: int, max_response_bytes: int) -> None:
        self.used_bytes = 0
        self.max_bytes = max_bytes
        self.max_response_bytes = max_response_bytes


class ResponseRecorder(StreamSink):
    """Stands before the client. What there is no room for is not kept; the client gets it all the same."""

    __slots__ = ("_chunks", "_downstream", "_quota", "_recorded_bytes", "_store")

    def __init__(self, downstream: StreamSink, quota: RecordingQuota, store: StoreResponse) -> None:
        self._downstream = downstream
        self._quota = quota
        self._store = store
        self._chunks: list[bytes] | None = []
        self._recorded_bytes = 0

    def write(self, chunk: bytes, is_last: bool) -> None:
        """A piece of a stream: taken down, and sent."""
        self.append(chunk)
        self._downstream.write(chunk, is_last)

    def append(self, chunk: bytes) -> None:
        """A piece of an answer, or all of it."""
        if self._chunks is None:
            return
        self._chunks.append(chunk)
        self._recorded_bytes += len(chunk)
        self._quota.used_bytes += len(chunk)
        if self._recorded_bytes > self._quota.max_response_bytes or self._quota.used_bytes > self._quota.max_bytes:
            self.discard()

    def finish(self, backend: Backend, dropped_fields: tuple[str, ...]) -> None:
        """The answer is whole."""
        chunks = self._chunks
        self.discard()
        if chunks is not None:
            self._store(b"".join(chunks), backend, dropped_fields)

    def discard(self) -> None:
        """The answer is not to be kept; twice is the same as once."""
        self._quota.used_bytes -= self._recorded_bytes
        self._chunks, self._recorded_bytes = None, 0
