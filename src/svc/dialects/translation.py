"""Translates a stream between two dialects.

upstream ── events ──> StreamDecoder ── deltas ──> StreamEncoder ── events ──> client
"""

from __future__ import annotations

from svc.dialects.base import StreamDecoder, StreamEncoder
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import from_stream_error, truncated_response_error
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import (
    StreamDelta,
    StreamError,
    StreamFinish,
    StreamStart,
    TextDelta,
    UsageUpdate,
)
from svc.wire.sse import split_events


class StreamTranslation(StreamTransform):
    """Translates a stream through the deltas of the canonical chat."""

    __slots__ = ("_decoder", "_encoder")

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder) -> None:
        super().__init__()
        self._decoder = decoder
        self._encoder = encoder

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        out: list[bytes] = []
        try:
            for event in split_events(block):
                out.extend(self._encode_delta(delta) for delta in self._decoder.decode(event))
                if self._decoder.is_complete:
                    out.append(self._finish())
                    break
        except SvcError as error:
            return self._fail_or_raise(b"".join(out), error, is_last=is_last)
        return b"".join(out)

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

    def _record_delta(self, delta: StreamDelta) -> None:
        match delta:
            case StreamStart():
                self.has_started = True
                self.model = delta.model
                self.usage = delta.usage or self.usage
            case UsageUpdate(usage):
                self.usage = usage
            case StreamFinish(reason):
                self.finish_reason = reason
            case StreamError():
                raise from_stream_error(delta)
            case _ if not self.has_started:
                raise ProviderFailed("The provider's stream has no start event.")

    def _encode_end(self) -> bytes:
        return self._encoder.encode_end()

    def _encode_error(self, error: SvcError) -> bytes:
        return self._encoder.encode_failure(error)
