"""Forwards complete responses of OpenAI upstreams: unchanged if they are valid, else normalized."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.base import EncodedResponse
from svc.dialects.coerce import arguments_to_json, new_id, nonempty_text_or, timestamp_or_now
from svc.dialects.json_scan import check_utf8, is_string
from svc.dialects.message_text import is_null
from svc.dialects.openai.schema import (
    FINISH_REASONS,
    ResponsePayload,
    UsagePayload,
    normalize_usage,
    to_openai_finish_reason,
)
from svc.dialects.openai.usage import to_usage
from svc.dialects.upstream_errors import map_upstream_error
from svc.dialects.validation import astuple, decode_upstream_object
from svc.errors import ProviderFailed

TOOL_TEXT_FIELDS: Final = {"function": "arguments", "custom": "input"}
"""Maps the type of a tool call, which is also the name of its object, to the field with its text."""

_decode_payload: Final = msgspec.json.Decoder(ResponsePayload).decode
_RESPONSE_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def pass_through_response(raw: bytes) -> EncodedResponse:
    """Convert a response. Raises ProviderFailed if it is malformed, or the error that its error object describes."""
    try:
        check_utf8(raw)
        return _pass_clean_response(raw)
    except _RESPONSE_DECODE_ERRORS:
        pass  # normalized below, or rejected there with a more specific message
    normalized = normalize_response(decode_upstream_object(raw))
    try:
        usage = to_usage(msgspec.convert(normalized["usage"], UsagePayload)) if normalized.get("usage") else None
        return EncodedResponse(
            msgspec.json.encode(normalized),
            usage,
            FINISH_REASONS[normalized["choices"][0]["finish_reason"]],
            normalized["model"],
        )
    except (msgspec.ValidationError, RecursionError):
        raise ProviderFailed("The provider sent an invalid response.") from None


def _pass_clean_response(raw: bytes) -> EncodedResponse:
    """Return the response unchanged. Raises a decode error if it is not in the published format."""
    _, _, _, model, choices, usage, _ = astuple(_decode_payload(raw))
    for choice in choices:
        if not (is_string(choice.message.content) or is_null(choice.message.content)):
            raise msgspec.ValidationError("content must be a string or null")
    if usage is None:
        return EncodedResponse(raw, None, FINISH_REASONS[choices[0].finish_reason], model)
    return EncodedResponse(raw, to_usage(usage), FINISH_REASONS[choices[0].finish_reason], model)


def normalize_response(body: dict[str, Any]) -> dict[str, Any]:
    """Return the response in the published format. Raises the error of its error object, or ProviderFailed."""
    choices = body.get("choices")
    if body.get("error"):
        raise map_upstream_error(body["error"])
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        if body.get("object") == "error":
            raise map_upstream_error(body)
        raise ProviderFailed("The provider's response has no choices.")
    body.pop("error", None)
    normalized = {**body, "id": nonempty_text_or(body.get("id"), new_id("chatcmpl-")), "object": "chat.completion"}
    normalized["created"] = timestamp_or_now(body.get("created"))
    normalized["model"] = nonempty_text_or(body.get("model"), "unknown")
    normalized["choices"] = [_normalize_choice(choice, position) for position, choice in enumerate(choices)]
    if "usage" in body:
        normalized["usage"] = normalize_usage(body["usage"])
    return normalized


def _normalize_choice(choice: dict[str, Any], position: int) -> dict[str, Any]:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ProviderFailed("The provider's response has a choice without a message.")
    index = choice.get("index")
    reason = choice.get("finish_reason")
    if reason is None:
        reason = next((name for name in ("tool_calls", "function_call") if message.get(name)), None)
    return {
        **choice,
        "index": index if type(index) is int and index >= 0 else position,
        "message": _normalize_message(message),
        "finish_reason": to_openai_finish_reason(reason),
    }


def _normalize_message(message: dict[str, Any]) -> dict[str, Any]:
    normalized = {**message, "role": "assistant", **flatten_content(message.get("content"))}
    calls = normalized.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        normalized["tool_calls"] = [_normalize_tool_call(call) for call in calls]
    return normalized


def flatten_content(content: Any) -> dict[str, Any]:
    """Return `content` as text. Lists of parts are joined, and their thinking becomes `reasoning_content`."""
    if content is None or isinstance(content, str):
        return {"content": content}
    if not isinstance(content, list):
        raise ProviderFailed("The provider's response has content that is not text.")
    thinking = "".join(_part_text(part.get("thinking")) for part in content if isinstance(part, dict))
    text = "".join(_part_text(part) for part in content)
    return {"content": text, "reasoning_content": thinking} if thinking else {"content": text}


def _part_text(part: Any) -> str:
    if isinstance(part, list):
        # No vendor nests parts deeper.
        return "".join(_part_text(inner) for inner in part if not isinstance(inner, list))
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def tool_payload_field(call: dict[str, Any]) -> str:
    """Return the field with a tool call's name and text, or an empty string for an unknown type of call."""
    call_type: str = call["type"]
    return (
        call_type
        if call_type in TOOL_TEXT_FIELDS
        else next((name for name in TOOL_TEXT_FIELDS if isinstance(call.get(name), dict)), "")
    )


def _normalize_tool_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ProviderFailed("The provider's response has a tool call that is not an object.")
    call_type = nonempty_text_or(call.get("type"), "custom" if isinstance(call.get("custom"), dict) else "function")
    normalized = {**call, "id": nonempty_text_or(call.get("id"), new_id("call_")), "type": call_type}
    name = tool_payload_field(normalized)
    if not name:
        return normalized  # an unknown type of call is forwarded unchanged
    payload, field = call.get(name), TOOL_TEXT_FIELDS[name]
    if not isinstance(payload, dict) or not nonempty_text_or(payload.get("name"), ""):
        raise ProviderFailed("The provider's response has a tool call without a name.")
    return {**normalized, name: {**payload, field: arguments_to_json(payload.get(field))}}
