"""Decodes the routing information of an Anthropic request, and checks the request. On the hot path."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.validation import decode_skeleton
from svc.errors import InvalidRequest

MAX_REQUESTED_TOKENS: Final = 2**31 - 1


class _RoutingBlock(msgspec.Struct):
    type: str
    text: str | None = None


class _RoutingMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_RoutingBlock]


class _RoutingFormat(msgspec.Struct):
    type: str
    schema: dict[str, msgspec.Raw] | None = None


class _RoutingOutputConfig(msgspec.Struct):
    format: _RoutingFormat | None = None


class RoutingBody(msgspec.Struct):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[_RoutingMessage], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_REQUESTED_TOKENS)]
    system: str | list[_RoutingBlock] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    output_config: _RoutingOutputConfig | None = None


_ROUTING_DECODER: Final = msgspec.json.Decoder(RoutingBody)


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information. Usage is part of every stream. Raises InvalidRequest with the field."""
    fields, body.skeleton = decode_skeleton(_ROUTING_DECODER, body.raw)
    response_format = fields.output_config.format if fields.output_config is not None else None
    if response_format is not None and response_format.type == "json_schema" and response_format.schema is None:
        raise InvalidRequest("`output_config.format.schema` is required.", param="output_config.format.schema")
    return RoutingInfo(model=fields.model, stream=bool(fields.stream), include_usage=True, max_tokens=fields.max_tokens)
