"""Passes the stream of an Anthropic upstream to an Anthropic client: checks the events and forwards them unchanged."""

from __future__ import annotations

from typing import Final

from svc.dialects.anthropic.errors import (
    OVERLOADED_STATUS,
    encode_error_event,
    extract_details,
    extract_error_type,
)
from svc.dialects.anthropic.stream_decoder import KNOWN_EVENT_TYPES, AnthropicStreamDecoder
from svc.dialects.anthropic.stream_encoder import AnthropicStreamEncoder, encode_event
from svc.dialects.stream_transform import Passthrough
from svc.dialects.upstream_errors import (
    CREDENTIAL_ERROR_CODES,
    extract_message,
    from_stream_error,
    sanitize_message,
    truncated_response_error,
)
from svc.dialects.validation import decode_upstream_object
from svc.errors import ProviderFailed, SvcError, UpstreamError
from svc.wire.chat import StreamError, StreamStart, TextDelta, ThinkingDelta, ToolCallArguments
from svc.wire.sse import MAX_EVENT_BYTES, event_data, event_name

_TEXT_FIELDS_BY_DELTA: Final[dict[type, bytes]] = {
    TextDelta: b"text",
    ThinkingDelta: b"thinking",
    ToolCallArguments: b"partial_json",
}


class AnthropicPassthrough(Passthrough):
    """The StreamTransform from an Anthropic upstream to an Anthropic client."""

    __slots__ = ("_decoder", "_early_events")

    def __init__(self) -> None:
        super().__init__()
        self._early_events = b""
        """Events before `message_start`, such as `ping`. The client gets them after `message_start`."""
        self._decoder = AnthropicStreamDecoder()

    def _process_event(self, event: bytes) -> bytes:
        self._template = None
        data = event_data(event)
        if data is None or not data.strip():
            return b""  # clients fail to decode empty data
        had_started = self.has_started
        deltas = self._decoder.decode(event)
        if self.has_started and deltas and type(deltas[0]) is StreamStart:
            return b""  # a repeated start
        for delta in deltas:
            self._record_delta(delta)
        if self._decoder.is_complete:
            if not self._is_complete:
                raise truncated_response_error()
            self.has_ended = True
        client_event = _name_event(event, data)
        if (
            len(deltas) == 1
            and not self.has_ended
            and (field := _TEXT_FIELDS_BY_DELTA.get(type(deltas[0]))) is not None
        ):
            self._learn_template(event, client_event, field)
        if not had_started and self._decoder.synthesized_start is not None:
            return AnthropicStreamEncoder().encode(self._decoder.synthesized_start) + self._early_events + client_event
        if not self.has_started:
            self._early_events += client_event + b"\n\n"
            if len(self._early_events) > MAX_EVENT_BYTES:
                raise ProviderFailed("The provider's stream has no start event.")
            return b""
        early, self._early_events = self._early_events, b""
        return early + client_event if early else client_event

    def _to_error(self, stream_error: StreamError) -> SvcError:
        """Return the upstream's error with its own message, unless it concerns the gateway's key."""
        error, body = from_stream_error(stream_error), self._decoder.error
        type_name = extract_error_type(body)
        if type_name and type_name not in CREDENTIAL_ERROR_CODES:
            error.upstream = UpstreamError(
                OVERLOADED_STATUS if type_name == "overloaded_error" else error.status,
                type_name,
                {},
                extract_details(body),
            )
            error.message = sanitize_message(extract_message(body) or "") or error.message
        return error

    def _encode_end(self) -> bytes:
        return encode_event("message_stop", {})

    def _encode_error(self, error: SvcError) -> bytes:
        return encode_error_event(error, self.request_id)


def _name_event(event: bytes, data: bytes) -> bytes:
    """Return the event, with its type as `event:` if the upstream omits the name. The SDKs skip unnamed events."""
    if event.startswith(b"event:") or event_name(event) is not None:
        return event
    event_type = decode_upstream_object(data).get("type")
    return b"event: %s\n%s" % (event_type.encode(), event) if event_type in KNOWN_EVENT_TYPES else event
