"""Passes the stream of an upstream with the Responses API: checks the events and forwards them unchanged.

A stream ends with `response.completed`, `response.incomplete` or `response.failed`. If the upstream breaks it, the
gateway writes `response.failed`, with the items and the text that have arrived.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from svc.dialects.message_schema import ABSENT
from svc.dialects.responses.native_schema import (
    NATIVE_EVENT_DECODER,
    NATIVE_RESPONSE_DECODER,
    NativeEvent,
    NativeResponse,
)
from svc.dialects.responses.open_items import EventWriter
from svc.dialects.responses.response_codec import encode_response_error
from svc.dialects.responses.response_passthrough import check_end
from svc.dialects.responses.streamed_output import StreamedOutput
from svc.dialects.stream_transform import Passthrough
from svc.dialects.text_weight import ASCII_CHARS_PER_TOKEN
from svc.dialects.upstream_errors import map_upstream_error
from svc.dialects.validation import decode_upstream_json
from svc.errors import ProviderFailed, SvcError
from svc.wire.sse import event_data

_ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed"))
_BEGINNINGS: Final = frozenset(("response.created", "response.queued", "response.in_progress"))
_RESPONSE_PREFIX: Final = "response."
_CREATED_DECODER: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


class ResponsesPassthrough(Passthrough):
    """The StreamTransform from an upstream with the Responses API to a client of it."""

    __slots__ = ("_created", "_final_response", "_has_output", "_last_number", "_native_id", "_output", "_text_tokens")

    def __init__(self) -> None:
        super().__init__()
        self._created = b""
        """The response object of the first event."""
        self._final_response = b""
        self._last_number = -1
        self._native_id = ""
        self._text_tokens = 0
        self._has_output = False
        self._output = StreamedOutput()

    @property
    def has_final_usage(self) -> bool:
        return self.usage is not None  # only the last event has a usage

    @property
    def text_tokens(self) -> int | None:
        """Count the delta events: others repeat the text, and the first ones repeat the request."""
        return self._text_tokens or (None if self._has_output else 0)

    @property
    def final_response(self) -> bytes:
        return self._final_response

    @property
    def native_id(self) -> str:
        return self._native_id

    def _process_event(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None or not data.strip() or data.strip() == b"[DONE]":
            return b""
        decoded = decode_upstream_json(NATIVE_EVENT_DECODER, data)
        if decoded.type == "error":
            raise map_upstream_error(decoded.error or {"code": decoded.code, "message": decoded.message})
        if not self.has_started:
            self._start(decoded)
        if decoded.type in _ENDS:
            self._end(decoded)
        else:
            if decoded.delta is not ABSENT:
                text_bytes = len(bytes(decoded.delta)) - len('""')
                self._text_tokens += max(1, int(text_bytes / ASCII_CHARS_PER_TOKEN))
            self._output.add_event(decoded)
        if not self._has_output and decoded.type not in _BEGINNINGS:
            self._has_output = True
        self._last_number = max(self._last_number, decoded.sequence_number)
        return event

    def _start(self, event: NativeEvent) -> None:
        """Record the first event. Raises ProviderFailed if it is not of a response."""
        if not event.type.startswith(_RESPONSE_PREFIX) or event.type == "response.failed":
            failed = self._decode_payload(event) if event.type == "response.failed" else None
            if failed is not None and failed.error:
                raise map_upstream_error(failed.error)
            raise ProviderFailed("The provider's stream has no start event.")
        payload = self._decode_payload(event)
        if event.type in _ENDS:
            check_end(payload)
        self.model, self._native_id = payload.model, payload.id
        self._created = bytes(event.response)
        self.has_started = True

    def _end(self, event: NativeEvent) -> None:
        payload = self._decode_payload(event)
        self.usage = payload.token_usage() or self.usage
        if event.type != "response.failed":
            check_end(payload)
        self._final_response = bytes(event.response)
        self.has_ended = True
        if event.type == "response.failed":
            self.error = map_upstream_error(payload.error).strip_traceback()
        else:
            self.finish_reason = payload.finish_reason()

    def _decode_payload(self, event: NativeEvent) -> NativeResponse:
        return decode_upstream_json(NATIVE_RESPONSE_DECODER, bytes(event.response))

    @property
    def _is_complete(self) -> bool:
        return False  # only an event ends the stream

    def _encode_end(self) -> bytes:
        return b""

    def _encode_error(self, error: SvcError) -> bytes:
        ending: dict[str, Any] = {"status": "failed", "error": encode_response_error(error)}
        with contextlib.suppress(ProviderFailed):  # without the items, if one is malformed
            ending["output"] = self._output.list_items()
        response = {**_CREATED_DECODER.decode(self._created), **ending} if self._created else ending
        self._final_response = msgspec.json.encode(response) if self._created else b""
        return EventWriter(self._last_number + 1).write("response.failed", {"response": response})
