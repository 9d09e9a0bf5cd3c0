"""An Anthropic client's request -> the hub form."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from svc.dialects.anthropic.documents import read_document
from svc.dialects.anthropic.head import MAX_TOKENS
from svc.dialects.reading import convert_request, decode_object
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatRequest,
    Document,
    Image,
    Message,
    Part,
    RedactedThinking,
    ResponseFormat,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

Name = Annotated[str, Meta(min_length=1)]


class _Source(msgspec.Struct):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    source: Any = None
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Form(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Form | None = None


class _Body(msgspec.Struct):
    model: Name
    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    system: str | list[_Block] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: dict[str, Any] | None = None
    metadata: _Metadata | None = None
    output_config: _OutputConfig | None = None


_KNOWN: Final = frozenset(_Body.__struct_fields__)
_CONFIG: Final = frozenset(_OutputConfig.__struct_fields__)
_MODES: Final[dict[str, Literal["auto", "none", "required", "tool"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "tool",
    "none": "none",
}


def read_request(raw: bytes) -> ChatRequest:
    """Raises InvalidRequest that names the field, also for what no other dialect has a word for."""
    fields = decode_object(raw)
    body = convert_request(fields, _Body, "")
    messages = [_message(message, f"messages[{place}]") for place, message in enumerate(body.messages)]
    if body.system:
        messages.insert(0, Message("system", _parts(body.system, "system")))
    choice = body.tool_choice
    config = body.output_config or _OutputConfig()
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
        tools=[_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.tools or [])],
        tool_choice=_choice(choice) if choice else None,
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        response_format=ResponseFormat("json_schema", schema=config.format.schema) if config.format else None,
        effort=config.effort,
        thinking=body.thinking,
        user=body.metadata.user_id if body.metadata else None,
        extra={name: value for name, value in fields.items() if name not in _KNOWN},
        source="anthropic",
        omitted=_omitted(body, fields.get("output_config") or {}),
    )


def _omitted(body: _Body, config: dict[str, Any]) -> list[str]:
    """Paths of fields that no other dialect has, and that do not change the form of the answer."""
    blocks = [block for message in body.messages if not isinstance(message.content, str) for block in message.content]
    results = [block.content for block in blocks if block.type == "tool_result" and isinstance(block.content, list)]
    inner = [one for content in results for one in content if one["type"] == "document"]  # checked by `_result`
    documents = [(block.context, block.citations) for block in blocks if block.type == "document"]
    documents += [(one.get("context"), one.get("citations")) for one in inner]
    names = [f"output_config.{name}" for name in config if name not in _CONFIG]
    names += ["messages[].context"] if any(context for context, _ in documents) else []
    return names + (["messages[].citations"] if any(citations for _, citations in documents) else [])


def _message(message: _Message, path: str) -> Message:
    return Message(message.role, _parts(message.content, f"{path}.content"))


def _parts(content: str | list[_Block], path: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    return [part for place, block in enumerate(content) for part in _block_parts(block, f"{path}[{place}]")]


def _block_parts(block: _Block, path: str) -> list[Part]:
    """One part, or the parts of a document that consists of blocks."""
    source = block.source
    if block.type == "document" and isinstance(source, dict) and source.get("type") == "content":
        kind: Any = str | list[_Block]
        inside: str | list[_Block] = convert_request(source.get("content"), kind, f"{path}.source.content")
        _refuse_others(inside, ("text", "image"), f"{path}.source.content")
        return _parts(inside, f"{path}.source.content")
    return [_part(block, path)]


def _part(block: _Block, path: str) -> Part:
    match block.type:
        case "text":
            return Text(_need(block.text, path, "text"), block.cache_control)
        case "image":
            return _image(block, path)
        case "document":
            return read_document(block.source, block.title, block.cache_control, path)
        case "thinking":
            return Thinking(_need(block.thinking, path, "thinking"), block.signature)
        case "redacted_thinking":
            return RedactedThinking(_need(block.data, path, "data"))
        case "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            call_id, name = _need(block.id, path, "id"), _need(block.name, path, "name")
            return ToolCall(call_id, name, arguments, block.cache_control)
        case "tool_result":
            return _result(block, path)
    raise _unknown(block.type, path)


def _need(value: str | None, path: str, name: str) -> str:
    if value is None:
        raise InvalidRequest(f"`{path}.{name}` is required.", param=f"{path}.{name}")
    return value


def _unknown(kind: str, path: str) -> InvalidRequest:
    message = f"The provider of this model does not take content of the type `{kind[:50]}`."
    return InvalidRequest(message, param=f"{path}.type")


def _image(block: _Block, path: str) -> Image:
    kind: Any = _Source | None
    source: _Source | None = convert_request(block.source, kind, f"{path}.source")
    if source is not None and source.type == "base64" and source.media_type and source.data is not None:
        return Image(media_type=source.media_type, data=source.data, cache=block.cache_control)
    if source is not None and source.type == "url" and source.url:
        return Image(url=source.url, cache=block.cache_control)
    raise InvalidRequest("An image has to be a link or base64 data.", param=f"{path}.source")


def _result(block: _Block, path: str) -> ToolResult:
    kind: Any = str | list[_Block] | None
    content: str | list[_Block] | None = convert_request(block.content, kind, f"{path}.content")
    _refuse_others(content or [], ("text", "image", "document"), f"{path}.content")
    shown = [part for part in _parts(content or [], f"{path}.content") if isinstance(part, Text | Image | Document)]
    return ToolResult(_need(block.tool_use_id, path, "tool_use_id"), shown, bool(block.is_error), block.cache_control)


def _refuse_others(content: str | list[_Block], kinds: Collection[str], path: str) -> None:
    """Raises InvalidRequest for a block of another kind, before it is read: it may hold blocks of any depth."""
    for place, block in enumerate([] if isinstance(content, str) else content):
        if block.type not in kinds:
            raise _unknown(block.type, f"{path}[{place}]")


def _tool(tool: _Tool, path: str) -> Tool:
    if tool.type not in (None, "custom"):
        message = f"The provider of this model has no tool of the type `{tool.type[:50]}`."
        raise InvalidRequest(message, param=f"{path}.type")
    return Tool(tool.name, tool.description, tool.input_schema, tool.strict, tool.cache_control)


def _choice(choice: _Choice) -> ToolChoice:
    if choice.type == "tool" and not choice.name:
        raise InvalidRequest("`tool_choice.name` is required.", param="tool_choice.name")
    return ToolChoice(_MODES[choice.type], choice.name)
