"""A stream that can go on at another upstream after it broke: one writer, one id, the text in one piece. No I/O.

    Resumable ── broke, and only text was said ──> request (with the text so far) ──> go_on: the next Resumable

An error is held back in `error` until `give_up` writes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Dialect, StreamDecoder, StreamEncoder
from svc.dialects.translation import StreamTranslation
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
"""Bytes, some 16,000 tokens; a longer answer is not resumed: a client that does not read costs its text, too."""
RESUME_COMMENT: Final = b": resumed\n\n"
"""Where the stream goes on, for those who look at the bytes: clients ignore comments."""


class ResumableTranslation(StreamTranslation):
    """`Pipe` through the hub form that keeps the text."""

    __slots__ = ("_is_continuation", "_is_text_only", "_text", "_trailing_whitespace")

    def __init__(self, decoder: StreamDecoder, encoder: StreamEncoder) -> None:
        super().__init__(decoder, encoder)
        self._text = bytearray()
        """In UTF-8, in one block: its pieces would take ten times as much, and those of a `StringIO` do."""
        self._is_text_only = True
        self._is_continuation = False
        self._trailing_whitespace = ""
        """White space at the end of the text, which was not sent to the next upstream and may come again."""

    @property
    def is_resumable(self) -> bool:
        """Nothing but text was said, so that another can take it up."""
        return self._is_text_only and self.finish_reason is None

    def resume_request(self, original: ChatRequest) -> ChatRequest:
        """What the next upstream is asked: the text so far begins the assistant's turn."""
        text = self._text.decode().rstrip()
        if not text:
            return original
        turn = ChatMessage("assistant", [TextPart(text)])
        return msgspec.structs.replace(original, messages=[*original.messages, turn])

    def continue_with(self, upstream: Dialect) -> ResumableTranslation:
        """The pipe for the next upstream's stream."""
        continuation = ResumableTranslation(upstream.create_stream_decoder(), self._encoder)
        text = self._text.decode()
        continuation._text = self._text.copy()
        continuation._is_continuation = True
        continuation._trailing_whitespace = text[len(text.rstrip()) :]
        return continuation

    def give_up(self, error: SvcError) -> bytes:
        """The error in the client's shape: the stream ends here."""
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
        """Without the white space that the client has already."""
        while self._trailing_whitespace and text.startswith(self._trailing_whitespace[0]):
            text, self._trailing_whitespace = text[1:], self._trailing_whitespace[1:]
        if text:
            self._trailing_whitespace = ""
        return text


def supports_resume(request: ChatRequest) -> bool:
    """Whether the request's answer can be handed over: nothing that the hub form has no place for, one text."""
    if request.omitted:
        return False
    extra = {name for name, value in request.extra.items() if value not in (None, False)}
    return not extra - {"seed", "store", "metadata", "service_tier"} and request.messages[-1].role != "assistant"
