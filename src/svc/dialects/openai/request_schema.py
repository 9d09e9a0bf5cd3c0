"""Strict types of the fields of OpenAI's requests that routing needs. Other fields are skipped. Data only."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from svc.dialects.message_schema import ABSENT

MAX_REQUESTED_TOKENS: Final = 2**31 - 1
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
ROLES: Final[tuple[str, ...]] = get_args(Role)
TokenLimit = Annotated[int, Meta(ge=1, le=MAX_REQUESTED_TOKENS)]
ChoiceCount = Annotated[int, Meta(ge=1, le=1024)]


class RoutingMessage(msgspec.Struct, gc=False):
    """One of `messages`. `message_text` checks the content."""

    role: Role
    content: msgspec.Raw = ABSENT


class StreamOptions(msgspec.Struct, gc=False):
    """`stream_options`. The upstream checks its other fields."""

    include_usage: bool | None = None


class RoutingJsonSchema(msgspec.Struct, gc=False):
    """`response_format.json_schema`. The upstream checks the schema itself."""

    name: str | None = None
    schema: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None
    description: str | None = None


class RoutingFormat(msgspec.Struct, gc=False):
    """`response_format`, of any type, since vendors have their own types."""

    type: str
    json_schema: RoutingJsonSchema | None = None
    schema: dict[str, msgspec.Raw] | None = None
    """Some vendors read the schema of `json_object` here."""


class RoutingBody(msgspec.Struct, gc=False):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[RoutingMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: ChoiceCount | None = None
    n_predict: Annotated[float, Meta(le=MAX_REQUESTED_TOKENS)] | None = None
    """llama.cpp prefers it to `max_tokens`. A negative value means no limit."""
    max_new_tokens: Annotated[float, Meta(le=MAX_REQUESTED_TOKENS)] | None = None
    """Hugging Face servers use it as `max_tokens`."""
    min_tokens: Annotated[float, Meta(le=MAX_REQUESTED_TOKENS)] | None = None
    """vLLM generates at least this number of tokens."""
    response_format: RoutingFormat | None = None
