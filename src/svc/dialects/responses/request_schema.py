"""Strict types of the fields of a Responses request, except those of input items and tools. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from svc.dialects.openai.request_schema import MAX_REQUESTED_TOKENS

_TokenLimit = Annotated[int, Meta(ge=1, le=MAX_REQUESTED_TOKENS)]
_NonEmptyText = Annotated[str, Meta(min_length=1)]


class TextFormat(msgspec.Struct):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextSettings(msgspec.Struct):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(msgspec.Struct):
    """`reasoning`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesStreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The understood fields of a request. `input` and `tools` are checked where they are decoded."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: _TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    previous_response_id: _NonEmptyText | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] | None = None
    """`check_metadata` checks its values."""
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt_cache_key: str | None = None
    stream_options: ResponsesStreamOptions | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class RoutingItem(msgspec.Struct, gc=False):
    """One of `input`. The decoder of the complete request checks it."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    id: str | None = None


class ResponsesRoutingBody(ResponsesBody, kw_only=True):
    """The same fields, without the content of items and tools."""

    input: str | list[RoutingItem] | None = None  # type: ignore[assignment]
    tools: list[RoutingItem] | None = None  # type: ignore[assignment]
