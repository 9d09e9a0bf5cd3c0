"""Encodes the response object, complete or as part of a stream's events."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from svc.dialects.coerce import new_id
from svc.dialects.responses.custom_input import decode_custom_input
from svc.dialects.responses.output_items import (
    ItemStatus,
    call_item,
    message_item,
    new_call_id,
    reasoning_item,
    refusal_part,
    text_part,
)
from svc.dialects.responses.reasoning import encode_thinking
from svc.dialects.responses.request_decoder import ResponsesRequest
from svc.errors import ProviderFailed, SvcError
from svc.wire.chat import (
    ChatResponse,
    ContentPart,
    FinishReason,
    RedactedThinkingPart,
    RefusalPart,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from svc.wire.usage import TokenUsage

_INCOMPLETE_REASONS: Final[dict[FinishReason, str]] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}
_ECHOED_DEFAULTS: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_p": 1.0,
    "user": None,
    "metadata": {},
}
"""Fields of the request that the response repeats, with OpenAI's defaults."""


def new_response_id() -> str:
    """Generate the id of a response."""
    return new_id("resp_")


class ResponseFrame:
    """The fields of a response that are the same in each event of its stream."""

    def __init__(self, request: ResponsesRequest, response_id: str, model: str, created_at: int) -> None:
        fields = request.fields
        self.id = response_id
        self._fields: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "completed_at": None,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            "store": request.is_stored,
            "service_tier": "default",
            "truncation": "disabled",
            "max_tool_calls": None,
            "top_logprobs": 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        for name, default in _ECHOED_DEFAULTS.items():
            value = fields.get(name)
            self._fields[name] = default if value is None else value
        self._fields["tools"] = request.tool_set.available
        text, reasoning = fields.get("text") or {}, fields.get("reasoning") or {}
        self._fields["text"] = {"format": _describe_format(text.get("format") or {"type": "text"})}
        self._fields["reasoning"] = {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}

    def in_progress(self) -> dict[str, Any]:
        """Return the response at the start of a stream."""
        return self._fields

    def finished(
        self, finish_reason: FinishReason, output: list[dict[str, Any]], usage: TokenUsage | None
    ) -> dict[str, Any]:
        """Return the complete response, with the status `completed` or `incomplete`."""
        reason = _INCOMPLETE_REASONS.get(finish_reason)
        completed = {"status": "completed", "completed_at": int(time.time())}
        ending = completed if reason is None else {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return {**self._fields, **ending, "output": output, "usage": encode_usage(usage)}

    def failed(self, error: SvcError, output: list[dict[str, Any]], usage: TokenUsage | None) -> dict[str, Any]:
        """Return the response that an error ended, with the gateway's code and message."""
        ending = {"status": "failed", "error": encode_response_error(error)}
        return {**self._fields, **ending, "output": output, "usage": encode_usage(usage)}


def _describe_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """Return `text.format` with the defaults of the API."""
    defaults = {"strict": False, "description": None} if text_format["type"] == "json_schema" else {}
    return {**defaults, **text_format}


def encode_response_error(error: SvcError) -> dict[str, Any]:
    """Return the `error` of a failed response."""
    return {"code": error.code, "message": error.message}


def item_status(finish_reason: FinishReason) -> ItemStatus:
    """Return the status of the last item of a response."""
    return "incomplete" if finish_reason in _INCOMPLETE_REASONS else "completed"


def encode_usage(usage: TokenUsage | None) -> dict[str, Any] | None:
    """Encode `usage`."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def encode_response(response: ChatResponse, request: ResponsesRequest, origin: str) -> bytes:
    """Encode a complete response of the backend `origin`. Raises ProviderFailed if it cannot be encoded."""
    frame = ResponseFrame(request, new_response_id(), response.model, response.created)
    output = _encode_output(response, request, origin)
    try:
        return msgspec.json.encode(frame.finished(response.finish, output, response.usage))
    except (UnicodeEncodeError, RecursionError):
        raise ProviderFailed("The provider sent an invalid response.") from None


def _encode_output(response: ChatResponse, request: ResponsesRequest, origin: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    for part in _join_texts(response.parts):
        match part:
            case TextPart(text) | RefusalPart(text):
                if not content:
                    items.append(message_item(new_id("msg_"), "completed", content))
                content.append(text_part(text) if isinstance(part, TextPart) else refusal_part(text))
                continue
            case ThinkingPart() | RedactedThinkingPart():
                encrypted = encode_thinking(part, origin) if request.includes_encrypted_reasoning else None
                thinking = part.text if isinstance(part, ThinkingPart) else ""
                if thinking or encrypted:
                    items.append(reasoning_item(new_id("rs_"), "completed", thinking, encrypted))
            case ToolCall(call_id, flat_name, arguments):
                name = request.tool_set.client_name(flat_name)
                text = decode_custom_input(arguments) if name.is_custom else arguments or "{}"
                items.append(call_item(new_call_id(name), "completed", call_id, name, text))
        content = []
    if items:
        items[-1]["status"] = item_status(response.finish)
    return items


def _join_texts(parts: list[ContentPart]) -> list[ContentPart]:
    """Return the parts with consecutive ones of text joined, as in a stream."""
    joined: list[ContentPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(last.text + part.text)
        else:
            joined.append(part)
    return joined
