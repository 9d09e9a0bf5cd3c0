"""An answer from the cache, in the place of an exchange's tries: nothing is sent to any upstream.

JSON: whole, at once         a stream: in pieces, as the client reads them
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from svc.errors import SvcError
from svc.gateway.attempt import Attempt
from svc.gateway.cache.memory import Kept
from svc.gateway.failures import Failure
from svc.gateway.offers import Offer

PIECE: Final = 64 * 1024
"""Bytes of a stream that are handed to the client's connection at once."""


class Owner(Protocol):
    """The exchange that the answer is for."""

    def said(self, data: bytes) -> None:
        """A piece of the stream, not the last one."""

    def guarded(self, step: Callable[[], None]) -> None:
        """Runs a step whose errors are answered."""

    def repeated(self, data: bytes, error: SvcError | None) -> None:
        """The last piece of the stream or the whole answer, and what broke it off."""


class Replay:
    """As `tries.Tries`, for `offer`, which answered once."""

    __slots__ = (
        "_at",
        "_kept",
        "_owner",
        "_paused",
        "_stream",
        "_turn",
        "attempt",
        "count",
        "dropped",
        "offer",
        "resumed",
    )

    def __init__(self, owner: Owner, kept: Kept, offer: Offer, *, stream: bool) -> None:
        self._owner: Owner | None = owner
        self._kept = kept
        self._stream = stream
        self._at = 0
        self._paused = False
        self._turn: asyncio.Handle | None = None
        self.attempt: Attempt | None = None
        self.count = 0
        self.resumed = 0
        self.dropped = kept.dropped
        self.offer = offer

    def start(self, now: float) -> None:
        """At once; `now` is loop time."""
        if self._stream:
            self._go_on()
        else:
            self._last(self._kept.body, None)

    def _go_on(self) -> None:
        """One piece, and the next in the loop's next turn: others are not to wait for a long answer."""
        self._turn = None
        if self._paused or self._owner is None:
            return
        piece = self._kept.body[self._at : self._at + PIECE]
        self._at += PIECE
        if self._at >= len(self._kept.body):
            self._last(piece, None)
        else:
            self._owner.said(piece)
            self._turn = asyncio.get_running_loop().call_soon(self._owner.guarded, self._go_on)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._turn is None:
            self._go_on()

    def stop(self, failure: Failure) -> None:
        """Breaks off a stream that has begun."""
        self._last(b"", failure.error)

    def end(self) -> None:
        self._owner = None
        if self._turn is not None:
            self._turn.cancel()

    def _last(self, data: bytes, error: SvcError | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.repeated(data, error)


def answerer(kept: Kept | None, chain: tuple[Offer, ...]) -> Offer | None:
    """Of the targets that may answer the request, the one that did."""
    if kept is None:
        return None
    return next((one for one in chain if (one.provider.name, one.model.id) == (kept.provider, kept.model)), None)
