"""A stream between two dialects: events -> deltas -> events.

feed ─ Splitter ─ event ─ StreamReader ─ delta ─ StreamWriter ─> bytes for the client
"""

from __future__ import annotations

from svc.dialects.base import Dialect, StreamReader, StreamWriter, Target
from svc.dialects.failures import cut_short, error_of
from svc.dialects.flow import Pipe
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import Delta, Finish, Start, StreamFailed, TextDelta, UsageSeen
from svc.wire.sse import split


def open_pipe(upstream: Dialect, client: Dialect, *, include_usage: bool, target: Target | None = None) -> Pipe:
    """The pipe for a stream from `target`; the same dialect on both sides does not go through the hub."""
    if upstream.name == client.name:
        return client.pass_stream(include_usage=include_usage, target=target)
    return Translation(upstream.reader(), client.writer(include_usage=include_usage))


class Translation(Pipe):
    """`Pipe` through the hub form."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    def _pass(self, block: bytes, *, last: bool) -> bytes:
        out: list[bytes] = []
        try:
            for event in split(block):
                out.extend(self._write(delta) for delta in self._reader.read(event))
                if self._reader.complete:
                    out.append(self._end())
                    break
        except SvcError as error:
            return self._broken(b"".join(out), error, last=last)
        return b"".join(out)

    def _end(self) -> bytes:
        if not self._complete:
            raise cut_short()
        self.ended = True
        return self._mark()

    def _write(self, delta: Delta) -> bytes:
        if type(delta) is not TextDelta:
            if self.started and type(delta) is Start:
                return b""  # said again: a role comes once
            self._note(delta)
        elif not self.started:
            raise ProviderFailed("The provider's stream has no beginning.")
        return self._writer.write(delta)

    def _note(self, delta: Delta) -> None:
        match delta:
            case Start():
                self.started = True
                self.model = delta.model
                self.usage = delta.usage or self.usage
            case UsageSeen(usage):
                self.usage = usage
            case Finish(reason):
                self.finish = reason
            case StreamFailed():
                raise error_of(delta)
            case _ if not self.started:
                raise ProviderFailed("The provider's stream has no beginning.")

    def _mark(self) -> bytes:
        return self._writer.end()

    def _error(self, error: SvcError) -> bytes:
        return self._writer.fail(error)
