"""Translates a stream between two dialects.

upstream ── events ──> StreamDecoder ── deltas ──> StreamEncoder ── events ──> client
"""

from __future__ import annotations

from typing import Final

from svc.dialects.base import StreamDecoder, StreamEncoder
from svc.dialects.divided_emoji import EmojiJoiner
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.token_estimate import billable_usage, estimate_completion_tokens
from svc.dialects.upstream_errors import truncated_response_error
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import StreamDelta, StreamStart, TextDelta, ToolCallArguments, UsageUpdate
from svc.wire.sse import split_events

MIN_USAGE_SAMPLE_BYTES: Final = 4096
"""The bytes of a stream from whose text density its tokens are estimated."""


class StreamTranslation(StreamTransform):
    """Translates a stream through the deltas of the canonical chat."""

    __slots__ = ("_decoder", "_emoji_joiner", "_encoder")

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder) -> None:
        super().__init__()
        self._decoder = decoder
        self._encoder = encoder
        self._emoji_joiner = EmojiJoiner()

    @property
    def final_response(self) -> bytes:
        return self._encoder.final_response

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        if self._template is not None and (translated := self._template.apply(block)) is not None:
            return translated
        out: list[bytes] = []
        try:
            for event in split_events(block):
                out.append(self._translate_event(event))
                if self._decoder.is_complete:
                    out.append(self._finish())
                    break
        except SvcError as error:
            return self._fail_or_raise(b"".join(out), error, is_last=is_last)
        return b"".join(out)

    def _translate_event(self, event: bytes) -> bytes:
        if self._template is not None and (translated := self._template.apply(event + b"\n\n")) is not None:
            return translated
        self._template = None
        if self.finish_reason is None:
            self._usage_before_finish = self.usage
        event = self._emoji_joiner.feed(event)
        deltas = self._decoder.decode(event)
        if len(deltas) != 1:
            return b"".join([self._encode_delta(delta) for delta in deltas])
        client_event = self._encode_delta(deltas[0])
        if type(deltas[0]) is TextDelta:
            field, client_field = self._decoder.text_field, self._encoder.text_field
        elif type(deltas[0]) is ToolCallArguments:
            field, client_field = self._decoder.arguments_field, self._encoder.arguments_field
        else:
            return client_event
        if field and client_field and client_event.endswith(b"\n\n"):
            self._learn_template(event, client_event[:-2], field, client_field)
        return client_event

    def _finish(self) -> bytes:
        if not self._is_complete:
            raise truncated_response_error()
        self.has_ended = True
        return self._encode_end()

    def _encode_delta(self, delta: StreamDelta) -> bytes:
        if type(delta) is not TextDelta:
            if self.has_started and type(delta) is StreamStart:
                return b""  # a repeated start: clients get the role once
            self._record_delta(delta)
        elif not self.has_started:
            raise ProviderFailed("The provider's stream has no start event.")
        return self._encoder.encode(delta)

    def _encode_end(self) -> bytes:
        return self._encoder.encode_end()

    def _encode_error(self, error: SvcError) -> bytes:
        return self._encoder.encode_failure(error)


class MeteredTranslation(StreamTranslation):
    """A StreamTranslation for a client that needs a usage. If the upstream reports none, it is estimated."""

    __slots__ = ("_received_bytes", "_sample")

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder) -> None:
        super().__init__(decoder, encoder)
        self._received_bytes = 0
        self._sample = b""
        """The start of the stream."""

    def feed(self, chunk: bytes) -> bytes:
        self._received_bytes += len(chunk)
        if len(self._sample) < MIN_USAGE_SAMPLE_BYTES:
            self._sample += chunk
        return super().feed(chunk)

    def _encode_end(self) -> bytes:
        if self.usage is None and self.request_body:
            tokens = estimate_completion_tokens(self._received_bytes, self._sample, self._sample)
            self.usage, self.usage_is_estimated = billable_usage(None, self.request_body, tokens + self.spliced_tokens)
            self._encoder.encode(UsageUpdate(self.usage))
        return super()._encode_end()
