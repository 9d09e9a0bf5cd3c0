"""Encodes the canonical chat as a request to an OpenAI upstream, with the upstream's overrides."""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.base import EncodedRequest, ModelProfile
from svc.dialects.openai.documents import encode_file
from svc.dialects.openai.model_series import lower_effort, rejects_reasoning_effort, rejects_sampling
from svc.dialects.request_passthrough import apply_overrides
from svc.dialects.tool_names import shorten_tool_name
from svc.dialects.unsupported_fields import find_dropped_fields, lower_max_tokens
from svc.dialects.validation import encode_upstream_body
from svc.wire.chat import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    DocumentPart,
    ImagePart,
    RedactedThinkingPart,
    RefusalPart,
    ResponseFormat,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolResult,
)

MAX_USER_ID_CHARS: Final = 64
"""Maximum length of `user` ("string too long. Expected a string with maximum length 64")."""


def encode_request(request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
    """Encode a request. Raises InvalidRequest for a field whose omission would change the response's format."""
    body: dict[str, Any] = {"model": profile.model, "messages": _encode_messages(request)}
    dropped = _dropped_fields(request)
    max_tokens, effort, user = request.max_tokens, request.effort, request.user
    temperature, top_p = request.temperature, request.top_p
    if request.source == "openai":
        body |= request.extra
    else:
        max_tokens = lower_max_tokens(request, profile, dropped)
        effort = _supported_effort(request, profile, dropped)
        user = user[:MAX_USER_ID_CHARS] if user else None
        if rejects_sampling(profile.model, effort):
            dropped += ["temperature"] if temperature is not None else []
            dropped += ["top_p"] if top_p is not None else []
            temperature = top_p = None
    fields = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "stop": request.stop or None,
        "tools": [_encode_tool(tool) for tool in request.tools] or None,
        "tool_choice": _encode_tool_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _encode_response_format(request.response_format),
        "reasoning_effort": effort,
        "user": user,
        "stream": request.stream or None,
    }
    body |= {name: value for name, value in fields.items() if value is not None}
    dropped += apply_overrides(body, profile.overrides, ask_usage=request.stream and profile.overrides.stream_usage)
    return EncodedRequest(encode_upstream_body(body), tuple(dropped))


def _supported_effort(request: ChatRequest, profile: ModelProfile, dropped: list[str]) -> str | None:
    """Return the `reasoning_effort` that the model series accepts, or None if it rejects all of them."""
    if request.effort is None:
        return None
    if not rejects_reasoning_effort(profile.model):
        effort = lower_effort(profile.model, request.effort)
        if effort != request.effort:
            dropped.append("output_config.effort")
        return effort
    is_only_field = request.response_format is None and not request.omitted
    dropped.append("output_config" if is_only_field else "output_config.effort")
    return None


def _dropped_fields(request: ChatRequest) -> list[str]:
    dropped = (
        []
        if request.source == "openai"
        else [*find_dropped_fields(request.extra), *request.omitted, *_dropped_annotations(request)]
    )
    if request.top_k is not None:
        dropped.append("top_k")
    if request.thinking is not None:
        dropped.append("thinking")
    return dropped


def _dropped_annotations(request: ChatRequest) -> list[str]:
    """Return the names of annotations of parts and tools that this dialect does not have."""
    parts = [part for message in request.messages for part in message.parts]
    names = []
    if any(getattr(item, "cache", None) for item in (*parts, *request.tools)):
        names.append("cache_control")
    if any(isinstance(part, ThinkingPart | RedactedThinkingPart) and part.origin is None for part in parts):
        names.append("messages[].thinking")
    if any(isinstance(part, ToolResult) and part.is_error for part in parts):
        names.append("messages[].is_error")
    return names


def _encode_messages(request: ChatRequest) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    last_user = max((index for index, message in enumerate(request.messages) if message.role == "user"), default=-1)
    for index, message in enumerate(request.messages):
        if message.role == "assistant":
            encoded.append(_encode_assistant(message, returns_thinking=index > last_user))
        else:
            encoded += _encode_turn(message)
    return encoded


def _encode_assistant(message: ChatMessage, *, returns_thinking: bool) -> dict[str, Any]:
    """Encode a message. `returns_thinking`: within a loop of tool calls, an upstream gets its own thinking back.

    DeepSeek requires it there, and rejects or ignores it elsewhere (api-docs.deepseek.com, "Thinking Mode").
    """
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    calls = [_encode_tool_call(part) for part in message.parts if isinstance(part, ToolCall)]
    encoded: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    refusals = "".join(part.text for part in message.parts if isinstance(part, RefusalPart))
    if refusals:
        encoded["refusal"] = refusals
        encoded["content"] = text or None
    if calls:
        encoded["tool_calls"] = calls
    thinking = "".join(part.text for part in message.parts if isinstance(part, ThinkingPart) and part.origin)
    if thinking and returns_thinking:
        encoded["reasoning_content"] = thinking
    return _with_name(encoded, message)


def _encode_turn(message: ChatMessage) -> list[dict[str, Any]]:
    """Encode a message. Tool results become separate messages and come first, directly after the call."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    encoded = [_encode_tool_result(part) for part in results]
    other_parts: list[ContentPart] = [
        part for result in results for part in result.content if _tool_result_text(part) is None
    ]
    other_parts += [
        part for part in message.parts if not isinstance(part, ToolResult | ThinkingPart | RedactedThinkingPart)
    ]
    if other_parts or not encoded:
        role = "user" if message.role == "tool" else message.role
        encoded.append(_with_name({"role": role, "content": _encode_content(other_parts)}, message))
    return encoded


def _with_name(encoded: dict[str, Any], message: ChatMessage) -> dict[str, Any]:
    return {**encoded, "name": message.name} if message.name is not None else encoded


def _encode_content(parts: list[ContentPart]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    encoded: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            encoded.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            encoded.append(_encode_image(part))
        elif isinstance(part, DocumentPart):
            encoded.append(encode_file(part))
    return encoded or ""


def _encode_image(image: ImagePart) -> dict[str, Any]:
    url = image.url or f"data:{image.media_type};base64,{image.data}"
    detail = {"detail": image.detail} if image.detail else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _encode_tool_result(result: ToolResult) -> dict[str, Any]:
    texts = [_tool_result_text(part) for part in result.content]
    text = "\n".join([text for text in texts if text is not None])
    return {"role": "tool", "tool_call_id": result.call_id, "content": text}


def _tool_result_text(part: TextPart | ImagePart | DocumentPart) -> str | None:
    """Return the text of a part of a tool result, which can hold only text. None for a part that has to follow it."""
    return None if isinstance(part, ImagePart) else part.text


def _encode_tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": shorten_tool_name(call.name), "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _encode_tool(tool: ToolDefinition) -> dict[str, Any]:
    function: dict[str, Any] = {"name": shorten_tool_name(tool.name), "description": tool.description}
    function |= {"parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _encode_tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.mode == "tool":
        return {"type": "function", "function": {"name": shorten_tool_name(choice.name or "")}}
    return choice.mode


def _encode_response_format(response_format: ResponseFormat | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    if response_format.kind != "json_schema":
        return {"type": response_format.kind}
    schema = {"name": response_format.name or "answer", "schema": response_format.schema}
    return {
        "type": response_format.kind,
        "json_schema": schema if response_format.strict is None else {**schema, "strict": response_format.strict},
    }
