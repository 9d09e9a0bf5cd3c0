"""Define the canonical chat, the common form between all dialects. Data only.

ChatRequest  ─ messages: [ChatMessage ─ parts: [Part]], Part = TextPart | ImagePart | DocumentPart | ToolCall | …
             ─ tools: [ToolDefinition], tool_choice, response_format, sampling
ChatResponse ─ parts, finish, usage
a stream     = StreamStart (a delta of text, thinking, tool call … | UsageUpdate)* StreamFinish (UsageUpdate)*
               or, at any point, StreamError
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from svc.wire.usage import TokenUsage

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class TextPart(msgspec.Struct):
    """Text. `cache` is Anthropic's `cache_control` object, passed through."""

    text: str
    cache: dict[str, Any] | None = None


class ImagePart(msgspec.Struct):
    """An image by URL (`url`), or inline (`media_type` and base64 `data`)."""

    url: str | None = None
    media_type: str | None = None
    data: str | None = None
    detail: str | None = None
    cache: dict[str, Any] | None = None


class DocumentPart(msgspec.Struct):
    """A document: inline (`media_type` and base64 `data`, or `text`), by URL, or by the provider's file id."""

    media_type: str | None = None
    data: str | None = None
    text: str | None = None
    url: str | None = None
    file_id: str | None = None
    title: str | None = None
    """The file name."""
    cache: dict[str, Any] | None = None
    path: str = ""
    """The client's field with the link or the data, for the error of an upstream that does not take it."""


class ThinkingPart(msgspec.Struct):
    """A model's thinking. `signature` must be sent back unchanged on tool turns."""

    text: str
    signature: str | None = None
    origin: str | None = None
    """The backend that made it, if the client returned it with that name. Another backend does not get it."""


class RedactedThinkingPart(msgspec.Struct):
    """Encrypted thinking, which must be sent back unchanged."""

    data: str
    origin: str | None = None
    """As in ThinkingPart."""


class ToolCall(msgspec.Struct):
    """A tool call. `arguments` is the JSON text that the model wrote."""

    id: str
    name: str
    arguments: str
    cache: dict[str, Any] | None = None


class ToolResult(msgspec.Struct):
    """The result of the tool call `call_id`."""

    call_id: str
    content: list[TextPart | ImagePart | DocumentPart]
    is_error: bool = False
    cache: dict[str, Any] | None = None


class RefusalPart(msgspec.Struct):
    """The model's refusal text."""

    text: str


ContentPart = (
    TextPart | ImagePart | DocumentPart | ThinkingPart | RedactedThinkingPart | ToolCall | ToolResult | RefusalPart
)


class ChatMessage(msgspec.Struct):
    """One turn of the conversation."""

    role: Role
    parts: list[ContentPart]
    name: str | None = None


class ToolDefinition(msgspec.Struct):
    """A function that the model may call. `parameters` is a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """The tool choice. `tool` names one tool. `required` is Anthropic's `any`."""

    mode: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class ResponseFormat(msgspec.Struct):
    """The format of the response. `schema` is used with `json_schema` only."""

    kind: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ChatRequest(msgspec.Struct):
    """A chat request. None means that the client did not set the field."""

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] = []
    tools: list[ToolDefinition] = []
    restricts_tools: bool = False
    """Whether the client excludes tools of its request, which are not in `tools`."""
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    effort: str | None = None
    thinking: dict[str, Any] | None = None
    """Anthropic's `thinking` object, unchanged."""
    user: str | None = None
    extra: dict[str, Any] = {}
    """Fields of the source dialect without a canonical field, by their name there."""
    source: str = ""
    """The name of the source dialect."""
    omitted: list[str] = []
    """Paths of fields that the target dialect lacks. They are dropped, and the response header lists them."""


class ChatResponse(msgspec.Struct):
    """A complete response."""

    id: str
    model: str
    created: int
    parts: list[ContentPart]
    finish: FinishReason
    usage: TokenUsage | None = None


class StreamStart(msgspec.Struct, frozen=True):
    """The first event, with the id and model of the response."""

    id: str
    model: str
    created: int
    usage: TokenUsage | None = None


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    text: str


class SignatureDelta(msgspec.Struct, frozen=True):
    signature: str


class RedactedDelta(msgspec.Struct, frozen=True):
    data: str


class RefusalDelta(msgspec.Struct, frozen=True):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """The start of a tool call. `index` counts tool calls from 0, not content blocks."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """A chunk of the arguments' JSON text."""

    index: int
    text: str


class UsageUpdate(msgspec.Struct, frozen=True):
    """Cumulative usage. A later update replaces an earlier one."""

    usage: TokenUsage


class StreamFinish(msgspec.Struct, frozen=True):
    reason: FinishReason


class StreamError(msgspec.Struct, frozen=True):
    """An error that the upstream sent within the stream. `message` is safe to show."""

    message: str
    status: int = 502


StreamDelta = (
    StreamStart
    | TextDelta
    | ThinkingDelta
    | SignatureDelta
    | RedactedDelta
    | RefusalDelta
    | ToolCallStart
    | ToolCallArguments
    | UsageUpdate
    | StreamFinish
    | StreamError
)


class UpstreamOverrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Differences between an upstream and its dialect, as data."""

    rejects: tuple[str, ...] = ()
    """Request fields that the provider rejects. A nested field is written as `messages[].name`, and one of tool calls
    as `messages[].tool_calls[].name`."""
    renames: dict[str, str] = {}
    """Request fields that have another name at the provider."""
    min_temperature: float = 0.0
    """The lowest temperature that the provider accepts. A lower one is raised to it."""
    stream_usage: bool = True
    """Whether the provider accepts `stream_options.include_usage`."""
    thought_signature: str = ""
    """The signature for earlier tool calls whose client did not keep that of the provider. Gemini requires one."""
    short_call_ids: bool = False
    """Whether the provider accepts only tool call ids of 9 letters or digits, as Mistral does. Others are shortened."""
    token_input: bool = True
    """Whether the provider accepts tokens as the input of embeddings, not only texts."""
    image_input: bool = True
    """Whether the provider accepts images. If not, a request with an image gets status 400."""
    forced_tools: bool = True
    """Whether the provider enforces `tool_choice`. If not, a JSON schema of the tools constrains the response."""
