"""Transforms an upstream's stream for the client: splits events, detects truncation, and encodes errors.

StreamTransform ─ Passthrough ─ one subclass per dialect (the same dialect on both sides)
                └ StreamTranslation ─ MeteredTranslation (through the canonical chat)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from svc.dialects.fastpath.chunk_template import MAX_LEARNED_TEMPLATES, ChunkTemplate, learn_template
from svc.dialects.upstream_errors import (
    decode_error_message,
    from_stream_error,
    map_upstream_error,
    redact_error,
    truncated_response_error,
)
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import FinishReason, StreamDelta, StreamError, StreamFinish, StreamStart, UsageUpdate
from svc.wire.sse import EventSplitter, split_events
from svc.wire.usage import TokenUsage

EVENT_STREAM_CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"


class StreamTransform:
    """Transforms one stream. Subclasses process its events."""

    __slots__ = (
        "_remaining_templates",
        "_splitter",
        "_start_usage",
        "_template",
        "_usage_before_finish",
        "api_key",
        "can_encode_errors",
        "content_type",
        "error",
        "finish_reason",
        "has_ended",
        "has_started",
        "map_error",
        "model",
        "passthrough_template",
        "request_body",
        "request_id",
        "spliced_tokens",
        "usage",
        "usage_is_estimated",
    )

    def __init__(self) -> None:
        self.has_started = False
        """True after the first valid event: the client can get its status 200."""
        self.has_ended = False
        """True after the end mark or an error was returned."""
        self.finish_reason: FinishReason | None = None
        self.usage: TokenUsage | None = None
        self.usage_is_estimated = False
        """Whether `usage` is not the upstream's own."""
        self.content_type = EVENT_STREAM_CONTENT_TYPE
        """The media type of the client's response."""
        self.can_encode_errors = True
        """Whether an error can be a part of the stream. Otherwise the client's connection is closed after an error."""
        self.error: SvcError | None = None
        """The error of a failed stream."""
        self.model: str | None = None
        """The model of the response, as the upstream names it."""
        self.api_key = ""
        """The provider's key, which is redacted from errors."""
        self.map_error: Callable[[SvcError], SvcError] | None = None
        """Returns the error for the client in place of one that the stream contains, or the same."""
        self.request_id = ""
        """The gateway's request id, for the error of a dialect that has one there."""
        self.request_body = b""
        """The body of the request, from which a missing usage is estimated. Empty if the client needs none."""
        self.spliced_tokens = 0
        """Estimated tokens of the events that bypassed `feed`, up to the present event. Set with `request_body`."""
        self.passthrough_template: ChunkTemplate | None = None
        """A template for the next event. Set only between two events of a running stream.

        An event that matches it can be converted by the template, without `feed`.
        """
        self._template: ChunkTemplate | None = None
        """The template of the last event. It converts events that differ from that one in their text only."""
        self._remaining_templates = MAX_LEARNED_TEMPLATES
        """How many more templates may be learned."""
        self._start_usage: TokenUsage | None = None
        """The usage of the start event, which has only the first tokens of the completion."""
        self._usage_before_finish: TokenUsage | None = None
        """The usage before the event with the finish reason."""
        self._splitter = EventSplitter()

    @property
    def has_final_usage(self) -> bool:
        """Whether `usage` is that of the complete response. Some upstreams also report a usage at the start."""
        is_later = self.usage is not None and self.usage is not self._usage_before_finish
        return is_later and self.finish_reason is not None

    @property
    def has_only_start_usage(self) -> bool:
        """Whether the upstream has reported no usage since its start event."""
        return self.usage is not None and self.usage is self._start_usage

    @property
    def text_tokens(self) -> int | None:
        """Return the estimated tokens of the text so far, or None if they have to be estimated from all bytes."""
        return None

    @property
    def input_usage(self) -> TokenUsage | None:
        """Return what is billed if the client disconnects before the stream starts. None: the tokens of the request."""
        return None

    @property
    def final_response(self) -> bytes:
        """Return the last response object as JSON, for stored responses. Empty if there is none."""
        return b""

    @property
    def native_id(self) -> str:
        """Return the id by which the provider knows the response in later requests, or an empty string."""
        return ""

    def disable_fast_paths(self) -> None:
        """Parse every event, even if it matches a template. Call it before the first `feed`."""
        self._remaining_templates = 0

    def accept_head(self, content_type: bytes) -> bool:
        """Return whether a response with this media type is a stream. It is empty if the upstream sent none."""
        return not content_type or content_type.lower().find(b"event-stream") >= 0

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes for the client, or none. Raises SvcError only before `has_started`."""
        if self.has_ended:
            return b""
        template = self.passthrough_template
        if template is not None and (converted := template.apply(chunk)) is not None:
            return converted
        out = b""
        try:
            block = self._splitter.feed_block(chunk)
            if block:
                out = self._process_block(block, is_last=False)
            self._splitter.check_size()
        except ProviderFailed as error:
            if not self.has_started:
                raise
            return out + self.fail(error)
        self.passthrough_template = self._template if self._splitter.is_empty and not self.has_ended else None
        return out

    def end(self) -> bytes:
        """End the stream after the upstream closed it. Returns the end mark if it is complete, else an error.

        Never raises. If `has_started` is false, use `error` instead of the bytes.
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
        """End the stream after a timeout or reset. Returns the encoded error, or nothing if `has_ended`."""
        if self.has_ended:
            return b""
        self.has_ended = True
        self.passthrough_template = None
        error = self._map(error)
        self.error = error.strip_traceback()
        redact_error(error, self.api_key)
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
        """End a stream that has an invalid event. Raises the error before the start."""
        if is_last and self._is_complete:
            return out  # truncated after the finish: nothing is lost
        if not self.has_started:
            raise self._map(error)
        return out + self.fail(error)

    def _map(self, error: SvcError) -> SvcError:
        return error if self.map_error is None else self.map_error(error)

    def _record_delta(self, delta: StreamDelta) -> None:
        """Record what a delta says about the stream. Raises the error of a StreamError, and ProviderFailed."""
        match delta:
            case StreamStart():
                self.has_started = True
                self.model = delta.model
                self.usage = self._start_usage = delta.usage or self.usage
            case UsageUpdate(usage):
                self.usage = usage
            case StreamFinish(reason):
                self.finish_reason = reason
            case StreamError():
                raise self._to_error(delta)
            case _ if not self.has_started:
                raise ProviderFailed("The provider's stream has no start event.")

    def _to_error(self, stream_error: StreamError) -> SvcError:
        """Return the error that a stream contains."""
        return from_stream_error(stream_error)

    def _learn_template(self, event: bytes, client_event: bytes, field: bytes, client_field: bytes = b"") -> None:
        """Make a template of an event whose only text is `field`, unless the stream has had too many."""
        if self._remaining_templates > 0:
            self._template = learn_template(event, client_event, field, client_field)
            if self._template is not None:
                self._remaining_templates -= 1

    @property
    def _is_complete(self) -> bool:
        """True if the response is complete, with or without the upstream's end mark."""
        return self.finish_reason is not None

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        """Process complete events. If `is_last`, the stream has ended, possibly within an event."""
        raise NotImplementedError

    def _encode_end(self) -> bytes:
        """Return the end mark of a complete response."""
        raise NotImplementedError

    def _encode_error(self, error: SvcError) -> bytes:
        """Return the error in the client's format."""
        raise NotImplementedError


class Passthrough(StreamTransform):
    """A stream between an upstream and a client of one dialect. It forwards the bytes of valid events unchanged."""

    __slots__ = ()

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
        if self.finish_reason is None:
            self._usage_before_finish = self.usage
        return self._process_event(event)

    def _process_event(self, event: bytes) -> bytes:
        """Return the client's bytes for one event, without its blank line. An unchanged event is returned as is."""
        raise NotImplementedError


def _join_events(events: list[bytes]) -> bytes:
    return b"".join([event + b"\n\n" for event in events])
