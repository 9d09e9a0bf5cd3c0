"""Complete responses: decodes those of Anthropic upstreams, and encodes those for Anthropic clients."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from svc.dialects.anthropic.schema import (
    RESPONSE_DECODER,
    SUMMARY_DECODER,
    ContentBlockPayload,
    encode_usage,
    to_finish_reason,
    to_stop_reason,
)
from svc.dialects.anthropic.unsigned_thinking import UNSIGNED_MARK
from svc.dialects.base import EncodedResponse
from svc.dialects.coerce import arguments_to_json, nonempty_text_or
from svc.dialects.truncated_json import decode_complete_members
from svc.dialects.upstream_errors import map_upstream_error
from svc.dialects.validation import decode_upstream_json, decode_upstream_object
from svc.errors import ProviderFailed
from svc.wire.chat import (
    ChatResponse,
    ContentPart,
    RedactedThinkingPart,
    RefusalPart,
    TextPart,
    ThinkingPart,
    ToolCall,
)

Payload = TypeVar("Payload")


def decode_payload(decoder: msgspec.json.Decoder[Payload], raw: bytes) -> Payload:
    """Decode a response. Raises ProviderFailed if it is malformed, or the error that its error object describes."""
    try:
        return decode_upstream_json(decoder, raw)
    except ProviderFailed:
        body = decode_upstream_object(raw)
        if body.get("error"):
            raise map_upstream_error(body["error"]) from None
        raise


def pass_through_response(raw: bytes) -> EncodedResponse:
    """Convert a complete response of an upstream. Raises ProviderFailed if it is malformed."""
    payload = decode_payload(SUMMARY_DECODER, raw)
    return EncodedResponse(
        raw,
        payload.usage.to_final_usage() if payload.usage is not None else None,
        to_finish_reason(payload.stop_reason),
        payload.model,
    )


def decode_response(raw: bytes) -> ChatResponse:
    """Convert a complete response of an upstream. Raises ProviderFailed if it is malformed."""
    payload = decode_payload(RESPONSE_DECODER, raw)
    return ChatResponse(
        id=payload.id,
        model=payload.model,
        created=int(time.time()),
        parts=[part for block in payload.content if (part := _decode_part(block)) is not None],
        finish=to_finish_reason(payload.stop_reason),
        usage=payload.usage.to_final_usage() if payload.usage is not None else None,
    )


def _decode_part(block: ContentBlockPayload) -> ContentPart | None:
    """Decode a content block. Returns None for blocks of the provider's own tools, which have no canonical form."""
    match block.type:
        case "text":
            return TextPart(block.text) if nonempty_text_or(block.text, "") else None
        case "thinking":
            return ThinkingPart(nonempty_text_or(block.thinking, ""), nonempty_text_or(block.signature, "") or None)
        case "redacted_thinking":
            return RedactedThinkingPart(nonempty_text_or(block.data, ""))
        case "tool_use":
            if not nonempty_text_or(block.id, "") or not nonempty_text_or(block.name, ""):
                raise ProviderFailed("The provider's response has a tool call without a name.")
            return ToolCall(block.id, block.name, arguments_to_json({} if block.input is None else block.input))
    return None


def encode_response(response: ChatResponse) -> bytes:
    """Encode a `message`. Raises ProviderFailed if the arguments of a complete tool call are not a JSON object.

    A call that was truncated by the token limit or a content filter keeps its complete arguments.
    """
    is_truncated = response.finish in ("length", "content_filter")
    has_tool_calls = any(isinstance(part, ToolCall) for part in response.parts)
    has_refusal = any(isinstance(part, RefusalPart) for part in response.parts)
    body = {
        "id": response.id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": [
            _encode_block(part, is_truncated=is_truncated)
            for part in response.parts
            if not isinstance(part, TextPart) or part.text
        ],
        "stop_reason": to_stop_reason(response.finish, has_tool_calls=has_tool_calls, has_refusal=has_refusal),
        "stop_sequence": None,
        "usage": encode_usage(response.usage),
    }
    return msgspec.json.encode(body)


def _encode_block(part: ContentPart, *, is_truncated: bool) -> dict[str, Any]:
    match part:
        case TextPart(text) | RefusalPart(text):
            return {"type": "text", "text": text}
        case ThinkingPart(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature or UNSIGNED_MARK}
        case RedactedThinkingPart(data):
            return {"type": "redacted_thinking", "data": data}
        case ToolCall(call_id, name, arguments):
            return {
                "type": "tool_use",
                "id": call_id,
                "name": name,
                "input": _encode_input(arguments, is_truncated=is_truncated),
            }
    raise ProviderFailed("The provider sent an invalid response.")


def _encode_input(arguments: str, *, is_truncated: bool) -> dict[str, Any]:
    if is_truncated:
        return decode_complete_members(arguments)
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any]) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        raise ProviderFailed("The model called a tool with arguments that are not a JSON object.") from None
