"""Shortens the names of tools for upstreams of the OpenAI dialect, and restores them in their responses.

OpenAI permits 64 characters and Anthropic 128, which the long names of MCP tools use.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar, Final

import msgspec

from svc.dialects.base import StreamDecoder
from svc.wire.chat import ChatRequest, ChatResponse, StreamDelta, ToolCall, ToolCallStart

MAX_TOOL_NAME_CHARS: Final = 64
"""The limit of OpenAI's APIs (platform.openai.com/docs/api-reference/chat/create)."""
_DIGEST_CHARS: Final = 8


def shorten_tool_name(name: str) -> str:
    """Return a name of at most MAX_TOOL_NAME_CHARS. A shortened name ends in a digest, so that it stays unique."""
    if len(name) <= MAX_TOOL_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_TOOL_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def find_long_names(request: ChatRequest) -> dict[str, str]:
    """Return the names of the request's tools that `shorten_tool_name` changes, by their shortened names."""
    return {shorten_tool_name(tool.name): tool.name for tool in request.tools if len(tool.name) > MAX_TOOL_NAME_CHARS}


def restore_tool_names(response: ChatResponse, long_names: dict[str, str]) -> ChatResponse:
    """Return the response with the client's names of its tool calls."""
    parts = [
        msgspec.structs.replace(part, name=long_names.get(part.name, part.name)) if isinstance(part, ToolCall) else part
        for part in response.parts
    ]
    return msgspec.structs.replace(response, parts=parts)


class LongNameStreamDecoder:
    """A StreamDecoder that restores the client's names of tool calls."""

    text_field: ClassVar[bytes] = b"content"
    arguments_field: ClassVar[bytes] = b""

    def __init__(self, decoder: StreamDecoder, long_names: dict[str, str]) -> None:
        self._decoder = decoder
        self._long_names = long_names

    @property
    def is_complete(self) -> bool:
        return self._decoder.is_complete

    def decode(self, event: bytes) -> list[StreamDelta]:
        return [
            msgspec.structs.replace(delta, name=self._long_names.get(delta.name, delta.name))
            if isinstance(delta, ToolCallStart)
            else delta
            for delta in self._decoder.decode(event)
        ]
