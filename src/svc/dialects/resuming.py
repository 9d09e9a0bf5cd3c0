"""A stream that can go on at another upstream after it broke: one writer, one id, the text in one piece. No I/O.

    Resumable ── broke, and only text was said ──> request (with the text so far) ──> go_on: the next Resumable

An error is held back in `error` until `give_up` writes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Dialect, StreamReader, StreamWriter
from svc.dialects.pipe import Translation
from svc.errors import SvcError
from svc.wire.chat import ChatRequest, Delta, Finish, Message, Start, StreamFailed, Text, TextDelta, UsageSeen

MAX_TEXT: Final = 64 * 1024
"""Bytes, some 16,000 tokens; a longer answer is not resumed: a client that does not read costs its text, too."""
MARK: Final = b": resumed\n\n"
"""Where the stream goes on, for those who look at the bytes: clients ignore comments."""


class Resumable(Translation):
    """`Pipe` through the hub form that keeps the text."""

    __slots__ = ("_goes_on", "_tail", "_text", "_textual")

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        super().__init__(reader, writer)
        self._text = bytearray()
        """In UTF-8, in one block: its pieces would take ten times as much, and those of a `StringIO` do."""
        self._textual = True
        self._goes_on = False
        self._tail = ""
        """White space at the end of the text, which was not sent to the next upstream and may come again."""

    @property
    def resumable(self) -> bool:
        """Nothing but text was said, so that another can take it up."""
        return self._textual and self.finish is None

    def request(self, asked: ChatRequest) -> ChatRequest:
        """What the next upstream is asked: the text so far begins the assistant's turn."""
        text = self._text.decode().rstrip()
        if not text:
            return asked
        turn = Message("assistant", [Text(text)])
        return msgspec.structs.replace(asked, messages=[*asked.messages, turn])

    def go_on(self, upstream: Dialect) -> Resumable:
        """The pipe for the next upstream's stream."""
        other = Resumable(upstream.reader(), self._writer)
        text = self._text.decode()
        other._text = self._text.copy()
        other._goes_on = True
        other._tail = text[len(text.rstrip()) :]
        return other

    def give_up(self, error: SvcError) -> bytes:
        """The error in the client's shape: the stream ends here."""
        self.ended = True
        self.error = error.bare()
        return self._writer.fail(error)

    def _error(self, error: SvcError) -> bytes:
        return b""

    def _write(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                if self._tail:
                    delta = TextDelta(self._joined(text))
                self._keep(delta.text)
            case Start() if self._goes_on and not self.started:
                self._note(delta)
                return MARK
            case Start() | Finish() | UsageSeen() | StreamFailed():
                pass
            case _:
                self._textual = False
        return super()._write(delta)

    def _keep(self, text: str) -> None:
        if self._textual:
            self._text += text.encode()
            if len(self._text) > MAX_TEXT:
                self._textual = False
                self._text = bytearray()

    def _joined(self, text: str) -> str:
        """Without the white space that the client has already."""
        while self._tail and text.startswith(self._tail[0]):
            text, self._tail = text[1:], self._tail[1:]
        if text:
            self._tail = ""
        return text


def resumable(asked: ChatRequest) -> bool:
    """Whether the request's answer can be handed over: nothing that the hub form has no place for, one text."""
    if asked.omitted:
        return False
    extra = {name for name, value in asked.extra.items() if value not in (None, False)}
    return not extra - {"seed", "store", "metadata", "service_tier"} and asked.messages[-1].role != "assistant"
