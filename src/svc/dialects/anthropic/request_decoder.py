"""Decodes an Anthropic client's request to the canonical chat."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import msgspec

from svc.dialects.anthropic.documents import decode_document
from svc.dialects.anthropic.request_rules import check_hints, check_thinking, check_tool_names, reject_thread
from svc.dialects.anthropic.translation_schema import (
    Citations,
    ImageSource,
    RequestBlock,
    RequestFields,
    RequestMessage,
    RequestOutputConfig,
    RequestTool,
    RequestToolChoice,
)
from svc.dialects.anthropic.unsigned_thinking import UNSIGNED_MARK
from svc.dialects.request_values import check_base64, check_cache_control, check_link
from svc.dialects.validation import convert_client_value, decode_client_object
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    DocumentPart,
    ImagePart,
    RedactedThinkingPart,
    ResponseFormat,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolResult,
)

_KNOWN_FIELDS: Final = frozenset(RequestFields.__struct_fields__)
_OUTPUT_CONFIG_FIELDS: Final = frozenset(RequestOutputConfig.__struct_fields__)
_BLOCK_ROLES: Final = {
    "tool_use": "assistant",
    "tool_result": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}
"""The roles of blocks that only one role can have."""
_TOOL_CHOICE_MODES: Final[dict[str, Literal["auto", "none", "required", "tool"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "tool",
    "none": "none",
}


def decode_request(raw: bytes) -> ChatRequest:
    """Decode a request. Raises InvalidRequest with the field, also for features that only this dialect has."""
    fields = decode_client_object(raw)
    reject_thread(fields.get("thread"))
    body = convert_client_value(fields, RequestFields, "")
    check_hints(fields)
    messages = [_decode_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    _check_roles_and_results(body.messages)
    tools = [_decode_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or [])]
    check_tool_names(tools)
    check_thinking(body.thinking, body.max_tokens, has_tools=bool(tools))
    if body.system:
        _reject_other_types(body.system, ("text",), "system")
        messages.insert(0, ChatMessage("system", _decode_parts(body.system, "system")))
    choice = body.tool_choice
    config = body.output_config or RequestOutputConfig()
    output_format = config.format or body.output_format
    return ChatRequest(
        model=body.model,
        messages=messages,
        stream=bool(body.stream),
        include_usage=True,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences or [],
        tools=tools,
        tool_choice=_decode_tool_choice(choice, tools) if choice else None,
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use and tools else None,
        response_format=ResponseFormat("json_schema", schema=output_format.schema) if output_format else None,
        effort=config.effort,
        thinking=body.thinking,
        user=body.metadata.user_id if body.metadata else None,
        extra={name: value for name, value in fields.items() if name not in _KNOWN_FIELDS},
        source="anthropic",
        omitted=_omitted_fields(body, fields.get("output_config") or {}),
    )


def _omitted_fields(body: RequestFields, config: dict[str, Any]) -> list[str]:
    """Return paths of fields that no other dialect has and that do not change the format of the response."""
    blocks = [block for message in body.messages if not isinstance(message.content, str) for block in message.content]
    results = [block.content for block in blocks if block.type == "tool_result" and isinstance(block.content, list)]
    # The parts of a tool result were checked before.
    inner_documents = [part for content in results for part in content if part["type"] == "document"]
    documents = [(block.context, block.citations) for block in blocks if block.type == "document"]
    documents += [(part.get("context"), part.get("citations")) for part in inner_documents]
    names = [f"output_config.{name}" for name in config if name not in _OUTPUT_CONFIG_FIELDS]
    names += ["messages[].context"] if any(context for context, _ in documents) else []
    return names + (["messages[].citations"] if any(citations for _, citations in documents) else [])


def _check_roles_and_results(messages: list[RequestMessage]) -> None:
    """Raise InvalidRequest for a block in a message of another role, or a result without an earlier call."""
    called: set[str | None] = set()
    for index, message in enumerate(messages):
        for number, block in enumerate([] if isinstance(message.content, str) else message.content):
            path = f"messages[{index}].content[{number}]"
            role = _BLOCK_ROLES.get(block.type, message.role)
            if role != message.role:
                text = f"`{path}.type`: only a message of the role `{role}` can have the type `{block.type}`."
                raise InvalidRequest(text, param=f"{path}.type")
            if block.type == "tool_use":
                called.add(block.id)
            elif block.type == "tool_result" and block.tool_use_id not in called:
                text = f"`{path}.tool_use_id` is not the id of an earlier `tool_use` block."
                raise InvalidRequest(text, param=f"{path}.tool_use_id")


def _decode_message(message: RequestMessage, path: str) -> ChatMessage:
    return ChatMessage(message.role, _decode_parts(message.content, f"{path}.content"))


def _decode_parts(content: str | list[RequestBlock], path: str) -> list[ContentPart]:
    if isinstance(content, str):
        return [TextPart(content)]
    return [part for index, block in enumerate(content) for part in _decode_block(block, f"{path}[{index}]")]


def _decode_block(block: RequestBlock, path: str) -> list[ContentPart]:
    """Decode a block to one part, or to the parts of a document that consists of blocks."""
    check_cache_control(block.cache_control, path)
    if block.citations is not None:
        convert_client_value(block.citations, Citations, f"{path}.citations")
    source = block.source
    if block.type == "document" and isinstance(source, dict) and source.get("type") == "content":
        content_type: Any = str | list[RequestBlock]
        content: str | list[RequestBlock] = convert_client_value(
            source.get("content"), content_type, f"{path}.source.content"
        )
        _reject_other_types(content, ("text", "image"), f"{path}.source.content")
        return _decode_parts(content, f"{path}.source.content")
    return [_decode_part(block, path)]


def _decode_part(block: RequestBlock, path: str) -> ContentPart:
    match block.type:
        case "text":
            return TextPart(_require_field(block.text, path, "text"), block.cache_control)
        case "image":
            return _decode_image(block, path)
        case "document":
            return decode_document(block.source, block.title, block.cache_control, path)
        case "thinking":
            signature = None if block.signature == UNSIGNED_MARK else block.signature
            return ThinkingPart(_require_field(block.thinking, path, "thinking"), signature)
        case "redacted_thinking":
            return RedactedThinkingPart(_require_field(block.data, path, "data"))
        case "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            call_id, name = _require_field(block.id, path, "id"), _require_field(block.name, path, "name")
            return ToolCall(call_id, name, arguments, block.cache_control)
        case "tool_result":
            return _decode_tool_result(block, path)
    raise _unsupported_type_error(block.type, path)


def _require_field(value: str | None, path: str, name: str) -> str:
    if value is None or (not value and name in ("id", "name", "tool_use_id")):
        raise InvalidRequest(f"`{path}.{name}` is required.", param=f"{path}.{name}")
    return value


def _unsupported_type_error(type_name: str, path: str) -> InvalidRequest:
    message = f"`{path}.type`: the provider of this model does not support content of the type `{type_name[:50]}`."
    return InvalidRequest(message, param=f"{path}.type")


def _decode_image(block: RequestBlock, path: str) -> ImagePart:
    source_type: Any = ImageSource | None
    source: ImageSource | None = convert_client_value(block.source, source_type, f"{path}.source")
    if source is not None and source.type == "base64" and source.media_type and source.data is not None:
        data = check_base64(source.data, f"{path}.source.data")
        return ImagePart(media_type=source.media_type, data=data, cache=block.cache_control)
    if source is not None and source.type == "url" and source.url:
        return ImagePart(url=check_link(source.url, f"{path}.source.url"), cache=block.cache_control)
    raise InvalidRequest(f"`{path}.source` must be a link or base64 data of an image.", param=f"{path}.source")


def _decode_tool_result(block: RequestBlock, path: str) -> ToolResult:
    content_type: Any = str | list[RequestBlock] | None
    content: str | list[RequestBlock] | None = convert_client_value(block.content, content_type, f"{path}.content")
    _reject_other_types(content or [], ("text", "image", "document"), f"{path}.content")
    parts = [
        part
        for part in _decode_parts(content or [], f"{path}.content")
        if isinstance(part, TextPart | ImagePart | DocumentPart)
    ]
    return ToolResult(
        _require_field(block.tool_use_id, path, "tool_use_id"), parts, bool(block.is_error), block.cache_control
    )


def _reject_other_types(content: str | list[RequestBlock], allowed_types: Collection[str], path: str) -> None:
    """Raise InvalidRequest for a block of another type. It is not decoded first, since its depth is unlimited."""
    for index, block in enumerate([] if isinstance(content, str) else content):
        if block.type not in allowed_types:
            raise _unsupported_type_error(block.type, f"{path}[{index}]")


def _decode_tool(tool: RequestTool, path: str) -> ToolDefinition:
    if tool.type not in (None, "custom"):
        message = f"`{path}.type`: the provider of this model has no tool of the type `{tool.type[:50]}`."
        raise InvalidRequest(message, param=f"{path}.type")
    if tool.input_schema is None:
        raise InvalidRequest(f"`{path}.input_schema` is required.", param=f"{path}.input_schema")
    if tool.input_schema.get("type", "object") != "object":
        type_path = f"{path}.input_schema.type"
        raise InvalidRequest(f"`{type_path}` must be `object`.", param=type_path)
    check_cache_control(tool.cache_control, path)
    return ToolDefinition(tool.name, tool.description, tool.input_schema, tool.strict, tool.cache_control)


def _decode_tool_choice(choice: RequestToolChoice, tools: list[ToolDefinition]) -> ToolChoice | None:
    """Decode `tool_choice`. Returns None without tools: other APIs reject any choice then."""
    if choice.type == "tool" and not choice.name:
        raise InvalidRequest("`tool_choice.name` is required.", param="tool_choice.name")
    if not tools:
        if choice.type in ("any", "tool"):
            raise InvalidRequest("`tool_choice` demands a tool, but `tools` has none.", param="tool_choice")
        return None
    if choice.type == "tool" and all(tool.name != choice.name for tool in tools):
        name = (choice.name or "")[:64]
        raise InvalidRequest(f"`tool_choice.name` is {name!r}, which is not in `tools`.", param="tool_choice.name")
    return ToolChoice(_TOOL_CHOICE_MODES[choice.type], choice.name)
