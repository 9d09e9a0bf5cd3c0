"""Decodes the routing information of an Anthropic request, and checks the request. On the hot path."""

from __future__ import annotations

from typing import Final

from svc.dialects.anthropic.request_schema import ROLES, CountBody, RoutingBody
from svc.dialects.base import RequestBody
from svc.dialects.fields_decoder import MAX_KEPT_NESTED_BYTES, FieldsDecoder
from svc.dialects.json_scan import is_string
from svc.dialects.message_text import TEXT_PART_TYPES, check_content, is_null
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest

_MESSAGES_ROUTING_DECODER: Final = FieldsDecoder(
    RoutingBody, roles=ROLES, part_types=TEXT_PART_TYPES, max_nested_bytes=MAX_KEPT_NESTED_BYTES
)
_COUNT_DECODER: Final = FieldsDecoder(
    CountBody, roles=ROLES, part_types=TEXT_PART_TYPES, max_nested_bytes=MAX_KEPT_NESTED_BYTES
)


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information. Usage is part of every stream. Raises InvalidRequest with the field."""
    fields = _MESSAGES_ROUTING_DECODER.decode_body(body)
    if not fields.messages and is_null(fields.thread):  # a thread may continue without new messages
        raise InvalidRequest("Invalid value for `messages`: expected array of length at least 1.", param="messages")
    body.has_only_text = _MESSAGES_ROUTING_DECODER.check(_check_contents, fields, body)
    response_format = fields.output_config.format if fields.output_config is not None else None
    if response_format is not None and response_format.type == "json_schema" and response_format.schema is None:
        raise InvalidRequest("`output_config.format.schema` is required.", param="output_config.format.schema")
    return RoutingInfo(model=fields.model, stream=bool(fields.stream), include_usage=True, max_tokens=fields.max_tokens)


def decode_count_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information of a token count. Raises InvalidRequest with the field."""
    fields = _COUNT_DECODER.decode_body(body)
    body.has_only_text = _COUNT_DECODER.check(_check_contents, fields, body)
    return RoutingInfo(model=fields.model, has_completion=False, is_metered=False)


def _check_contents(fields: RoutingBody | CountBody) -> bool:
    """Check the contents of the messages. Return whether all of them are text."""
    has_only_text = True
    for index, message in enumerate(fields.messages):
        if not is_string(message.content) and not check_content(message.content, f"messages[{index}].content"):
            has_only_text = False
    if not is_string(fields.system) and not is_null(fields.system):
        has_only_text = check_content(fields.system, "system") and has_only_text
    return has_only_text
