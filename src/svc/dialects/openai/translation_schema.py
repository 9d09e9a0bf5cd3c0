"""Strict types of all fields of an OpenAI request, for its translation. `request_schema` is for routing. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from svc.dialects.openai.documents import FilePayload
from svc.dialects.openai.request_schema import StreamOptions, TokenLimit
from svc.dialects.request_values import CalledName, Effort, FunctionName


class ImageUrl(msgspec.Struct):
    """`image_url` of a part."""

    url: str
    detail: str | None = None


class RequestPart(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    file: FilePayload | None = None
    cache_control: dict[str, Any] | None = None


class CalledFunction(msgspec.Struct):
    """`function` of a tool call."""

    name: CalledName
    arguments: str = ""


class RequestToolCall(msgspec.Struct):
    """A tool call of an earlier message."""

    id: Annotated[str, Meta(min_length=1)]
    function: CalledFunction | None = None
    type: str = "function"
    cache_control: dict[str, Any] | None = None


class RequestThinkingBlock(msgspec.Struct):
    """A block of thinking of an earlier message, as Anthropic has it."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: str | None = None
    data: str = ""


class RequestMessage(msgspec.Struct):
    """One of `messages`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[RequestPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[RequestThinkingBlock] | None = None
    tool_calls: list[RequestToolCall] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    cache_control: dict[str, Any] | None = None


class FunctionDefinition(msgspec.Struct):
    """`function` of a tool."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class RequestTool(msgspec.Struct):
    """One of `tools`."""

    type: str
    function: FunctionDefinition | None = None
    cache_control: dict[str, Any] | None = None


class NamedFunction(msgspec.Struct):
    """`function` of `tool_choice`."""

    name: str


class RequestToolChoice(msgspec.Struct):
    """`tool_choice` that is an object, or one of its allowed tools."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class AllowedTools(msgspec.Struct):
    """`tool_choice.allowed_tools`: the model calls only these of the request's tools."""

    tools: list[RequestToolChoice]
    mode: Literal["auto", "required"] = "auto"


class RequestJsonSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class RequestFormat(msgspec.Struct):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: RequestJsonSchema | None = None


class RequestFields(msgspec.Struct):
    """The fields of the request."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[RequestMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    tools: list[RequestTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | RequestToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: RequestFormat | None = None
    reasoning_effort: Effort | None = None
    thinking: dict[str, Any] | None = None
    user: str | None = None
