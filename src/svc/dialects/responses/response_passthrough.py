"""Forwards complete responses of upstreams that have the Responses API, unchanged."""

from __future__ import annotations

from svc.dialects.base import EncodedResponse
from svc.dialects.responses.native_schema import NATIVE_RESPONSE_DECODER, NativeResponse
from svc.dialects.upstream_errors import map_upstream_error, truncated_response_error
from svc.dialects.validation import decode_upstream_json, decode_upstream_object
from svc.errors import ProviderFailed


def pass_through_response(raw: bytes) -> EncodedResponse:
    """Return the response unchanged. Raises ProviderFailed if it is malformed, or the error of a failed response."""
    try:
        payload = decode_upstream_json(NATIVE_RESPONSE_DECODER, raw)
    except ProviderFailed:
        error = decode_upstream_object(raw).get("error")
        if error:
            raise map_upstream_error(error) from None
        raise
    check_end(payload)
    return EncodedResponse(raw, payload.token_usage(), payload.finish_reason(), payload.model, native_id=payload.id)


def check_end(payload: NativeResponse) -> None:
    """Raise the error of a response that failed or is not finished, although the upstream presents it as complete."""
    if payload.has_failed:
        raise map_upstream_error(payload.error)
    if payload.is_unfinished:
        raise truncated_response_error()
