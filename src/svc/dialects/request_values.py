"""Values that vendors restrict, and that the gateway checks before it translates a request."""

from __future__ import annotations

import binascii
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from svc.dialects.message_schema import CacheControl
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest

MAX_INTEGER: Final = 2**31 - 1
"""The maximum of an integer that has no other limit."""
CalledName = Annotated[str, Meta(min_length=1, max_length=512)]
"""The name of a tool in an earlier call. It can differ from all tools, since models make mistakes."""
MediaType = Annotated[str, Meta(max_length=128, pattern="^[\\w.+-]+/[\\w.+-]+\\Z")]
"""A media type without parameters, as in a data URL."""
MAX_METADATA_KEY_CHARS: Final = 64
"""The limit of OpenAI's APIs (platform.openai.com/docs/api-reference/responses/create)."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"]
"""The efforts of OpenAI and Anthropic. `default` is Groq's."""
FunctionName = Annotated[str, Meta(min_length=1, pattern="^[a-zA-Z0-9_-]{1,64}\\Z")]
"""The name of a function in OpenAI's APIs (platform.openai.com/docs/api-reference/chat/create)."""
AnthropicToolName = Annotated[str, Meta(min_length=1, pattern="^[a-zA-Z0-9_-]{1,128}\\Z")]
"""The name of a tool in Anthropic's API (docs.anthropic.com, "Tool use")."""


def check_cache_control(value: dict[str, Any] | None, path: str) -> None:
    """Check Anthropic's `cache_control` of a part or a tool at `path`. Raises InvalidRequest."""
    if value is not None:
        convert_client_value(value, CacheControl, f"{path}.cache_control".removeprefix("."))


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raise InvalidRequest that names the key of a value of `metadata` that is no string."""
    for name, value in (metadata or {}).items():
        if not isinstance(value, str):
            path = metadata_path(name)
            raise InvalidRequest(f"Invalid value for `{path}`: expected string.", param=path)


def metadata_path(name: str) -> str:
    """Return the path of a value of `metadata`, without the rest of a long key."""
    return f"metadata.{name[:MAX_METADATA_KEY_CHARS]}"


def check_link(url: str, path: str) -> str:
    """Return the link to an image or a document. Raises InvalidRequest if it is none of HTTP."""
    if url.startswith(("https://", "http://")):
        return url
    raise InvalidRequest(f"`{path}` must be an http(s) link.", param=path)


def check_base64(data: str, path: str) -> str:
    """Return the data. Raises InvalidRequest if it is empty, or not base64 (RFC 4648, section 4)."""
    try:
        if binascii.a2b_base64(data, strict_mode=True):
            return data
    except ValueError:  # includes binascii.Error
        pass
    raise InvalidRequest(f"`{path}` has invalid base64 data.", param=path)
