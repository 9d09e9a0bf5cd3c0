"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`; ours and upstreams'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

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
    UpstreamError,
)

_WORD: Final = re.compile(r"[a-z0-9_]{1,64}")

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


_RELAYED: Final = {
    400: "invalid_request_error",
    402: "billing_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""The type of each status (docs.anthropic.com, "Errors"). Vendors leave it out, or name the type of another status."""
OVERLOADED: Final = 529
_LIMITS: Final = b"anthropic-ratelimit-"


def relayed_error(status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
    """The error for a client of the same dialect: 529 and 4xx, but not 401 and 403, which concern the gateway's key."""
    if status in (401, 403) or not (400 <= status < 500 or status == OVERLOADED):
        return None
    kept = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers.items()
        if name == b"retry-after" or name.startswith(_LIMITS)
    }
    kind, usual = type_in(upstream_error(raw)), _RELAYED.get(status, "invalid_request_error")
    if not kind or (status in _RELAYED and kind in _RELAYED.values()):  # not the type of another status
        kind = usual
    return UpstreamError(status, kind, kept)


def upstream_error(raw: bytes) -> Any:
    """The object `error` of an error answer; None if there is none."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def type_in(error: Any) -> str:
    """The type that an upstream's error object names, if it is a word."""
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and _WORD.fullmatch(kind) else ""


def error_type(error: SvcError) -> str:
    """Anthropic's word for it."""
    if error.upstream is not None:
        return error.upstream.type
    return next((name for kind, name in _TYPES if isinstance(error, kind)), "api_error")


def write_error(error: SvcError, request_id: str) -> bytes:
    """The JSON body of an error answer."""
    return msgspec.json.encode({**_body(error), "request_id": request_id})


def error_event(error: SvcError) -> bytes:
    """What a client is sent in the place of `message_stop`."""
    return b"event: error\ndata: " + msgspec.json.encode(_body(error)) + b"\n\n"


def _body(error: SvcError) -> dict[str, object]:
    return {"type": "error", "error": {"type": error_type(error), "message": error.message}}
