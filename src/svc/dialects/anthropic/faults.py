"""Our errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

from typing import Final

import msgspec

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
)

_TYPES: Final[tuple[tuple[type[SvcError], str], ...]] = (
    (TooLarge, "request_too_large"),
    (InvalidRequest, "invalid_request_error"),
    (MethodNotAllowed, "invalid_request_error"),
    (AuthenticationFailed, "authentication_error"),
    (PermissionDenied, "permission_error"),
    (ModelNotFound, "not_found_error"),
    (NotFound, "not_found_error"),
    (RateLimited, "rate_limit_error"),
)


def error_type(error: SvcError) -> str:
    """Anthropic's word for it."""
    return next((name for kind, name in _TYPES if isinstance(error, kind)), "api_error")


def write_error(error: SvcError, request_id: str) -> bytes:
    """The JSON body of an error answer."""
    return msgspec.json.encode({**_body(error), "request_id": request_id})


def error_event(error: SvcError) -> bytes:
    """What a client is sent in the place of `message_stop`."""
    return b"event: error\ndata: " + msgspec.json.encode(_body(error)) + b"\n\n"


def _body(error: SvcError) -> dict[str, object]:
    return {"type": "error", "error": {"type": error_type(error), "message": error.message}}
