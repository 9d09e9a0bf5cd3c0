"""What routing needs of an Anthropic request, and the checks before any upstream is called. On the hot path."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from svc.dialects.base import Head
from svc.dialects.reading import decode_outline
from svc.errors import InvalidRequest

MAX_TOKENS: Final = 2**31 - 1


class _Block(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Form(msgspec.Struct):
    type: str
    schema: dict[str, msgspec.Raw] | None = None


class _OutputConfig(msgspec.Struct):
    format: _Form | None = None


class _Body(msgspec.Struct):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    system: str | list[_Block] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    output_config: _OutputConfig | None = None


_BODY: Final = msgspec.json.Decoder(_Body)


def read_head(raw: bytes) -> Head:
    """Raises InvalidRequest that names the field. Usage is part of every stream of this dialect."""
    body, outline = decode_outline(_BODY, raw)
    form = body.output_config.format if body.output_config is not None else None
    if form is not None and form.type == "json_schema" and form.schema is None:
        raise InvalidRequest("`output_config.format.schema` is required.", param="output_config.format.schema")
    stream = bool(body.stream)
    return Head(model=body.model, stream=stream, include_usage=True, max_tokens=body.max_tokens, outline=outline)
