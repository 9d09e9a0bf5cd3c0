"""An OpenAI client's request -> the hub form. Messages keep their places, so that an error can name them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from svc.dialects.openai.asked import MAX_TOKENS, StreamOptions
from svc.dialects.openai.files import DATA_URL, FileShape, read_file
from svc.dialects.reading import convert_request, decode_object
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatRequest,
    Document,
    Image,
    Message,
    Part,
    RedactedThinking,
    Refusal,
    ResponseFormat,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)

T = TypeVar("T")


class _ImageUrl(msgspec.Struct):
    url: str
    detail: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageUrl | str | None = None
    file: FileShape | None = None
    cache_control: dict[str, Any] | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1)]
    arguments: str = ""


class _Call(msgspec.Struct):
    id: Annotated[str, Meta(min_length=1)]
    function: _Function | None = None
    type: str = "function"
    cache_control: dict[str, Any] | None = None


class _Thought(msgspec.Struct):
    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: str | None = None
    data: str = ""


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[_Thought] | None = None
    tool_calls: list[_Call] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    cache_control: dict[str, Any] | None = None


class _Definition(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _Definition | None = None
    cache_control: dict[str, Any] | None = None


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    type: str
    function: _Named | None = None


class _Schema(msgspec.Struct):
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


_Limit = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class _Body(msgspec.Struct):
    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[_Message], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    reasoning_effort: str | None = None
    thinking: dict[str, Any] | None = None
    user: str | None = None


_KNOWN: Final = frozenset(_Body.__struct_fields__)


def read_request(raw: bytes) -> ChatRequest:
    """Raises InvalidRequest that names the field, also for what no other dialect has a word for."""
    fields = decode_object(raw)
    choice = fields.get("tool_choice")
    if isinstance(choice, str):  # a union with a literal gives a poor message
        convert_request(choice, _CHOICES, "tool_choice")
    body = convert_request(fields, _Body, "")
    options = body.stream_options
    stop = body.stop or []
    return ChatRequest(
        model=body.model,
        messages=[_message(message, f"messages[{place}]") for place, message in enumerate(body.messages)],
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=[stop] if isinstance(stop, str) else stop,
        tools=[_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.tools or [])],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.response_format),
        effort=body.reasoning_effort,
        thinking=body.thinking,
        user=body.user,
        extra={name: value for name, value in fields.items() if name not in _KNOWN},
        source="openai",
    )


_CHOICES: Final[Any] = Literal["auto", "none", "required"]


def _message(message: _Message, path: str) -> Message:
    if message.role == "function":
        raise InvalidRequest(
            "The provider of this model does not take the role `function`; use `tool`.", param=f"{path}.role"
        )
    if message.function_call is not None:
        raise InvalidRequest(
            "The provider of this model does not take `function_call`; use `tool_calls`.", param=f"{path}.function_call"
        )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"`{path}.content` is required.", param=f"{path}.content")
    parts = _parts(message, path)
    if message.role == "tool":
        return Message("tool", [_result(message, parts, path)])
    if message.role == "assistant":
        parts = [*_thoughts(message), *parts, *_calls(message, path)]
    return Message(message.role, parts, message.name)


def _parts(message: _Message, path: str) -> list[Part]:
    if isinstance(message.content, str):
        return [Text(message.content, message.cache_control)]
    return [_part(part, f"{path}.content[{place}]") for place, part in enumerate(message.content or [])]


def _part(part: _Part, path: str) -> Part:
    if part.type in ("text", "input_text") and part.text is not None:
        return Text(part.text, part.cache_control)
    if part.type == "refusal" and part.refusal is not None:
        return Refusal(part.refusal)
    if part.type == "image_url" and part.image_url is not None:
        return _image(part.image_url, part.cache_control, path)
    if part.type == "file" and part.file is not None:
        return read_file(part.file, part.cache_control, path)
    if part.type in ("text", "refusal", "image_url", "file"):
        raise InvalidRequest(f"`{path}.{part.type}` is required.", param=f"{path}.{part.type}")
    raise InvalidRequest(
        f"The provider of this model does not take content of the type `{part.type[:50]}`.", param=f"{path}.type"
    )


def _image(image: _ImageUrl | str, cache: dict[str, Any] | None, path: str) -> Image:
    url, detail = (image, None) if isinstance(image, str) else (image.url, image.detail)
    if url.startswith(("https://", "http://")):
        return Image(url=url, detail=detail, cache=cache)
    found = DATA_URL.fullmatch(url)
    if found is None:
        raise InvalidRequest(
            "An image has to be an http(s) link or a data URL in base64.", param=f"{path}.image_url.url"
        )
    return Image(media_type=found.group(1).lower(), data=found.group(2), detail=detail, cache=cache)


def _result(message: _Message, parts: list[Part], path: str) -> ToolResult:
    if not message.tool_call_id:
        raise InvalidRequest(f"`{path}.tool_call_id` is required.", param=f"{path}.tool_call_id")
    content = [part for part in parts if isinstance(part, Text | Image | Document)]
    return ToolResult(message.tool_call_id, content, cache=message.cache_control)


def _thoughts(message: _Message) -> list[Part]:
    if message.thinking_blocks:
        return [
            Thinking(thought.thinking, thought.signature)
            if thought.type == "thinking"
            else RedactedThinking(thought.data)
            for thought in message.thinking_blocks
        ]
    return [Thinking(message.reasoning_content)] if message.reasoning_content else []


def _calls(message: _Message, path: str) -> list[Part]:
    made: list[Part] = [Refusal(message.refusal)] if message.refusal else []
    for place, call in enumerate(message.tool_calls or []):
        function = _function(call.function, call.type, f"{path}.tool_calls[{place}]")
        made.append(ToolCall(call.id, function.name, function.arguments, call.cache_control))
    return made


def _function(found: T | None, kind: str, path: str) -> T:
    """Refuses other kinds of tools: only a function has a name and arguments in every dialect."""
    if kind != "function":
        message = f"The provider of this model takes tools of the type `function`, not `{kind[:50]}`."
        raise InvalidRequest(message, param=f"{path}.type")
    if found is None:
        raise InvalidRequest(f"`{path}.function` is required.", param=f"{path}.function")
    return found


def _tool(tool: _Tool, path: str) -> Tool:
    made = _function(tool.function, tool.type, path)
    return Tool(made.name, made.description, made.parameters, made.strict, tool.cache_control or made.cache_control)


def _choice(choice: Literal["auto", "none", "required"] | _Choice | None) -> ToolChoice | None:
    if isinstance(choice, _Choice):
        return ToolChoice("tool", _function(choice.function, choice.type, "tool_choice").name)
    return ToolChoice(choice) if choice else None


def _format(form: _Format | None) -> ResponseFormat | None:
    if form is None:
        return None
    schema = form.json_schema
    if form.type != "json_schema":
        return ResponseFormat(form.type)
    if schema is None or schema.schema is None:
        path = "response_format.json_schema" + ("" if schema is None else ".schema")
        raise InvalidRequest(f"`{path}` is required.", param=path)
    return ResponseFormat("json_schema", schema.name, schema.schema, schema.strict)
