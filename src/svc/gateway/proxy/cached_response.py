"""An answer from the cache, in the place of an exchange's tries: nothing is sent to any upstream.

JSON: whole, at once         a stream: in pieces, as the client reads them
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
"""Bytes of a stream that are handed to the client's connection at once."""


class ReplayOwner(Protocol):
    """The exchange that the answer is for."""

    def on_intermediate_chunk(self, data: bytes) -> None:
        """A piece of the stream, not the last one."""

    def run_guarded(self, step: Callable[[], None]) -> None:
        """Runs a step whose errors are answered."""

    def on_replay_end(self, data: bytes, error: SvcError | None) -> None:
        """The last piece of the stream or the whole answer, and what broke it off."""


class ResponseReplay:
    """As `tries.Tries`, for `offer`, which answered once."""

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
        self.resume_count = 0
        self.dropped_fields = cached.dropped
        self.backend = backend

    def start(self, now: float) -> None:
        """At once; `now` is loop time."""
        if self._is_stream:
            self._send_next_chunk()
        else:
            self._finish(self._cached.body, None)

    def _send_next_chunk(self) -> None:
        """One piece, and the next in the loop's next turn: others are not to wait for a long answer."""
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
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._next_chunk_handle is None:
            self._send_next_chunk()

    def stop(self, failure: AttemptFailure) -> None:
        """Breaks off a stream that has begun."""
        self._finish(b"", failure.error)

    def close(self) -> None:
        self._owner = None
        if self._next_chunk_handle is not None:
            self._next_chunk_handle.cancel()

    def _finish(self, data: bytes, error: SvcError | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.on_replay_end(data, error)


def backend_of_cached(cached: CachedResponse | None, backends: tuple[Backend, ...]) -> Backend | None:
    """Of the targets that may answer the request, the one that did."""
    if cached is None:
        return None
    return next((one for one in backends if (one.provider.name, one.model.id) == (cached.provider, cached.model)), None)
