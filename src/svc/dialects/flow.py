"""A stream on its way between two dialects: events cut from bytes, honest ends, errors before and after the start.

Pipe ─ HandedOn ─ one `PassedStream` per dialect (the same dialect on both sides)
     └ pipe.Translation                          (through the hub form)
"""

from __future__ import annotations

from svc.dialects.failures import cut_short, failure_of, find_message, without
from svc.dialects.template import Template, is_plain
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import FinishReason
from svc.wire.sse import Splitter, split
from svc.wire.usage import Usage


class Pipe:
    """What to do with events is left to those who inherit. No bytes may be fed after `ended`."""

    __slots__ = ("_splitter", "ended", "error", "finish", "frame", "key", "model", "started", "usage")

    def __init__(self) -> None:
        self.started = False
        """A first valid event has come: the client's 200 may go out."""
        self.ended = False
        """Everything for the client has been returned: the end mark, or an error."""
        self.finish: FinishReason | None = None
        self.usage: Usage | None = None
        self.error: SvcError | None = None
        """Why it failed after it had started."""
        self.model: str | None = None
        """The model that answered, in the upstream's words."""
        self.key = ""
        """The provider's own, which no error may hold."""
        self.frame: Template | None = None
        """What the next event may be held to instead of being fed: the stream goes on, is between two events, and
        events of this template go on as they came."""
        self._splitter = Splitter()

    def feed(self, data: bytes) -> bytes:
        """Bytes from the upstream -> bytes for the client (perhaps none). Raises SvcError before `started` only."""
        if self.ended:
            return b""
        try:
            block = self._splitter.take(data)
        except ProviderFailed as error:
            if not self.started:
                raise
            return self.fail(error)
        return self._pass(block, last=False) if block else b""

    def end(self) -> bytes:
        """The upstream closed its answer: the end mark if it was complete, else an error.

        Never raises; when nothing was `started`, take `error` instead of the bytes.
        """
        if self.ended:
            return b""
        rest = self._splitter.flush()
        out = b""
        if rest:
            try:
                out = self._pass(rest, last=True)
            except SvcError as error:
                return self.fail(error)
        return out + self._close(rest)

    def fail(self, error: SvcError) -> bytes:
        """Ours broke it off (time-out, reset): the error in the client's shape; nothing once `ended`."""
        if self.ended:
            return b""
        self.ended = True
        self.error = error.bare()
        error.message = without(error.message, self.key)
        return self._error(error)

    def _close(self, rest: bytes) -> bytes:
        if self.ended:
            return b""
        if self._complete:
            self.ended = True
            return self._mark()
        found = None if self.started else find_message(rest)
        return self.fail(failure_of(found) if found else cut_short())

    def _broken(self, out: bytes, error: SvcError, *, last: bool) -> bytes:
        """The end of a stream that an event has spoilt; raises before the start."""
        if last and self._complete:
            return out  # it broke off in an event after the finish, which nobody misses
        if not self.started:
            raise error
        return out + self.fail(error)

    @property
    def _complete(self) -> bool:
        """The answer is whole, with or without the upstream's end mark."""
        return self.finish is not None

    def _pass(self, block: bytes, *, last: bool) -> bytes:
        """What becomes of whole events; `last`: the stream is over and may have broken off within an event."""
        raise NotImplementedError

    def _mark(self) -> bytes:
        """The end mark of a complete answer."""
        raise NotImplementedError

    def _error(self, error: SvcError) -> bytes:
        """The error in the client's shape."""
        raise NotImplementedError


class HandedOn(Pipe):
    """A stream between two sides of the same dialect: what is right goes on as the bytes it came in."""

    __slots__ = ("_prefix", "_suffix", "_template")

    def __init__(self) -> None:
        super().__init__()
        self._template: Template | None = None
        self._prefix = b""
        self._suffix = b""
        """Of the frame: one object less to look into for each piece."""

    def feed(self, data: bytes) -> bytes:
        if (
            self.frame is not None
            and data.startswith(self._prefix)
            and data.endswith(self._suffix)
            and is_plain(data, len(self._prefix), len(data) - len(self._suffix))
        ):
            return data  # one more chunk of plain ASCII text, which goes on as it came: the usual case
        out = super().feed(data)
        template = self._template
        if template is not None and template.plain and self._splitter.empty and not self.ended:
            self.frame, self._prefix, self._suffix = template, template.prefix, template.suffix
        else:
            self.frame = None
        return out

    def fail(self, error: SvcError) -> bytes:
        self.frame = None
        return super().fail(error)

    def _pass(self, block: bytes, *, last: bool) -> bytes:
        template = self._template
        if template is not None and (carried := template.carry(block)) is not None:
            return carried
        out: list[bytes] = []
        same = 0
        try:
            for event in split(block):
                made = self._hand(event)
                if made:
                    out.append(made)
                if made is event:
                    same += len(event) + 2
                if self.ended:
                    break
        except SvcError as error:
            return self._broken(_joined(out), error, last=last)
        return block if same == len(block) else _joined(out)

    def _hand(self, event: bytes) -> bytes:
        template = self._template
        if template is not None and (carried := template.carry(event + b"\n\n")) is not None:
            return event if template.same else carried[:-2]
        return self._event(event)

    def _event(self, event: bytes) -> bytes:
        """What the client gets for one event, without its blank line; the event itself if nothing is to change."""
        raise NotImplementedError


def _joined(events: list[bytes]) -> bytes:
    return b"".join([event + b"\n\n" for event in events])
