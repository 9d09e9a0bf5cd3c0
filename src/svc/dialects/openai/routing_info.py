"""What routing needs of an OpenAI request, and the checks before any upstream is called. On the hot path."""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import RoutingInfo
from svc.dialects.openai.request_schema import RoutingBody, RoutingFormat
from svc.dialects.validation import astuple, decode_skeleton
from svc.errors import InvalidRequest

_ROUTING_DECODER: Final = msgspec.json.Decoder(RoutingBody)
_UNSET_FIELDS: Final = [None, None, None, None]


def decode_routing_info(raw: bytes) -> RoutingInfo:
    """Raises InvalidRequest that names the field."""
    body, skeleton = decode_skeleton(_ROUTING_DECODER, raw)
    model, messages, stream, options, max_tokens, max_completion_tokens, _, _, choice_count, *others = astuple(body)
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function"):
            path = f"messages[{index}].content"
            raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    routing_info = RoutingInfo(
        model=model,
        stream=bool(stream),
        include_usage=bool(stream and options and options.include_usage),
        max_tokens=max(max_tokens or 0, max_completion_tokens or 0) or None,  # upstreams differ in which they know
        choice_count=choice_count or 1,
        skeleton=skeleton,
    )
    if others != _UNSET_FIELDS:
        *limits, response_format = others
        _set_other_limits(routing_info, *limits)
        if response_format is not None:
            _check_response_format(response_format)
    return routing_info


def _check_response_format(response_format: RoutingFormat) -> None:
    """Refuse a form without its schema, as OpenAI does: other servers would ignore it."""
    if response_format.type == "json_schema" and (
        response_format.json_schema is None or response_format.json_schema.schema is None
    ):
        path = "response_format.json_schema" + ("" if response_format.json_schema is None else ".schema")
        raise InvalidRequest(f"`{path}` is required.", param=path)


def _set_other_limits(
    routing_info: RoutingInfo, n_predict: float | None, max_new_tokens: float | None, min_tokens: float | None
) -> None:
    """Note limits that only some upstreams read. Others read `max_tokens`, so these only raise the reservation."""
    routing_info.min_reserved_tokens = int(max(n_predict or 0, max_new_tokens or 0, min_tokens or 0, 0))
    if n_predict is not None and n_predict < 0:
        routing_info.unbounded_field = "n_predict"
    elif max_new_tokens is not None and max_new_tokens < 0:
        routing_info.unbounded_field = "max_new_tokens"
