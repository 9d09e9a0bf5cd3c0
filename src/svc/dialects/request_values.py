"""Values that vendors restrict, and that the gateway checks before it translates a request."""

from __future__ import annotations

import binascii
from typing import Annotated, Literal

from msgspec import Meta

from svc.errors import InvalidRequest

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"]
"""The efforts of OpenAI and Anthropic. `default` is Groq's."""
FunctionName = Annotated[str, Meta(min_length=1, pattern="^[a-zA-Z0-9_-]{1,64}\\Z")]
"""The name of a function in OpenAI's APIs (platform.openai.com/docs/api-reference/chat/create)."""
AnthropicToolName = Annotated[str, Meta(min_length=1, pattern="^[a-zA-Z0-9_-]{1,128}\\Z")]
"""The name of a tool in Anthropic's API (docs.anthropic.com, "Tool use")."""


def check_base64(data: str, path: str) -> str:
    """Return the data of an image. Raises InvalidRequest if it is empty, or not base64 (RFC 4648, section 4)."""
    try:
        if binascii.a2b_base64(data, strict_mode=True):
            return data
    except ValueError:  # includes binascii.Error
        pass
    raise InvalidRequest(f"`{path}` has invalid base64 data.", param=path)
