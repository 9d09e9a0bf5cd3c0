"""Encodes the canonical chat as a request to an Anthropic upstream.

System and developer messages become `system`. Consecutive messages of one role are merged. Tool results become user
messages. Required fields that are missing get defaults.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.dialects.anthropic.documents import FILES_BETA_HEADER_LINE, encode_document
from svc.dialects.anthropic.model_series import rejects_sampling, supported_effort, takes_one_sampling_parameter
from svc.dialects.anthropic.request_rules import (
    MIN_THINKING_BUDGET_TOKENS,
    UNLIMITED_TOP_K,
    check_openai_request,
)
from svc.dialects.base import EncodedRequest, ModelProfile
from svc.dialects.request_passthrough import apply_overrides
from svc.dialects.unsupported_fields import find_dropped_fields, lower_max_tokens
from svc.dialects.validation import encode_upstream_body
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    DocumentPart,
    ImagePart,
    RedactedThinkingPart,
    RefusalPart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

DEFAULT_ANTHROPIC_MAX_TOKENS: Final = 4096
"""The `max_tokens` that is sent if neither the client nor the model's settings have a limit. The API requires it."""
MAX_USER_ID_CHARS: Final = 256
"""Maximum length of `metadata.user_id` (docs.anthropic.com, Messages, "maxLength 256")."""
MAX_TEMPERATURE: Final = 1.0
"""Maximum `temperature` (docs.anthropic.com, Messages, "Ranges from 0.0 to 1.0"). OpenAI's API allows 2."""
_IMAGE_MEDIA_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_EFFORT_ALIASES: Final = {"none": None, "minimal": "low"}
_TOOL_CHOICE_TYPES: Final = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}
_INVALID_ID_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")


def encode_request(request: ChatRequest, profile: ModelProfile) -> EncodedRequest:
    """Encode a request. Raises InvalidRequest for a field whose omission would change the response's format."""
    dropped = _dropped_fields(request)
    requested, user = request.max_tokens, request.user
    if request.source != "anthropic":
        requested = lower_max_tokens(request, profile, dropped)
        user = user[:MAX_USER_ID_CHARS] if user else None
    max_tokens = requested or profile.max_output_tokens or DEFAULT_ANTHROPIC_MAX_TOKENS
    if request.source == "openai":
        check_openai_request(request, request.max_tokens or max_tokens)
    stop = [text for text in request.stop if text.strip()]  # the API rejects blank ones
    if len(stop) < len(request.stop):
        dropped.append("stop")
    fields = {
        "system": _encode_system(request),
        **_encode_sampling(request, profile.model, dropped),
        "stop_sequences": stop or None,
        "tools": [_encode_tool(tool) for tool in request.tools] or None,
        "tool_choice": _encode_tool_choice(request),
        "thinking": _fit_thinking_budget(request, max_tokens, dropped),
        "output_config": _encode_output_config(request, profile.model, dropped),
        "metadata": {"user_id": user} if user else None,
        "stream": request.stream or None,
    }
    body: dict[str, Any] = {"model": profile.model, "max_tokens": max_tokens}
    body["messages"] = _encode_messages(request)
    body |= {name: value for name, value in fields.items() if value is not None}
    if request.source == "anthropic":
        body |= request.extra
    dropped += apply_overrides(body, profile.overrides, ask_usage=False)
    return EncodedRequest(
        encode_upstream_body(body), tuple(dropped), (FILES_BETA_HEADER_LINE,) if _needs_files_beta(request) else ()
    )


def _encode_sampling(request: ChatRequest, model: str, dropped: list[str]) -> dict[str, Any]:
    """Return the sampling parameters that the model accepts. A client of another API does not know its rules."""
    values: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": None if request.top_k == UNLIMITED_TOP_K else request.top_k,
    }
    given = [name for name, value in values.items() if value is not None]
    if not given:
        return {}
    if rejects_sampling(model):
        dropped.extend(given)
        return {}
    if "temperature" in given and "top_p" in given and takes_one_sampling_parameter(model):
        dropped.append("top_p")
        values["top_p"] = None
    values["temperature"] = _clamp_temperature(request.temperature, dropped)
    return values


def _clamp_temperature(temperature: float | None, dropped: list[str]) -> float | None:
    if temperature is None or temperature <= MAX_TEMPERATURE:
        return temperature
    dropped.append("temperature")
    return MAX_TEMPERATURE


def _needs_files_beta(request: ChatRequest) -> bool:
    """Return whether the request needs the beta header. An Anthropic client sends it with its own beta headers."""
    if request.source == "anthropic":
        return False
    parts = [part for message in request.messages for part in message.parts]
    inner = [part for result in parts if isinstance(result, ToolResult) for part in result.content]
    return any(isinstance(part, DocumentPart) and part.file_id is not None for part in (*parts, *inner))


def _dropped_fields(request: ChatRequest) -> list[str]:
    dropped = [] if request.source == "anthropic" else [*find_dropped_fields(request.extra), *request.omitted]
    if any(message.name is not None for message in request.messages):
        dropped.append("messages[].name")
    if any(_is_empty(message) for message in request.messages):
        dropped.append("messages[].content")
    if request.source == "openai" and any(
        isinstance(part, ThinkingPart) and not part.signature for message in request.messages for part in message.parts
    ):
        dropped.append("messages[].reasoning_content")
    return dropped


def _encode_system(request: ChatRequest) -> str | list[dict[str, Any]] | None:
    texts: list[TextPart] = []
    for index, message in enumerate(request.messages):
        for part in message.parts if _is_system(message) else ():
            if not isinstance(part, TextPart):
                text = "The provider of this model supports only text in system messages."
                raise InvalidRequest(text, param=f"messages[{index}].content")
            if part.text:
                texts.append(part)
    if not texts or not _has_turns(request):
        return None
    if any(part.cache for part in texts):
        return [_with_cache_control({"type": "text", "text": part.text}, part.cache) for part in texts]
    return "\n".join(part.text for part in texts)


def _is_system(message: ChatMessage) -> bool:
    return message.role in ("system", "developer")


def _is_empty(message: ChatMessage) -> bool:
    """Return whether a user message has only empty text, which the API rejects. It is left out."""
    return message.role == "user" and all(isinstance(part, TextPart) and not part.text for part in message.parts)


def _has_turns(request: ChatRequest) -> bool:
    """Return whether there is a message besides system messages."""
    return any(not _is_system(message) for message in request.messages)


def _encode_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Encode messages, with consecutive ones of a role merged. System messages alone become a user message."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    only_system = not _has_turns(request)
    for index, message in enumerate(request.messages):
        if _is_system(message) and not only_system:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _encode_blocks(message, f"messages[{index}]")
        if blocks and merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        elif blocks:
            merged.append((role, blocks))
    if not merged:
        raise InvalidRequest("`messages` must have at least one message with content.", param="messages")
    if merged[-1][0] == "assistant":
        _check_last_turn(request.messages)
        _trim_trailing_whitespace(merged[-1][1])
    return [{"role": role, "content": _encode_content(blocks)} for role, blocks in merged]


def _check_last_turn(messages: list[ChatMessage]) -> None:
    """Raise InvalidRequest if empty user messages are last. Without them, the model would continue its own message."""
    index = max([index for index, message in enumerate(messages) if not _is_system(message)])
    if messages[index].role == "user":
        path = f"messages[{index}].content"
        raise InvalidRequest(f"`{path}` is empty. The provider of this model needs text here.", param=path)


def _trim_trailing_whitespace(blocks: list[dict[str, Any]]) -> None:
    """Trim the end of an assistant message to continue, which must not end in whitespace."""
    last = blocks[-1]
    if last["type"] == "text" and last["text"].strip():
        last["text"] = last["text"].rstrip()


def _encode_content(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    plain = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
    return blocks[0]["text"] if plain else blocks


def _encode_blocks(message: ChatMessage, path: str) -> list[dict[str, Any]]:
    blocks = []
    calls = 0
    for part in message.parts:
        block = _encode_block(part, path, calls)
        calls += isinstance(part, ToolCall)
        if block is not None:
            blocks.append(block)
    return blocks


def _encode_block(part: ContentPart, path: str, call_index: int) -> dict[str, Any] | None:
    """Encode a part. Returns None for an empty part, and for thinking without its signature, which is required."""
    match part:
        case TextPart(text, cache):
            return _with_cache_control({"type": "text", "text": text}, cache) if text else None
        case RefusalPart(text):
            return {"type": "text", "text": text} if text else None
        case ImagePart():
            return _encode_image(part, path)
        case DocumentPart():
            return encode_document(part, path)
        case ThinkingPart(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case RedactedThinkingPart(data):
            return {"type": "redacted_thinking", "data": data}
        case ToolCall():
            return _encode_tool_call(part, f"{path}.tool_calls[{call_index}].function.arguments")
        case ToolResult():
            return _encode_tool_result(part, path)


def _with_cache_control(block: dict[str, Any], cache: dict[str, Any] | None) -> dict[str, Any]:
    return {**block, "cache_control": cache} if cache else block


def _encode_image(image: ImagePart, path: str) -> dict[str, Any]:
    if image.url is not None:
        return _with_cache_control({"type": "image", "source": {"type": "url", "url": image.url}}, image.cache)
    media_type = "image/jpeg" if image.media_type == "image/jpg" else image.media_type
    if media_type not in _IMAGE_MEDIA_TYPES:
        message = f"The provider of this model supports only these image types: {', '.join(_IMAGE_MEDIA_TYPES)}."
        raise InvalidRequest(message, param=f"{path}.content")
    source = {"type": "base64", "media_type": media_type, "data": image.data}
    return _with_cache_control({"type": "image", "source": source}, image.cache)


def _encode_tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, Any]) if call.arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidRequest(f"`{path}` must be the JSON text of an object.", param=path) from None
    block = {"type": "tool_use", "id": _sanitize_id(call.id), "name": call.name, "input": arguments}
    return _with_cache_control(block, call.cache)


def _sanitize_id(call_id: str) -> str:
    """Replace characters that the API rejects in ids of tool calls. Equal ids in call and result stay equal."""
    return _INVALID_ID_CHARS.sub("_", call_id)


def _encode_tool_result(result: ToolResult, path: str) -> dict[str, Any]:
    blocks = [block for part in result.content if (block := _encode_block(part, path, 0)) is not None]
    encoded: dict[str, Any] = {"type": "tool_result", "tool_use_id": _sanitize_id(result.call_id)}
    if blocks:
        encoded["content"] = _encode_content(blocks)
    if result.is_error:
        encoded["is_error"] = True
    return _with_cache_control(encoded, result.cache)


def _encode_tool(tool: ToolDefinition) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    encoded: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description is not None:
        encoded["description"] = tool.description
    if tool.strict:
        encoded["strict"] = True
    return _with_cache_control(encoded, tool.cache)


def _encode_tool_choice(request: ChatRequest) -> dict[str, Any] | None:
    choice, is_sequential = request.tool_choice, request.parallel_tool_calls is False
    if not request.tools or (choice is None and not is_sequential):
        return None
    encoded: dict[str, Any] = {"type": _TOOL_CHOICE_TYPES[choice.mode] if choice else "auto"}
    if choice and choice.mode == "tool":
        encoded["name"] = choice.name
    if is_sequential and encoded["type"] != "none":
        encoded["disable_parallel_tool_use"] = True
    return encoded


def _encode_output_config(request: ChatRequest, model: str, dropped: list[str]) -> dict[str, Any] | None:
    encoded: dict[str, Any] = {}
    response_format = request.response_format
    if response_format is not None and response_format.kind == "json_object":
        message = "The provider of this model supports `json_schema`, not `json_object`."
        raise InvalidRequest(message, param="response_format.type")
    if response_format is not None and response_format.kind == "json_schema":
        encoded["format"] = {"type": "json_schema", "schema": response_format.schema}
    effort = _EFFORT_ALIASES.get(request.effort, request.effort) if request.effort else None
    if effort:
        supported = supported_effort(model, effort)
        if supported != effort:
            dropped.append("reasoning_effort")
        if supported is not None:
            encoded["effort"] = supported
    return encoded or None


def _fit_thinking_budget(request: ChatRequest, max_tokens: int, dropped: list[str]) -> dict[str, Any] | None:
    """Reduce the thinking budget to fit into a lowered `max_tokens`. Returns None if no budget fits."""
    thinking = request.thinking
    budget = thinking.get("budget_tokens") if thinking else None
    if thinking is None or type(budget) is not int or "max_tokens" not in dropped or budget < max_tokens:
        return thinking
    dropped.append("thinking.budget_tokens")
    fitted_budget = max(MIN_THINKING_BUDGET_TOKENS, max_tokens // 2)
    return {**thinking, "budget_tokens": fitted_budget} if fitted_budget < max_tokens else None
