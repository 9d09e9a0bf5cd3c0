"""A stream that another upstream can continue after an interruption, with the same encoder and id. No I/O.

    ResumableTranslation ── interrupted, only text so far ──> resume_request ──> continue_with: the next one

An error is kept in `error` until `give_up` encodes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Dialect, StreamDecoder, StreamEncoder
from svc.dialects.translation import MeteredTranslation
from svc.errors import SvcError
from svc.wire.chat import (
    ChatMessage,
    ChatRequest,
    StreamDelta,
    StreamError,
    StreamFinish,
    StreamStart,
    TextDelta,
    TextPart,
    UsageUpdate,
)

MAX_RESUMABLE_TEXT_BYTES: Final = 64 * 1024
"""Maximum text (about 16,000 tokens) of a resumable stream. It bounds the memory per stream."""
RESUME_COMMENT: Final = b": resumed\n\n"
"""Marks the continuation in the stream for debugging. Clients ignore comments."""


class ResumableTranslation(MeteredTranslation):
    """A translation that keeps the text."""

    __slots__ = ("_is_continuation", "_is_text_only", "_text", "_trailing_whitespace")

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder) -> None:
        super().__init__(decoder, encoder)
        self.disable_fast_paths()  # each text is kept
        self._text = bytearray()
        """The text in UTF-8, in one buffer. Single chunks, even in `io.StringIO`, would need ten times the memory."""
        self._is_text_only = True
        self._is_continuation = False
        self._trailing_whitespace = ""
        """Whitespace at the end of the text, which the next upstream does not get and can repeat."""

    @property
    def is_resumable(self) -> bool:
        """True if the stream has only text so far, so that another upstream can continue it."""
        return self._is_text_only and self.finish_reason is None

    def resume_request(self, original: ChatRequest) -> ChatRequest:
        """Return the request for the next upstream. The text so far is the start of the assistant message."""
        text = self._text.decode().rstrip()
        if not text:
            return original
        turn = ChatMessage("assistant", [TextPart(text)])
        return msgspec.structs.replace(original, messages=[*original.messages, turn])

    def continue_with(self, upstream: Dialect) -> ResumableTranslation:
        """Return the transform for the next upstream's stream."""
        continuation = ResumableTranslation(upstream.create_stream_decoder(), self._encoder)
        text = self._text.decode()
        continuation._text = self._text.copy()
        continuation._is_continuation = True
        continuation._trailing_whitespace = text[len(text.rstrip()) :]
        return continuation

    def give_up(self, error: SvcError) -> bytes:
        """End the stream, and return the error in the client's format."""
        self.has_ended = True
        self.error = error.strip_traceback()
        return self._encoder.encode_failure(error)

    def _encode_error(self, error: SvcError) -> bytes:
        return b""

    def _encode_delta(self, delta: StreamDelta) -> bytes:
        match delta:
            case TextDelta(text):
                if self._trailing_whitespace:
                    delta = TextDelta(self._strip_sent_whitespace(text))
                self._append_text(delta.text)
            case StreamStart() if self._is_continuation and not self.has_started:
                self._record_delta(delta)
                return RESUME_COMMENT
            case StreamStart() | StreamFinish() | UsageUpdate() | StreamError():
                pass
            case _:
                self._is_text_only = False
        return super()._encode_delta(delta)

    def _append_text(self, text: str) -> None:
        if self._is_text_only:
            self._text += text.encode()
            if len(self._text) > MAX_RESUMABLE_TEXT_BYTES:
                self._is_text_only = False
                self._text = bytearray()

    def _strip_sent_whitespace(self, text: str) -> str:
        """Remove leading whitespace that the client has already received."""
        while self._trailing_whitespace and text.startswith(self._trailing_whitespace[0]):
            text, self._trailing_whitespace = text[1:], self._trailing_whitespace[1:]
        if text:
            self._trailing_whitespace = ""
        return text


def supports_resume(request: ChatRequest) -> bool:
    """Return whether a response can be continued: it has one text, and the canonical chat covers the request."""
    if request.omitted:
        return False
    extra = {name for name, value in request.extra.items() if value not in (None, False)}
    return not extra - {"seed", "store", "metadata", "service_tier"} and request.messages[-1].role != "assistant"
