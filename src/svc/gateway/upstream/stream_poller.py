"""Reads and forwards the chunks of streams in place of the event loop, with a C module where it is compiled.

    event loop ── the poller is readable ──> poll ─┬─ chunks that match the template ──> the client's socket
      (uvloop)                                     └─ other data ──> `on_data`

The module `_stream_poller` has an epoll of its own, which the event loop watches as one descriptor. A chunk that it
forwards enters neither uvloop nor Python. Streams through TLS stay with the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from svc.gateway.upstream.chunk_converter import ChunkConverter

if TYPE_CHECKING:
    from svc.gateway.upstream._stream_poller import Poller


class PolledStream(Protocol):
    """One stream from a provider's socket to a client's."""

    def enable_forwarding(self, converter: ChunkConverter, client_fd: int, /) -> None:
        """Send what the converter makes of the next reads to `client_fd`, until a read that it cannot convert.

        The descriptor must stay open, and nothing may wait to be sent to it, until `disable_forwarding`.
        """

    def disable_forwarding(self) -> None:
        """Pass all reads to `on_data`."""

    def take_activity(self) -> bool:
        """Return whether chunks were forwarded since the last call."""

    def stop(self) -> None:
        """Stop reading. No callback follows. Call this before the provider's socket is closed."""


def _load() -> type[Poller] | None:
    """Return the class of the C module."""
    try:
        from svc.gateway.upstream import _stream_poller as module  # noqa: PLC0415 absent if it runs from source
    except ImportError:
        return None
    return module.Poller


_COMPILED_POLLER: Final = _load()


class StreamPoller:
    """The streams of one event loop."""

    __slots__ = ("_loop", "_poller")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._poller: Poller | None = None
        """None before the first `start`."""

    def start(
        self,
        provider_fd: int,
        *,
        on_data: Callable[[bytes], None],
        on_unsent: Callable[[bytes], None],
        on_hangup: Callable[[], None],
    ) -> PolledStream | None:
        """Read from a socket until the stream is stopped. Return None if the event loop has to read.

        That is the case where the module is not compiled, and when the system has no resources for another epoll or
        entry. `on_data` gets the reads that are not forwarded, and `on_unsent` forwarded data that the client's socket
        does not accept. Both turn forwarding off. An exception in either closes the connection to the provider, and in
        `on_unsent` also the client's. `on_hangup` is called when the provider has closed the connection, and must call
        `stop`. The transport reads the remaining data.
        """
        try:
            poller = self._poller or self._open()
            return None if poller is None else poller.start(provider_fd, on_data, on_unsent, on_hangup)
        except OSError:
            return None

    def _open(self) -> Poller | None:
        if _COMPILED_POLLER is None:
            return None
        poller = _COMPILED_POLLER()
        self._loop.add_reader(poller.fileno(), poller.poll)
        self._poller = poller
        return poller

    def close(self) -> None:
        """Read no more. Each stream must still be stopped."""
        if self._poller is not None:
            self._loop.remove_reader(self._poller.fileno())
            self._poller.close()
            self._poller = None
