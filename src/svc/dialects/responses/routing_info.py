"""Decodes the routing information of a Responses request, and checks the request."""

from __future__ import annotations

from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.fields_decoder import FieldsDecoder
from svc.dialects.request_values import check_metadata
from svc.dialects.responses.request_schema import ResponsesRoutingBody
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.wire.stored_response import StateReference

_RESPONSES_ROUTING_DECODER: Final = FieldsDecoder(ResponsesRoutingBody)


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information. Usage is part of every stream. Raises InvalidRequest with the field."""
    fields = _decode_fields(body)
    return RoutingInfo(
        model=fields.model,
        stream=bool(fields.stream),
        include_usage=True,
        max_tokens=fields.max_output_tokens,
        max_tokens_field="max_output_tokens",
        state=_find_reference(fields),
        can_store=fields.store is not False and not fields.background,
    )


def decode_count_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information of a request whose tokens are counted. Raises InvalidRequest with the field."""
    fields = _decode_fields(body)
    return RoutingInfo(model=fields.model, has_completion=False, is_metered=False, state=_find_reference(fields))


def _decode_fields(body: RequestBody) -> ResponsesRoutingBody:
    """Decode and check the fields, and set the body's skeleton."""
    fields = _RESPONSES_ROUTING_DECODER.decode_body(body)
    is_empty = fields.input is None or (not fields.input and body.skeleton is body.raw)  # a skeleton has no long texts
    if is_empty and not (fields.previous_response_id or fields.prompt or fields.conversation):
        raise InvalidRequest("`input` is required, and must not be empty.", param="input")
    if fields.previous_response_id and fields.conversation:
        message = "`previous_response_id` and `conversation` exclude each other: send one of them."
        raise InvalidRequest(message, param="previous_response_id")
    check_metadata(fields.metadata)
    text_format = fields.text.format if fields.text is not None else None
    if text_format is not None and text_format.type == "json_schema":
        for name in ("name", "schema"):
            if getattr(text_format, name) is None:
                raise InvalidRequest(f"`text.format.{name}` is required.", param=f"text.format.{name}")
    return fields


def _find_reference(fields: ResponsesRoutingBody) -> StateReference | None:
    items = fields.input if isinstance(fields.input, list) else []
    item_ids = tuple([item.id for item in items if item.type == "item_reference" and item.id])
    if not (fields.previous_response_id or fields.conversation or item_ids):
        return None
    return StateReference(fields.previous_response_id, item_ids, bool(fields.conversation))
