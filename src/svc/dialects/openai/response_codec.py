"""Complete responses: decodes those of OpenAI upstreams, and encodes those for OpenAI clients."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.coerce import arguments_to_json, new_id, nonempty_text_or
from svc.dialects.openai.response_passthrough import TOOL_TEXT_FIELDS, normalize_response, tool_payload_field
from svc.dialects.openai.schema import FINISH_REASONS, UsagePayload
from svc.dialects.openai.usage import to_usage
from svc.dialects.validation import decode_upstream_object
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
from svc.wire.usage import TokenUsage

CUSTOM_INPUT_PREFIX: Final = '{"input":"'
CUSTOM_INPUT_SUFFIX: Final = '"}'
"""Prefix and suffix that make the text of a custom tool call JSON arguments."""


def escape_json_text(text: str) -> str:
    """Escape a text for a JSON string, without quotes."""
    return msgspec.json.encode(text)[1:-1].decode()


def decode_response(raw: bytes) -> ChatResponse:
    """Decode the first choice. Raises ProviderFailed if the response is malformed."""
    body = normalize_response(decode_upstream_object(raw))
    choice = body["choices"][0]
    usage = body.get("usage")
    return ChatResponse(
        id=body["id"],
        model=body["model"],
        created=body["created"],
        parts=list(_decode_parts(choice["message"])),
        finish=FINISH_REASONS[choice["finish_reason"]],
        usage=to_usage(msgspec.convert(usage, UsagePayload)) if usage else None,
    )


def _decode_parts(message: dict[str, Any]) -> list[ContentPart]:
    parts = decode_thinking(message)
    for name, part_type in (("content", TextPart), ("refusal", RefusalPart)):
        text = message.get(name)
        if isinstance(text, str) and text:
            parts.append(part_type(text))
    for call in message.get("tool_calls") or []:
        parts.append(_decode_tool_call(call))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and not message.get("tool_calls"):
        parts.append(_decode_function_call(legacy))
    return parts


def _decode_tool_call(call: dict[str, Any]) -> ToolCall:
    """Decode a tool call. Raises ProviderFailed if it is neither of a function nor of a custom tool."""
    name = tool_payload_field(call)
    if not name:
        raise ProviderFailed(f"The provider called a tool of the unsupported type `{call['type'][:50]}`.")
    payload = call[name]
    text = payload[TOOL_TEXT_FIELDS[name]]
    arguments = CUSTOM_INPUT_PREFIX + escape_json_text(text) + CUSTOM_INPUT_SUFFIX if name == "custom" else text
    return ToolCall(call["id"], payload["name"], arguments)


def _decode_function_call(function: dict[str, Any]) -> ToolCall:
    """Decode a `function_call`, which has no id."""
    name = nonempty_text_or(function.get("name"), "")
    if not name:
        raise ProviderFailed("The provider's response has a function call without a name.")
    return ToolCall(new_id("call_"), name, arguments_to_json(function.get("arguments")))


def decode_thinking(message: dict[str, Any]) -> list[ContentPart]:
    """Decode thinking from any of the fields that vendors use for it."""
    for name in ("reasoning_content", "reasoning"):
        text = message.get(name)
        if isinstance(text, str) and text:
            return [ThinkingPart(text)]
    return []


def encode_response(response: ChatResponse) -> bytes:
    """A `chat.completion` object."""
    choice = {
        "index": 0,
        "message": _encode_message(response.parts),
        "logprobs": None,
        "finish_reason": response.finish,
    }
    body = {
        "id": response.id,
        "object": "chat.completion",
        "created": response.created,
        "model": response.model,
        "choices": [choice],
    }
    if response.usage is not None:
        body["usage"] = encode_usage(response.usage)
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, RecursionError):
        raise ProviderFailed("The provider sent an invalid response.") from None


def _encode_message(parts: list[ContentPart]) -> dict[str, Any]:
    calls = [part for part in parts if isinstance(part, ToolCall)]
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    refusal = "".join(part.text for part in parts if isinstance(part, RefusalPart))
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls or refusal else "")}
    message["refusal"] = refusal or None
    thinking = "".join(part.text for part in parts if isinstance(part, ThinkingPart))
    if thinking:
        message["reasoning_content"] = thinking
    blocks = [encode_thinking_block(part, index) for index, part in enumerate(_signed_thinking(parts))]
    if blocks:
        message["thinking_blocks"] = blocks
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _signed_thinking(parts: list[ContentPart]) -> list[ThinkingPart | RedactedThinkingPart]:
    return [
        part
        for part in parts
        if isinstance(part, RedactedThinkingPart) or (isinstance(part, ThinkingPart) and part.signature)
    ]


def encode_thinking_block(part: ThinkingPart | RedactedThinkingPart, index: int) -> dict[str, Any]:
    """Encode a block that a client has to return unchanged with tool results. Clients join deltas by `index`."""
    if isinstance(part, RedactedThinkingPart):
        return {"index": index, "type": "redacted_thinking", "data": part.data}
    return {"index": index, "type": "thinking", "thinking": part.text, "signature": part.signature}


def encode_usage(usage: TokenUsage) -> dict[str, Any]:
    """Encode `usage` in OpenAI's format."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
