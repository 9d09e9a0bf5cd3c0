"""The stream of an Anthropic upstream on its way to an Anthropic client: checked, and handed on as it is."""

from __future__ import annotations

from typing import Final

from svc.dialects.anthropic.faults import OVERLOADED, error_event, type_in
from svc.dialects.anthropic.reader import AnthropicReader
from svc.dialects.anthropic.writer import AnthropicWriter
from svc.dialects.anthropic.writer import event as written
from svc.dialects.failures import CREDENTIALS, cut_short, error_of, message_in, presentable
from svc.dialects.flow import HandedOn
from svc.dialects.template import MAX_LEARNED, learn
from svc.errors import ProviderFailed, SvcError, UpstreamError
from svc.wire.chat import Delta, Finish, Start, StreamFailed, TextDelta, ThinkingDelta, ToolArguments, UsageSeen
from svc.wire.sse import MAX_EVENT, event_data

_TEXTS: Final[dict[type, bytes]] = {TextDelta: b"text", ThinkingDelta: b"thinking", ToolArguments: b"partial_json"}


class PassedStream(HandedOn):
    """`Pipe` from an Anthropic upstream to an Anthropic client."""

    __slots__ = ("_early", "_learned", "_reader")

    def __init__(self) -> None:
        super().__init__()
        self._early = b""
        """Events before `message_start`, such as `ping`: the client gets them once the stream has begun."""
        self._reader = AnthropicReader()
        self._learned = 0

    def _event(self, event: bytes) -> bytes:
        self._template = None
        if event_data(event) is None:
            return b""
        begun = self.started
        deltas = self._reader.read(event)
        if self.started and deltas and type(deltas[0]) is Start:
            return b""  # said again
        for delta in deltas:
            self._note(delta)
        if self._reader.complete:
            if not self._complete:
                raise cut_short()
            self.ended = True
        elif len(deltas) == 1 and self._learned < MAX_LEARNED:
            self._learn(event, deltas[0])
        if not begun and self._reader.missing is not None:
            return AnthropicWriter().write(self._reader.missing) + self._early + event
        if not self.started:
            self._early += event + b"\n\n"
            if len(self._early) > MAX_EVENT:
                raise ProviderFailed("The provider's stream has no beginning.")
            return b""
        early, self._early = self._early, b""
        return early + event if early else event

    def _learn(self, event: bytes, delta: Delta) -> None:
        name = _TEXTS.get(type(delta))
        if name is not None:
            self._learned += 1
            self._template = learn(event, event, name)

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
                raise self._upstream_error(delta)
            case _ if not self.started:
                raise ProviderFailed("The provider's stream has no beginning.")

    def _upstream_error(self, failed: StreamFailed) -> SvcError:
        """The upstream's error in its own words, unless it is about the gateway's key."""
        error, body = error_of(failed), self._reader.error
        kind = type_in(body)
        if kind and kind not in CREDENTIALS:
            error.upstream = UpstreamError(OVERLOADED if kind == "overloaded_error" else error.status, kind, {})
            error.message = presentable(message_in(body) or "") or error.message
        return error

    def _mark(self) -> bytes:
        return written("message_stop", {})

    def _error(self, error: SvcError) -> bytes:
        return error_event(error)
