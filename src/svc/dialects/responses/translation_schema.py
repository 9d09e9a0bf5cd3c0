"""Strict types of the items and tools of a Responses request, for its translation. Data only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from svc.dialects.request_values import CalledName, FunctionName


class TypedItem(msgspec.Struct):
    """An item of `input`, whose type decides how it is decoded."""

    type: Annotated[str, Meta(max_length=64)] | None = None
    role: str | None = None
    id: str | None = None
    call_id: str | None = None


class ItemPart(msgspec.Struct):
    """A part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(msgspec.Struct):
    """An item that is translated, of any type."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ItemPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: CalledName | None = None
    namespace: Annotated[str, Meta(max_length=512)] | None = None
    status: str | None = None
    summary: list[dict[str, Any]] | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    encrypted_content: str | None = None


class TypedTool(msgspec.Struct):
    """A tool, whose type decides how it is decoded."""

    type: Annotated[str, Meta(min_length=1, max_length=64)]


class FunctionTool(msgspec.Struct):
    """A tool of the type `function`."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(msgspec.Struct):
    """`format` of a custom tool."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct):
    """A tool of the type `custom`."""

    name: FunctionName
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceTool(msgspec.Struct):
    """A tool of the type `namespace`, which has others."""

    name: FunctionName
    tools: list[dict[str, Any]]
    description: str | None = None


class NamedToolChoice(msgspec.Struct):
    """`tool_choice` that is an object, or one of its tools."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None
