"""Decodes the routing information of an OpenAI request, and checks the request. On the hot path."""

from __future__ import annotations

from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.fields_decoder import MAX_KEPT_NESTED_BYTES, FieldsDecoder
from svc.dialects.json_scan import is_string
from svc.dialects.message_text import TEXT_PART_TYPES, check_content, is_null
from svc.dialects.openai.request_schema import ROLES, RoutingBody, RoutingFormat, RoutingMessage
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.validation import astuple
from svc.errors import InvalidRequest

_CHAT_ROUTING_DECODER: Final = FieldsDecoder(
    RoutingBody, roles=ROLES, part_types=TEXT_PART_TYPES, max_nested_bytes=MAX_KEPT_NESTED_BYTES
)
_UNSET_FIELDS: Final = [None, None, None, None]


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information. Raises InvalidRequest with the field."""
    fields = _CHAT_ROUTING_DECODER.decode_body(body)
    model, _, stream, options, max_tokens, max_completion_tokens, _, _, choice_count, *rest = astuple(fields)
    body.has_only_text = _CHAT_ROUTING_DECODER.check(_check_messages, fields, body)
    min_reserved_tokens, unbounded_field = 0, ""
    if rest != _UNSET_FIELDS:
        *limits, response_format = rest
        min_reserved_tokens, unbounded_field = _read_other_limits(*limits)
        if response_format is not None:
            _check_response_format(response_format)
    return RoutingInfo(
        model=model,
        stream=bool(stream),
        include_usage=bool(stream and options and options.include_usage),
        max_tokens=max(max_tokens or 0, max_completion_tokens or 0) or None,  # upstreams support one or the other
        choice_count=choice_count or 1,
        min_reserved_tokens=min_reserved_tokens,
        unbounded_field=unbounded_field,
    )


def _check_messages(fields: RoutingBody) -> bool:
    """Check the contents of messages. Return whether all are only text. Raises InvalidRequest with the index."""
    has_only_text = True
    for index, message in enumerate(fields.messages):
        if not is_string(message.content) and not _check_content(message, f"messages[{index}].content"):
            has_only_text = False
    return has_only_text


def _check_content(message: RoutingMessage, path: str) -> bool:
    """Check a content that is not a string. Some roles need none. Return whether it is only text."""
    if not is_null(message.content):
        return check_content(message.content, path)
    if message.role not in ("assistant", "function"):
        raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    return True


def _check_response_format(response_format: RoutingFormat) -> None:
    """Reject `json_schema` without its schema, as OpenAI does. Other servers would ignore the format."""
    if response_format.type == "json_schema" and (
        response_format.json_schema is None or response_format.json_schema.schema is None
    ):
        path = "response_format.json_schema" + ("" if response_format.json_schema is None else ".schema")
        raise InvalidRequest(f"`{path}` is required.", param=path)


def _read_other_limits(
    n_predict: float | None, max_new_tokens: float | None, min_tokens: float | None
) -> tuple[int, str]:
    """Read limits that only some upstreams support. Others use `max_tokens`, so these only raise the reservation."""
    unbounded_field = ""
    if n_predict is not None and n_predict < 0:
        unbounded_field = "n_predict"
    elif max_new_tokens is not None and max_new_tokens < 0:
        unbounded_field = "max_new_tokens"
    return int(max(n_predict or 0, max_new_tokens or 0, min_tokens or 0, 0)), unbounded_field
