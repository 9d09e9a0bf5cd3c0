"""A stream on its way between two dialects: events cut from bytes, honest ends, errors before and after the start.

Pipe ─ HandedOn ─ one `PassedStream` per dialect (the same dialect on both sides)
     └ pipe.Translation                          (through the hub form)
"""

from __future__ import annotations

from svc.dialects.fastpath.chunk_template import MAX_LEARNED_TEMPLATES, ChunkTemplate, is_plain_json_text
from svc.dialects.upstream_errors import (
    decode_error_message,
    map_upstream_error,
    redact_key,
    truncated_response_error,
)
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import FinishReason
from svc.wire.sse import EventSplitter, split_events
from svc.wire.usage import TokenUsage


class StreamTransform:
    """What to do with events is left to those who inherit. No bytes may be fed after `ended`."""

    __slots__ = (
        "_splitter",
        "api_key",
        "error",
        "finish_reason",
        "has_ended",
        "has_started",
        "model",
        "passthrough_template",
        "usage",
    )

    def __init__(self) -> None:
        self.has_started = False
        """A first valid event has come: the client's 200 may go out."""
        self.has_ended = False
        """Everything for the client has been returned: the end mark, or an error."""
        self.finish_reason: FinishReason | None = None
        self.usage: TokenUsage | None = None
        self.error: SvcError | None = None
        """Why it failed after it had started."""
        self.model: str | None = None
        """The model that answered, in the upstream's words."""
        self.api_key = ""
        """The provider's own, which no error may hold."""
        self.passthrough_template: ChunkTemplate | None = None
        """What the next event may be held to instead of being fed: the stream goes on, is between two events, and
        events of this template go on as they came."""
        self._splitter = EventSplitter()

    def disable_fast_paths(self) -> None:
        """Parse every event, also one that resembles an earlier one. To be called before the first `feed`."""

    def feed(self, chunk: bytes) -> bytes:
        """Bytes from the upstream -> bytes for the client (perhaps none). Raises SvcError before `started` only."""
        if self.has_ended:
            return b""
        try:
            block = self._splitter.feed_block(chunk)
        except ProviderFailed as error:
            if not self.has_started:
                raise
            return self.fail(error)
        return self._process_block(block, is_last=False) if block else b""

    def end(self) -> bytes:
        """The upstream closed its answer: the end mark if it was complete, else an error.

        Never raises; when nothing was `started`, take `error` instead of the bytes.
        """
        if self.has_ended:
            return b""
        remainder = self._splitter.flush()
        out = b""
        if remainder:
            try:
                out = self._process_block(remainder, is_last=True)
            except SvcError as error:
                return self.fail(error)
        return out + self._end_stream(remainder)

    def fail(self, error: SvcError) -> bytes:
        """Ours broke it off (time-out, reset): the error in the client's shape; nothing once `ended`."""
        if self.has_ended:
            return b""
        self.has_ended = True
        self.error = error.strip_traceback()
        error.message = redact_key(error.message, self.api_key)
        return self._encode_error(error)

    def _end_stream(self, remainder: bytes) -> bytes:
        if self.has_ended:
            return b""
        if self._is_complete:
            self.has_ended = True
            return self._encode_end()
        message = None if self.has_started else decode_error_message(remainder)
        return self.fail(map_upstream_error(message) if message else truncated_response_error())

    def _fail_or_raise(self, out: bytes, error: SvcError, *, is_last: bool) -> bytes:
        """The end of a stream that an event has spoilt; raises before the start."""
        if is_last and self._is_complete:
            return out  # it broke off in an event after the finish, which nobody misses
        if not self.has_started:
            raise error
        return out + self.fail(error)

    @property
    def _is_complete(self) -> bool:
        """The answer is whole, with or without the upstream's end mark."""
        return self.finish_reason is not None

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        """What becomes of whole events; `last`: the stream is over and may have broken off within an event."""
        raise NotImplementedError

    def _encode_end(self) -> bytes:
        """The end mark of a complete answer."""
        raise NotImplementedError

    def _encode_error(self, error: SvcError) -> bytes:
        """The error in the client's shape."""
        raise NotImplementedError


class Passthrough(StreamTransform):
    """A stream between two sides of the same dialect: what is right goes on as the bytes it came in."""

    __slots__ = ("_max_templates", "_prefix", "_suffix", "_template")

    def __init__(self) -> None:
        super().__init__()
        self._max_templates = MAX_LEARNED_TEMPLATES
        self._template: ChunkTemplate | None = None
        self._prefix = b""
        self._suffix = b""
        """Of the frame: one object less to look into for each piece."""

    def disable_fast_paths(self) -> None:
        self._max_templates = 0

    def feed(self, chunk: bytes) -> bytes:
        if (
            self.passthrough_template is not None
            and chunk.startswith(self._prefix)
            and chunk.endswith(self._suffix)
            and is_plain_json_text(chunk, len(self._prefix), len(chunk) - len(self._suffix))
        ):
            return chunk  # one more chunk of plain ASCII text, which goes on as it came: the usual case
        out = super().feed(chunk)
        template = self._template
        if template is not None and template.is_plain and self._splitter.is_empty and not self.has_ended:
            self.passthrough_template, self._prefix, self._suffix = template, template.prefix, template.suffix
        else:
            self.passthrough_template = None
        return out

    def fail(self, error: SvcError) -> bytes:
        self.passthrough_template = None
        return super().fail(error)

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        template = self._template
        if template is not None and (converted := template.apply(block)) is not None:
            return converted
        out: list[bytes] = []
        unchanged_bytes = 0
        try:
            for event in split_events(block):
                client_event = self._pass_event(event)
                if client_event:
                    out.append(client_event)
                if client_event is event:
                    unchanged_bytes += len(event) + 2
                if self.has_ended:
                    break
        except SvcError as error:
            return self._fail_or_raise(_join_events(out), error, is_last=is_last)
        return block if unchanged_bytes == len(block) else _join_events(out)

    def _pass_event(self, event: bytes) -> bytes:
        template = self._template
        if template is not None and (converted := template.apply(event + b"\n\n")) is not None:
            return event if template.is_identity else converted[:-2]
        return self._process_event(event)

    def _process_event(self, event: bytes) -> bytes:
        """What the client gets for one event, without its blank line; the event itself if nothing is to change."""
        raise NotImplementedError


def _join_events(events: list[bytes]) -> bytes:
    return b"".join([event + b"\n\n" for event in events])
