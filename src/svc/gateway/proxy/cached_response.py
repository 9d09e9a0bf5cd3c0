"""Replays a cached response to the client, without an upstream request.

A JSON response is sent at once. A stream is sent in chunks, at the speed of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from svc.errors import SvcError
from svc.gateway.accounting.record import AttemptRecord
from svc.gateway.cache.memory import CachedResponse
from svc.gateway.proxy.attempt import Attempt
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure

REPLAY_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of a stream that are written to the client connection at once."""


class ReplayOwner(Protocol):
    """The exchange that receives the cached response."""

    def on_intermediate_chunk(self, data: bytes) -> None:
        """Handle a chunk of the stream that is not the last one."""

    def run_guarded(self, step: Callable[[], None]) -> None:
        """Run a step, and send its error to the client as a response."""

    def on_replay_end(self, data: bytes, error: SvcError | None) -> None:
        """Handle the last chunk of a stream, or the whole response. `error` ended the response early."""


class ResponseReplay:
    """Replaces `RetryLoop` for a cache hit. `backend` is the backend that produced the cached response."""

    __slots__ = (
        "_cached",
        "_is_paused",
        "_is_stream",
        "_next_chunk_handle",
        "_offset",
        "_owner",
        "attempt",
        "attempt_count",
        "attempt_records",
        "backend",
        "dropped_fields",
        "last_attempt",
        "resume_count",
    )

    def __init__(self, owner: ReplayOwner, cached: CachedResponse, backend: Backend, *, stream: bool) -> None:
        self._owner: ReplayOwner | None = owner
        self._cached = cached
        self._is_stream = stream
        self._offset = 0
        self._is_paused = False
        self._next_chunk_handle: asyncio.Handle | None = None
        self.attempt: Attempt | None = None
        self.attempt_count = 0
        self.attempt_records: tuple[AttemptRecord, ...] = ()
        self.last_attempt: AttemptRecord | None = None
        self.resume_count = 0
        self.dropped_fields = cached.dropped
        self.backend = backend

    def start(self, now: float) -> None:
        """Start to send the response. `now` is loop time in seconds."""
        if self._is_stream:
            self._send_next_chunk()
        else:
            self._finish(self._cached.body, None)

    def _send_next_chunk(self) -> None:
        """Send one chunk, and schedule the next one with the loop: other requests run in between."""
        self._next_chunk_handle = None
        if self._is_paused or self._owner is None:
            return
        chunk = self._cached.body[self._offset : self._offset + REPLAY_CHUNK_BYTES]
        self._offset += REPLAY_CHUNK_BYTES
        if self._offset >= len(self._cached.body):
            self._finish(chunk, None)
        else:
            self._owner.on_intermediate_chunk(chunk)
            self._next_chunk_handle = asyncio.get_running_loop().call_soon(
                self._owner.run_guarded, self._send_next_chunk
            )

    def pause(self) -> None:
        """Stop sending until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue sending."""
        self._is_paused = False
        if self._next_chunk_handle is None:
            self._send_next_chunk()

    def stop(self, failure: AttemptFailure) -> None:
        """End a started stream with an error."""
        self._finish(b"", failure.error)

    def close(self) -> None:
        """Stop sending. No callback follows."""
        self._owner = None
        if self._next_chunk_handle is not None:
            self._next_chunk_handle.cancel()

    def _finish(self, data: bytes, error: SvcError | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.on_replay_end(data, error)


def backend_of_cached(cached: CachedResponse | None, backends: tuple[Backend, ...]) -> Backend | None:
    """Return the backend that produced a cached response, or None if the request may not use it."""
    if cached is None:
        return None
    return next(
        (
            backend
            for backend in backends
            if (backend.provider.name, backend.model.id) == (cached.provider, cached.model)
        ),
        None,
    )
