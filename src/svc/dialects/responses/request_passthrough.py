"""Encodes a request for an upstream that has the Responses API: unchanged, or with the items of earlier responses."""

from __future__ import annotations

from svc.dialects.base import EncodedRequest, ModelProfile, RequestBody
from svc.dialects.request_passthrough import pass_through_request
from svc.dialects.responses.reasoning import has_encoded_thinking, without_encoded_thinking
from svc.dialects.responses.stored import insert_earlier_items
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.validation import decode_client_object, encode_upstream_body


def pass_through_responses_request(
    body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile
) -> EncodedRequest:
    """Encode a request. Raises InvalidRequest for a field that the upstream rejects and that cannot be left out.

    The reasoning of translated responses is left out: the upstream did not make it.
    """
    if body.earlier_items is not None:
        fields = insert_earlier_items(decode_client_object(body.raw), body.earlier_items)
        fields["input"] = without_encoded_thinking(fields["input"])
        body = RequestBody(encode_upstream_body(fields))
    elif has_encoded_thinking(body.raw):
        fields = decode_client_object(body.raw)
        items = fields.get("input")
        kept = without_encoded_thinking(items) if isinstance(items, list) else items
        if kept != items:
            body = RequestBody(encode_upstream_body({**fields, "input": kept}))
    return pass_through_request(body, routing_info, profile, ask_usage=False)
