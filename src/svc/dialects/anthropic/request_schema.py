"""Strict types of the fields of Anthropic's requests that routing needs. Other fields are skipped. Data only."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from svc.dialects.message_schema import ABSENT

MAX_REQUESTED_TOKENS: Final = 2**31 - 1
Role = Literal["user", "assistant", "system"]
ROLES: Final[tuple[str, ...]] = get_args(Role)


class _RoutingMessage(msgspec.Struct, gc=False):
    role: Role
    content: msgspec.Raw


class _RoutingFormat(msgspec.Struct, gc=False):
    type: str
    schema: dict[str, msgspec.Raw] | None = None


class _RoutingOutputConfig(msgspec.Struct, gc=False):
    format: _RoutingFormat | None = None


class CountBody(msgspec.Struct, gc=False):
    """The body of a token count, which has no `max_tokens`. The last fields are checked, because they are counted."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[_RoutingMessage], Meta(min_length=1)]
    system: msgspec.Raw = ABSENT
    tools: list[dict[str, msgspec.Raw]] | None = None
    tool_choice: dict[str, msgspec.Raw] | None = None
    thinking: dict[str, msgspec.Raw] | None = None
    output_config: _RoutingOutputConfig | None = None
    mcp_servers: list[dict[str, msgspec.Raw]] | None = None


class RoutingBody(msgspec.Struct, gc=False):
    """`message_text` checks `system` and the content of each message. Only a `thread` may have no messages."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: list[_RoutingMessage]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_REQUESTED_TOKENS)]
    system: msgspec.Raw = ABSENT
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    output_config: _RoutingOutputConfig | None = None
    thread: msgspec.Raw = ABSENT
