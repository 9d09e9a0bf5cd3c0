"""What routing needs of an OpenAI request, and the checks before any upstream is called. On the hot path.

Fields that are not named here are skipped, not built; decisions.md (section 3) lists what is checked.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from svc.dialects.base import Head
from svc.dialects.reading import decode_outline
from svc.errors import InvalidRequest

MAX_TOKENS = 2**31 - 1
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, Meta(ge=1, le=1024)]


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options`; what else it holds is the upstream's."""

    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[_Message], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Count | None = None


_BODY = msgspec.json.Decoder(_Body)


def read_head(raw: bytes) -> Head:
    """Raises InvalidRequest that names the field."""
    body, outline = decode_outline(_BODY, raw)
    for index, message in enumerate(body.messages):
        if message.content is None and message.role not in ("assistant", "function"):
            path = f"messages[{index}].content"
            raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    options = body.stream_options
    return Head(
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        answers=body.n or 1,
        outline=outline,
    )
