"""Decodes an OpenAI client's request to the canonical chat. Messages keep their indexes for error messages."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from svc.dialects.openai.documents import DATA_URL_PATTERN, decode_file
from svc.dialects.openai.translation_schema import (
    AllowedTools,
    ImageUrl,
    RequestFields,
    RequestFormat,
    RequestMessage,
    RequestPart,
    RequestTool,
    RequestToolChoice,
)
from svc.dialects.request_values import check_base64, check_cache_control
from svc.dialects.validation import convert_client_value, decode_client_object
from svc.errors import InvalidRequest
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

T = TypeVar("T")


_KNOWN_FIELDS: Final = frozenset(RequestFields.__struct_fields__)


def decode_request(raw: bytes) -> ChatRequest:
    """Decode a request. Raises InvalidRequest with the field, also for features that only this dialect has."""
    fields = decode_client_object(raw)
    choice = fields.get("tool_choice")
    if isinstance(choice, str):  # a union with a literal would give a vague message
        convert_client_value(choice, _TOOL_CHOICE_WORDS, "tool_choice")
    body = convert_client_value(fields, RequestFields, "")
    options = body.stream_options
    stop = body.stop or []
    tools = [_decode_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or [])]
    restricts_tools = isinstance(body.tool_choice, RequestToolChoice) and body.tool_choice.type == "allowed_tools"
    if isinstance(body.tool_choice, RequestToolChoice) and restricts_tools:
        tools = _restrict_tools(_require_allowed_tools(body.tool_choice), tools)
    return ChatRequest(
        model=body.model,
        messages=[_decode_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)],
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=[stop] if isinstance(stop, str) else stop,
        tools=tools,
        restricts_tools=restricts_tools,
        tool_choice=_decode_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_decode_response_format(body.response_format),
        effort=body.reasoning_effort,
        thinking=body.thinking,
        user=body.user,
        extra={name: value for name, value in fields.items() if name not in _KNOWN_FIELDS},
        source="openai",
    )


_TOOL_CHOICE_WORDS: Final[Any] = Literal["auto", "none", "required"]


def _decode_message(message: RequestMessage, path: str) -> ChatMessage:
    check_cache_control(message.cache_control, path)
    if message.role == "function":
        raise InvalidRequest(
            "The provider of this model does not support the role `function`; use `tool`.", param=f"{path}.role"
        )
    if message.function_call is not None:
        raise InvalidRequest(
            "The provider of this model does not support `function_call`; use `tool_calls`.",
            param=f"{path}.function_call",
        )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"`{path}.content` is required.", param=f"{path}.content")
    parts = _decode_parts(message, path)
    if message.role == "tool":
        return ChatMessage("tool", [_decode_tool_result(message, parts, path)])
    if message.role == "assistant":
        parts = [*_decode_thinking(message), *parts, *_decode_tool_calls(message, path)]
    return ChatMessage(message.role, parts, message.name)


def _decode_parts(message: RequestMessage, path: str) -> list[ContentPart]:
    if isinstance(message.content, str):
        return [TextPart(message.content, message.cache_control)]
    return [_decode_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content or [])]


def _decode_part(part: RequestPart, path: str) -> ContentPart:
    check_cache_control(part.cache_control, path)
    if part.type in ("text", "input_text") and part.text is not None:
        return TextPart(part.text, part.cache_control)
    if part.type == "refusal" and part.refusal is not None:
        return RefusalPart(part.refusal)
    if part.type == "image_url" and part.image_url is not None:
        return _decode_image(part.image_url, part.cache_control, path)
    if part.type == "file" and part.file is not None:
        return decode_file(part.file, part.cache_control, f"{path}.file")
    if part.type in ("text", "refusal", "image_url", "file"):
        raise InvalidRequest(f"`{path}.{part.type}` is required.", param=f"{path}.{part.type}")
    raise InvalidRequest(
        f"The provider of this model does not support content of the type `{part.type[:50]}`.", param=f"{path}.type"
    )


def _decode_image(image: ImageUrl | str, cache: dict[str, Any] | None, path: str) -> ImagePart:
    url, detail = (image, None) if isinstance(image, str) else (image.url, image.detail)
    if url.startswith(("https://", "http://")):
        return ImagePart(url=url, detail=detail, cache=cache)
    match = DATA_URL_PATTERN.fullmatch(url)
    if match is None:
        raise InvalidRequest("An image must be an http(s) link or a data URL in base64.", param=f"{path}.image_url.url")
    data = check_base64(match.group(2), f"{path}.image_url.url")
    return ImagePart(media_type=match.group(1).lower(), data=data, detail=detail, cache=cache)


def _decode_tool_result(message: RequestMessage, parts: list[ContentPart], path: str) -> ToolResult:
    if not message.tool_call_id:
        raise InvalidRequest(f"`{path}.tool_call_id` is required.", param=f"{path}.tool_call_id")
    content = [part for part in parts if isinstance(part, TextPart | ImagePart | DocumentPart)]
    return ToolResult(message.tool_call_id, content, cache=message.cache_control)


def _decode_thinking(message: RequestMessage) -> list[ContentPart]:
    if message.thinking_blocks:
        return [
            ThinkingPart(block.thinking, block.signature)
            if block.type == "thinking"
            else RedactedThinkingPart(block.data)
            for block in message.thinking_blocks
        ]
    return [ThinkingPart(message.reasoning_content)] if message.reasoning_content else []


def _decode_tool_calls(message: RequestMessage, path: str) -> list[ContentPart]:
    parts: list[ContentPart] = [RefusalPart(message.refusal)] if message.refusal else []
    for index, call in enumerate(message.tool_calls or []):
        call_path = f"{path}.tool_calls[{index}]"
        check_cache_control(call.cache_control, call_path)
        function = _require_function(call.function, call.type, call_path)
        parts.append(ToolCall(call.id, function.name, function.arguments, call.cache_control))
    return parts


def _require_function(definition: T | None, tool_type: str, path: str) -> T:
    """Return the definition of a function. Raises InvalidRequest for other tools, which not every dialect has."""
    if tool_type != "function":
        message = f"The provider of this model supports only tools of the type `function`, not `{tool_type[:50]}`."
        raise InvalidRequest(message, param=f"{path}.type")
    if definition is None:
        raise InvalidRequest(f"`{path}.function` is required.", param=f"{path}.function")
    return definition


def _decode_tool(tool: RequestTool, path: str) -> ToolDefinition:
    definition = _require_function(tool.function, tool.type, path)
    check_cache_control(tool.cache_control, path)
    check_cache_control(definition.cache_control, f"{path}.function")
    return ToolDefinition(
        definition.name,
        definition.description,
        definition.parameters,
        definition.strict,
        tool.cache_control or definition.cache_control,
    )


def _decode_tool_choice(choice: Literal["auto", "none", "required"] | RequestToolChoice | None) -> ToolChoice | None:
    if isinstance(choice, RequestToolChoice):
        if choice.type == "allowed_tools":
            return ToolChoice(_require_allowed_tools(choice).mode)
        return ToolChoice("tool", _require_function(choice.function, choice.type, "tool_choice").name)
    return ToolChoice(choice) if choice else None


def _require_allowed_tools(choice: RequestToolChoice) -> AllowedTools:
    if choice.allowed_tools is None:
        path = "tool_choice.allowed_tools"
        raise InvalidRequest(f"`{path}` is required.", param=path)
    return choice.allowed_tools


def _restrict_tools(allowed: AllowedTools, tools: list[ToolDefinition]) -> list[ToolDefinition]:
    """Return the tools that the client allows. Other dialects do not have such a list."""
    names, known = set(), {tool.name for tool in tools}
    for index, tool in enumerate(allowed.tools):
        path = f"tool_choice.allowed_tools.tools[{index}]"
        name = _require_function(tool.function, tool.type, path).name
        if name not in known:
            path += ".function.name"
            raise InvalidRequest(f"`{path}` is {name[:64]!r}, which is not in `tools`.", param=path)
        names.add(name)
    if not names:
        path = "tool_choice.allowed_tools.tools"
        raise InvalidRequest(f"`{path}` names no tool.", param=path)
    return [tool for tool in tools if tool.name in names]


def _decode_response_format(response_format: RequestFormat | None) -> ResponseFormat | None:
    if response_format is None:
        return None
    schema = response_format.json_schema
    if response_format.type != "json_schema":
        return ResponseFormat(response_format.type)
    if schema is None or schema.schema is None:
        path = "response_format.json_schema" + ("" if schema is None else ".schema")
        raise InvalidRequest(f"`{path}` is required.", param=path)
    return ResponseFormat("json_schema", schema.name, schema.schema, schema.strict)
