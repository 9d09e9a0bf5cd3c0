"""Errors in Anthropic's format: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

It encodes the gateway's errors, and decodes those of upstreams (docs.anthropic.com, "Errors").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from svc.dialects.upstream_errors import sanitize_details
from svc.errors import (
    AuthenticationFailed,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    RateLimited,
    SvcError,
    TooLarge,
    UpstreamError,
)

_ERROR_TYPE_PATTERN: Final = re.compile(r"[a-z0-9_]{1,64}")

_ERROR_TYPES: Final[tuple[tuple[type[SvcError], str], ...]] = (
    (TooLarge, "request_too_large"),
    (InvalidRequest, "invalid_request_error"),
    (MethodNotAllowed, "invalid_request_error"),
    (AuthenticationFailed, "authentication_error"),
    (PermissionDenied, "permission_error"),
    (ModelNotFound, "not_found_error"),
    (NotFound, "not_found_error"),
    (RateLimited, "rate_limit_error"),
)


_STATUS_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    402: "billing_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""The type of each status (docs.anthropic.com, "Errors"). Vendors omit it, or send the type of another status."""
OVERLOADED_STATUS: Final = 529
_RATE_LIMIT_HEADER_PREFIX: Final = b"anthropic-ratelimit-"


def decode_upstream_error(status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
    """Return the error for a client of the same dialect, or None for the gateway's own error.

    529 and 4xx are forwarded, except for 401 and 403, which concern the gateway's key.
    """
    if status in (401, 403) or not (400 <= status < 500 or status == OVERLOADED_STATUS):
        return None
    forwarded_headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers.items()
        if name == b"retry-after" or name.startswith(_RATE_LIMIT_HEADER_PREFIX)
    }
    error = decode_error_object(raw)
    type_name, default_type = (
        extract_error_type(error),
        _STATUS_ERROR_TYPES.get(status, "invalid_request_error"),
    )
    if not type_name or (
        status in _STATUS_ERROR_TYPES and type_name in _STATUS_ERROR_TYPES.values()
    ):  # a type that belongs to another status
        type_name = default_type
    return UpstreamError(status, type_name, forwarded_headers, extract_details(error))


def decode_error_object(raw: bytes) -> Any:
    """Return the object `error` of an error response, or None."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def extract_error_type(error: Any) -> str:
    """Return the type in an upstream's error object if it is a single word."""
    type_name = error.get("type") if isinstance(error, dict) else None
    return type_name if isinstance(type_name, str) and _ERROR_TYPE_PATTERN.fullmatch(type_name) else ""


def extract_details(error: Any) -> dict[str, Any] | None:
    """Return the `details` of an upstream's error object, by which the SDKs decide how to continue, or None."""
    details = error.get("details") if isinstance(error, dict) else None
    return sanitize_details(details) if isinstance(details, dict) else None


def error_type(error: SvcError) -> str:
    """Return Anthropic's error type for an error."""
    if error.upstream is not None:
        return error.upstream.type
    return next((name for kind, name in _ERROR_TYPES if isinstance(error, kind)), "api_error")


def encode_error(error: SvcError, request_id: str) -> bytes:
    """Return the JSON body of an error response."""
    return msgspec.json.encode({**_error_body(error), "request_id": request_id})


def encode_error_event(error: SvcError, request_id: str = "") -> bytes:
    """Return the `error` event, which replaces `message_stop`, with the request id if there is one."""
    body = encode_error(error, request_id) if request_id else msgspec.json.encode(_error_body(error))
    return b"event: error\ndata: " + body + b"\n\n"


def _error_body(error: SvcError) -> dict[str, object]:
    body: dict[str, object] = {"type": error_type(error), "message": _name_field(error)}
    details = error.details if error.upstream is None else error.upstream.details
    if details is not None:
        body["details"] = details
    return {"type": "error", "error": body}


def _name_field(error: SvcError) -> str:
    """Return the message with the invalid field, for which this format has no other place."""
    if error.param is None or error.upstream is not None or error.param in error.message:
        return error.message
    return f"`{error.param}`: {error.message}"
