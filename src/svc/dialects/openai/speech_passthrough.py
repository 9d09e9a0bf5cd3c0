"""OpenAI speech: forwards the audio of a response unchanged, or its events with `stream_format` sse.

Audio has no place for an error. If it is interrupted, the client's connection is closed before the end of the response.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.routing_info import RoutingInfo
from svc.dialects.stream_transform import StreamTransform
from svc.dialects.upstream_errors import map_upstream_error
from svc.errors import SvcError
from svc.wire.error import encode_error_body
from svc.wire.sse import split_events
from svc.wire.usage import MAX_USAGE_TOKENS, TokenUsage

TOKEN_MODEL_PREFIX: Final = "gpt-"  # noqa: S105 not a password
"""Models with these names are billed by tokens, all others by characters."""
TEXT_CHARACTERS_PER_TOKEN: Final = 4.0
AUDIO_TOKENS_PER_CHARACTER: Final = 1.4
"""A minute of speech is about 900 characters, and costs 1,250 tokens (https://platform.openai.com/docs/pricing)."""
_EVENT_STREAM: Final = b"event-stream"
_DATA_PREFIX: Final = b"data:"
_DONE_EVENT: Final = "speech.audio.done"


class SpeechPassthrough(StreamTransform):
    """One response, as audio or as events."""

    __slots__ = ("_is_event_stream", "_is_per_character", "_spoken_characters")

    def __init__(self, routing_info: RoutingInfo, model: str) -> None:
        super().__init__()
        self._spoken_characters: int = routing_info.spoken_characters
        self._is_per_character = not model.startswith(TOKEN_MODEL_PREFIX)
        self._is_event_stream = False

    @property
    def input_usage(self) -> TokenUsage | None:
        """Return the usage of the text."""
        if self._is_per_character:
            return TokenUsage(self._spoken_characters)
        return TokenUsage(max(1, round(self._spoken_characters / TEXT_CHARACTERS_PER_TOKEN)))

    def accept_head(self, content_type: bytes) -> bool:
        media_type = content_type.lower()
        if media_type.find(b"json") >= 0 or media_type.find(b"text/html") >= 0:
            return False
        self._is_event_stream = media_type.find(_EVENT_STREAM) >= 0
        self.can_encode_errors = self._is_event_stream
        if not self._is_event_stream:
            self.content_type = content_type.decode("latin-1") or "application/octet-stream"
        return True

    def feed(self, chunk: bytes) -> bytes:
        if self._is_event_stream:
            return super().feed(chunk)
        if self.has_ended or not chunk:
            return b""
        if not self.has_started:
            self._start()
        return chunk

    def end(self) -> bytes:
        if self._is_event_stream:
            return super().end()
        if self.has_started:
            self.has_ended = True
        return b""

    def _start(self) -> None:
        """Estimate the usage, which a response with audio does not report. Characters need no estimate."""
        self.has_started = True
        characters = self._spoken_characters
        if self._is_per_character:
            self.usage = TokenUsage(characters)
        else:
            self.usage_is_estimated = True
            self.usage = TokenUsage(
                max(1, round(characters / TEXT_CHARACTERS_PER_TOKEN)), round(characters * AUDIO_TOKENS_PER_CHARACTER)
            )

    # events

    def _process_block(self, block: bytes, *, is_last: bool) -> bytes:
        for event in split_events(block):
            payload = _decode_event(event)
            if payload is None:
                continue
            if payload.get("error"):
                error = map_upstream_error(payload["error"])
                if not self.has_started:
                    raise error
                return self.fail(error)
            if not self.has_started:
                self._start()
            if payload.get("type") == _DONE_EVENT:
                self._record_usage(payload.get("usage"))
                self.finish_reason = "stop"
                self.has_ended = True
        return block

    def _record_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict) or self._is_per_character:
            return
        input_tokens, output_tokens = _to_count(usage.get("input_tokens")), _to_count(usage.get("output_tokens"))
        if input_tokens >= 0 and output_tokens >= 0:
            self.usage = TokenUsage(input_tokens, output_tokens)
            self.usage_is_estimated = False

    def _encode_end(self) -> bytes:
        return b""

    def _encode_error(self, error: SvcError) -> bytes:
        return b"data: " + encode_error_body(error) + b"\n\n" if self._is_event_stream else b""


def _to_count(value: Any) -> int:
    """Return a count of tokens, or -1 if the value is not one."""
    return value if type(value) is int and 0 <= value <= MAX_USAGE_TOKENS else -1


def _decode_event(event: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an event, or None for a comment or anything else."""
    for line in event.split(b"\n"):
        if line.startswith(_DATA_PREFIX):
            try:
                payload = msgspec.json.decode(line[len(_DATA_PREFIX) :])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
            return payload if isinstance(payload, dict) else None
    return None
