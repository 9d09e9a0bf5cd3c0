"""The hub form of a chat: what every dialect is read into and written from. Data only.

ChatRequest ─ messages: [Message ─ parts: [Part]], Part = Text | Image | Document | Thinking | ToolCall | …
            ─ tools: [Tool], tool_choice, response_format, sampling
Answer      ─ parts, finish, usage
a stream    = Start (a delta of text, thinking, tool call … | UsageSeen)* Finish (UsageSeen)*
              or, at any point, StreamFailed
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from svc.wire.usage import TokenUsage

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class TextPart(msgspec.Struct):
    """Text; `cache` is Anthropic's cache_control object, which rides along."""

    text: str
    cache: dict[str, Any] | None = None


class ImagePart(msgspec.Struct):
    """An image by link (`url`), or by value (`media_type` and base64 `data`)."""

    url: str | None = None
    media_type: str | None = None
    data: str | None = None
    detail: str | None = None
    cache: dict[str, Any] | None = None


class DocumentPart(msgspec.Struct):
    """A file to read, by value (`media_type` and base64 `data`, or `text`), by link, or by the provider's id of it."""

    media_type: str | None = None
    data: str | None = None
    text: str | None = None
    url: str | None = None
    file_id: str | None = None
    title: str | None = None
    """Its name."""
    cache: dict[str, Any] | None = None


class ThinkingPart(msgspec.Struct):
    """A model's thinking; `signature` has to go back unchanged on tool turns."""

    text: str
    signature: str | None = None


class RedactedThinkingPart(msgspec.Struct):
    """Thinking that the provider keeps to itself; goes back unchanged."""

    data: str


class ToolCall(msgspec.Struct):
    """A call of a tool; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str
    cache: dict[str, Any] | None = None


class ToolResult(msgspec.Struct):
    """What a tool returned for the call `call_id`."""

    call_id: str
    content: list[TextPart | ImagePart | DocumentPart]
    is_error: bool = False
    cache: dict[str, Any] | None = None


class RefusalPart(msgspec.Struct):
    """The model's own words when it declines."""

    text: str


ContentPart = (
    TextPart | ImagePart | DocumentPart | ThinkingPart | RedactedThinkingPart | ToolCall | ToolResult | RefusalPart
)


class ChatMessage(msgspec.Struct):
    """One turn, or a part of one."""

    role: Role
    parts: list[ContentPart]
    name: str | None = None


class ToolDefinition(msgspec.Struct):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct):
    """`tool` names one tool; `required` is Anthropic's `any`."""

    mode: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class ResponseFormat(msgspec.Struct):
    """The form of the answer; `schema` with `json_schema` only."""

    kind: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ChatRequest(msgspec.Struct):
    """A request in no provider's dialect. None means "not said"."""

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
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    effort: str | None = None
    thinking: dict[str, Any] | None = None
    """Anthropic's `thinking` object, unchanged."""
    user: str | None = None
    extra: dict[str, Any] = {}
    """Fields of the source dialect that the hub has no place for, by their name there."""
    source: str = ""
    """The name of that dialect."""
    omitted: list[str] = []
    """Paths of fields that other dialects lack and that are left out; the response names them."""


class ChatResponse(msgspec.Struct):
    """A whole answer."""

    id: str
    model: str
    created: int
    parts: list[ContentPart]
    finish: FinishReason
    usage: TokenUsage | None = None


class StreamStart(msgspec.Struct, frozen=True):
    """The first event: who answers."""

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
    """A tool call begins; `index` counts tool calls from 0, not content blocks."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """A piece of the arguments' JSON text."""

    index: int
    text: str


class UsageUpdate(msgspec.Struct, frozen=True):
    """Usage so far; a later one replaces an earlier one, it is never added."""

    usage: TokenUsage


class StreamFinish(msgspec.Struct, frozen=True):
    reason: FinishReason


class StreamError(msgspec.Struct, frozen=True):
    """The upstream said in mid-stream that it failed; `message` is safe to show."""

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
    """In what an upstream departs from its dialect; a row of data, not code."""

    rejects: tuple[str, ...] = ()
    """Request fields that the provider refuses. A nested field is written as `messages[].name`."""
    renames: dict[str, str] = {}
    """Request fields that have another name at the provider."""
    min_temperature: float = 0.0
    """The lowest temperature that the provider accepts. A lower one is raised to it."""
    stream_usage: bool = True
    """Whether the provider accepts `stream_options.include_usage`."""
