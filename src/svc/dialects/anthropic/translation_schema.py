"""Strict types of all fields of an Anthropic request, for its translation. `request_schema` is for routing. Data only.

`OpenAIHints` are fields of an OpenAI request that an Anthropic upstream does not get.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from svc.dialects.anthropic.request_schema import MAX_REQUESTED_TOKENS
from svc.dialects.request_values import MAX_INTEGER, AnthropicToolName, CalledName, Effort, MediaType

NonEmptyText = Annotated[str, Meta(min_length=1)]


class Citations(msgspec.Struct):
    """`citations` of a document."""

    enabled: bool | None = None


class ImageSource(msgspec.Struct):
    """`source` of an image."""

    type: str
    media_type: MediaType | None = None
    data: str | None = None
    url: str | None = None


class RequestBlock(msgspec.Struct):
    """A block of a message's content, with the fields of all types."""

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
    name: CalledName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class RequestMessage(msgspec.Struct):
    """One of `messages`."""

    role: Literal["user", "assistant", "system"]
    content: str | list[RequestBlock]


class RequestTool(msgspec.Struct):
    """One of `tools`."""

    name: AnthropicToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class RequestToolChoice(msgspec.Struct):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class RequestMetadata(msgspec.Struct):
    """`metadata`."""

    user_id: str | None = None


class RequestFormat(msgspec.Struct):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class RequestOutputConfig(msgspec.Struct):
    """`output_config`."""

    effort: Effort | None = None
    format: RequestFormat | None = None


class RequestFields(msgspec.Struct):
    """The fields of the request."""

    model: NonEmptyText
    messages: Annotated[list[RequestMessage], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_REQUESTED_TOKENS)]
    system: str | list[RequestBlock] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    stop_sequences: list[NonEmptyText] | None = None
    tools: list[RequestTool] | None = None
    tool_choice: RequestToolChoice | None = None
    thinking: dict[str, Any] | None = None
    metadata: RequestMetadata | None = None
    output_config: RequestOutputConfig | None = None
    output_format: RequestFormat | None = None
    """The older name of `output_config.format` (beta `structured-outputs-2025-11-13`)."""


class ThinkingSettings(msgspec.Struct):
    """`thinking`: whether and how much the model thinks before its answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(le=MAX_INTEGER)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class HintFields(msgspec.Struct):
    """Fields that no other dialect has."""

    service_tier: Literal["auto", "standard_only"] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    inference_geo: str | None = None


class OpenAIHints(msgspec.Struct):
    """Fields of an OpenAI request that Anthropic does not have."""

    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: dict[str, float] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
