"""Passes the stream of an OpenAI upstream to an OpenAI client: forwards valid chunks unchanged, and normalizes others.

            template matches          parsed, valid      parsed, invalid
feed ─────────────┬──────── split ─ event ────┬──────────────────┬────> bytes for the client
                  └> block unchanged          └> event unchanged └> normalized, encoded again
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from svc.dialects.coerce import new_id, nonempty_text_or, timestamp_or_now
from svc.dialects.openai.normalize import ChoiceState, is_first_chunk_clean, to_chunk_choice
from svc.dialects.openai.schema import (
    FINISH_REASONS,
    ChunkChoicePayload,
    ChunkPayload,
    ToolCallDelta,
    UsagePayload,
    normalize_usage,
)
from svc.dialects.openai.usage import to_usage
from svc.dialects.stream_transform import Passthrough
from svc.dialects.upstream_errors import map_upstream_error, truncated_response_error
from svc.dialects.validation import decode_upstream_json, decode_upstream_object
from svc.errors import ProviderFailed, SvcError
from svc.wire.error import encode_error_body
from svc.wire.sse import event_data, event_name, is_single_data_line

DONE_EVENT: Final = b"data: [DONE]"
_OPEN_BRACE_CODE: Final = 0x7B
_CHUNK_DECODER: Final = msgspec.json.Decoder(ChunkPayload)


class OpenAIPassthrough(Passthrough):
    """The StreamTransform from an OpenAI upstream to an OpenAI client."""

    __slots__ = (
        "_choice_states",
        "_chunk_id",
        "_created",
        "_include_usage",
        "_is_usage_sent",
        "_pending_usage",
    )

    def __init__(self, *, include_usage: bool) -> None:
        super().__init__()
        self._include_usage = include_usage
        self._chunk_id = ""
        self._created = 0
        self._choice_states: dict[int, ChoiceState] = {}
        self._pending_usage: dict[str, Any] | None = None
        self._is_usage_sent = False

    @property
    def _is_complete(self) -> bool:
        return bool(self._choice_states) and all(
            choice.finish_reason is not None for choice in self._choice_states.values()
        )

    def _encode_end(self) -> bytes:
        return self._encode_pending_usage() + DONE_EVENT + b"\n\n"

    def _encode_error(self, error: SvcError) -> bytes:
        return b"data: " + encode_error_body(error) + b"\n\n"

    def _process_event(self, event: bytes) -> bytes:
        if is_single_data_line(event):
            if len(event) > 6 and event[6] == _OPEN_BRACE_CODE:
                return self._process_chunk(event, event[6:], is_single_line=True)
            if event == DONE_EVENT:
                return self._encode_done(event)
        data = event_data(event)
        name = event_name(event)
        if data is None or name == b"ping" or not data.strip():
            return b""
        if data.strip() == b"[DONE]":
            return self._encode_done(event)
        if name == b"error":
            body = decode_upstream_object(data)
            raise map_upstream_error(body.get("error") or body)
        return self._process_chunk(event, data, is_single_line=False)

    def _encode_done(self, event: bytes) -> bytes:
        if not self._is_complete:
            raise truncated_response_error()
        self.has_ended = True
        usage = self._encode_pending_usage()
        return usage + DONE_EVENT if usage or event != DONE_EVENT else event

    def _process_chunk(self, event: bytes, data: bytes, *, is_single_line: bool) -> bytes:
        """Return one chunk for the client. Empty if the client does not get it."""
        try:
            chunk = decode_upstream_json(_CHUNK_DECODER, data)
        except ProviderFailed:
            chunk = None
        if chunk is not None and self._consume_unrequested_usage(chunk):
            return b""
        seen_choices = set(self._choice_states)
        if chunk is not None and self._is_clean(chunk):
            self._record_chunk(chunk)
            client_event = event if is_single_line else b"data: " + data.replace(b"\n", b" ")
            chunk_choices = chunk.choices
        else:
            body, chunk_choices = self._normalize_chunk(decode_upstream_object(data))
            if body is None:
                return b""
            client_event = b"data: " + msgspec.json.encode(body)
        self.has_started = True
        self._update_template(event, client_event, chunk_choices, seen_choices)
        return client_event

    def _update_template(
        self, event: bytes, client_event: bytes, chunk_choices: list[ChunkChoicePayload], seen_choices: set[int]
    ) -> None:
        """Make a template of a text chunk that changed no state. Any other chunk clears the template."""
        self._template = None
        if len(chunk_choices) == 1 and chunk_choices[0].index in seen_choices:
            field = _text_field(chunk_choices[0])
            if field is not None:
                self._learn_template(event, client_event, field)

    def _is_clean(self, chunk: ChunkPayload) -> bool:
        if self.has_started and (chunk.id != self._chunk_id or chunk.created != self._created):
            return False
        if chunk.x_groq is not None and chunk.x_groq.usage is not None:
            return False
        choices = chunk.choices
        if not choices:
            return self._is_clean_usage(chunk.usage)
        if chunk.usage is not None and (self._include_usage or chunk.usage is not UNSET):
            return False
        if len(choices) > 1 and len({choice.index for choice in choices}) < len(choices):
            return False
        for choice in choices:
            state = self._choice_states.get(choice.index)
            if not (state.is_clean(choice) if state is not None else is_first_chunk_clean(choice)):
                return False
        return True

    def _is_clean_usage(self, usage: Any) -> bool:
        return self._include_usage and self._is_complete and not self._is_usage_sent and isinstance(usage, UsagePayload)

    def _consume_unrequested_usage(self, chunk: ChunkPayload) -> bool:
        """Record the usage of a usage chunk that the client did not request. Returns whether to drop the chunk."""
        usage = chunk.usage
        if self._include_usage or chunk.choices or not self.has_started or not isinstance(usage, UsagePayload):
            return False
        if chunk.x_groq is not None:
            return False
        self.usage = to_usage(usage)
        return True

    def _record_chunk(self, chunk: ChunkPayload) -> None:
        if not self.has_started:
            self._chunk_id, self._created = chunk.id, chunk.created
        self.model = chunk.model
        if isinstance(chunk.usage, UsagePayload):
            self.usage = to_usage(chunk.usage)
            self._is_usage_sent, self._pending_usage = True, None
        for choice in chunk.choices:
            self._record_choice(choice)

    def _record_choice(self, choice: ChunkChoicePayload) -> None:
        state = self._choice_states.get(choice.index)
        if state is None:
            state = self._choice_states[choice.index] = ChoiceState()
        state.record(choice)
        if self.finish_reason is None and choice.finish_reason is not None:
            self.finish_reason = FINISH_REASONS[choice.finish_reason]

    def _normalize_chunk(self, body: dict[str, Any]) -> tuple[dict[str, Any] | None, list[ChunkChoicePayload]]:
        """Return the chunk in the published format and its choices. None if the client does not get it."""
        choices = body.get("choices")
        if body.get("error"):
            raise map_upstream_error(body["error"])
        if body.get("object") == "error":
            raise map_upstream_error(body)
        self._extract_usage(body)
        if not choices:
            if not self.has_started and "choices" not in body and self.usage is None:
                raise ProviderFailed("The provider sent an invalid response.")
            return None, []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ProviderFailed("The provider sent an invalid event.")
        normalized, chunk_choices = self._normalize_choices(choices)
        if not normalized:
            return None, []
        if not self.has_started:
            self._chunk_id = nonempty_text_or(body.get("id"), new_id("chatcmpl-"))
            self._created = timestamp_or_now(body.get("created"))
        self.model = nonempty_text_or(body.get("model"), self.model or "unknown")
        return {**body, **self._chunk_fields(), "choices": normalized}, chunk_choices

    def _normalize_choices(
        self, choices: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[ChunkChoicePayload]]:
        normalized: list[dict[str, Any]] = []
        chunk_choices: list[ChunkChoicePayload] = []
        for position, choice in enumerate(choices):
            index = choice.get("index")
            index = index if type(index) is int and index >= 0 else position
            first = index not in self._choice_states
            choice_update = self._choice_states.setdefault(index, ChoiceState()).normalize(
                {**choice, "index": index}, is_first=first
            )
            if choice_update is not None:
                normalized.append(choice_update)
                chunk_choices.append(to_chunk_choice(choice_update))
                self._record_choice(chunk_choices[-1])
        return normalized, chunk_choices

    def _extract_usage(self, body: dict[str, Any]) -> None:
        """Remove the usage from a chunk, in any vendor's place. Later usage replaces earlier usage."""
        body.pop("error", None)
        usage = normalize_usage(body.pop("usage", None))
        vendor = body.get("x_groq")
        if isinstance(vendor, dict) and "usage" in vendor:
            usage = usage or normalize_usage(vendor["usage"])
            body["x_groq"] = {name: value for name, value in vendor.items() if name != "usage"}
        if self._include_usage:
            body["usage"] = None
        if usage is not None:
            self.usage = to_usage(msgspec.convert(usage, UsagePayload))
            self._pending_usage = usage

    def _chunk_fields(self) -> dict[str, Any]:
        return {"id": self._chunk_id, "object": "chat.completion.chunk", "created": self._created, "model": self.model}

    def _encode_pending_usage(self) -> bytes:
        """Return the usage chunk if the client requested it and has not received it."""
        if not self._include_usage or self._is_usage_sent or self._pending_usage is None:
            return b""
        self._is_usage_sent = True
        return (
            b"data: "
            + msgspec.json.encode({**self._chunk_fields(), "choices": [], "usage": self._pending_usage})
            + b"\n\n"
        )


def _text_field(choice: ChunkChoicePayload) -> bytes | None:
    """Return the name of the only text field of a chunk, or None."""
    delta = choice.delta
    if choice.finish_reason is not None or delta.role is not UNSET:
        return None
    if delta.tool_calls is not UNSET:
        tool_deltas = delta.tool_calls
        is_only_text = (
            len(tool_deltas) == 1 and not tool_deltas[0].id and not delta.content and not delta.reasoning_content
        )
        return _tool_text_field(tool_deltas[0]) if is_only_text else None
    if delta.content:
        return None if delta.reasoning_content else b"content"
    return b"reasoning_content" if delta.reasoning_content else None


def _tool_text_field(tool_delta: ToolCallDelta) -> bytes | None:
    function, custom = tool_delta.function, tool_delta.custom
    if function is not UNSET:
        return b"arguments" if custom is UNSET and not function.name else None
    return b"input" if custom is not UNSET and not custom.name else None
