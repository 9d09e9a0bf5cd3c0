"""Errors in the words of upstreams -> ours. Both dialects put them in an `error` object; vendors vary its shape."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.errors import InvalidRequest, ProviderFailed, RateLimited, SvcError
from svc.wire.chat import StreamFailed

MAX_MESSAGE: Final = 1000
"""Characters of an upstream's message that are kept."""
MIN_KEY: Final = 6
"""Characters of a provider's key; a shorter one is no secret, and could be a part of any word."""

_SECRET: Final = re.compile(
    r"""(?ix) (?: [a-z][a-z0-9+.-]{0,30}://\S+                  # addresses
    | \b \d{1,3} (?:\.\d{1,3}){3} (?: : \d+ )? \b
    | \b localhost (?: : \d+ )?
    | \[ [0-9a-f:]{0,39} :: [0-9a-f:]{0,39} \] (?: : \d+ )?
    | \b (?: sk | pk | gsk | key | xai | svc ) [-_] [\w*.-]{6,} # keys, also masked ones
    | (?<![\w-]) [\w-]+ (?: \.[\w-]+ ){0,15} : \d{2,5} \b     # host and port
    | (?<![\w-]) [\w-]+ (?: \.[\w-]+ ){0,15} \. (?: internal | local | svc | lan ) \b
    | \b bearer \s+ \S+ )"""
)
_DOCUMENTATION: Final = re.compile(
    r"https://(?:[a-z0-9-]{1,63}\.){0,4}(?:anthropic|claude|openai)\.com(?:/[\w./#-]*)?[.,;:!)'\"]*"
)
"""Links to a vendor's documentation, which its errors contain."""
_LIMITED: Final = ("rate_limit_error", "rate_limit_exceeded", "insufficient_quota", "tokens", "requests", "429")
_REFUSED: Final = (
    "invalid_request_error",
    "invalid_request",
    "request_too_large",
    "context_length_exceeded",
    "400",
    "413",
    "422",
)

CREDENTIALS: Final = ("authentication_error", "permission_error", "invalid_api_key", "401", "403")
"""Types and codes of errors about the key that the gateway sent."""


def presentable(message: str) -> str:
    """The message without keys and addresses, of a bearable length."""
    return _SECRET.sub(_hidden, message[: 4 * MAX_MESSAGE])[:MAX_MESSAGE].strip()


def _hidden(found: re.Match[str]) -> str:
    text = found.group()
    return text if _DOCUMENTATION.fullmatch(text) else "[…]"


def without(message: str, key: str) -> str:
    """Whatever the upstream's words were, its key is not among them."""
    return message.replace(key, "[…]") if len(key) >= MIN_KEY else message


def find_message(raw: bytes) -> str | None:
    """The upstream's own message in an error body, in any of the shapes that vendors use; None if there is none."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = message_in(body)
    return presentable(found) or None if found else None


def message_in(body: Any, depth: int = 0) -> str | None:
    """The first text among `message`, `error`, `detail` and `msg`, however deep it sits (up to four levels)."""
    if isinstance(body, str):
        return body
    if depth > 4:
        return None
    if isinstance(body, list):
        return message_in(body[0], depth + 1) if body else None
    if isinstance(body, dict):
        for key in ("message", "error", "detail", "msg"):
            if body.get(key) and (found := message_in(body[key], depth + 1)):
                return found
    return None


def failure_of(error: Any) -> SvcError:
    """What an upstream's error object, met where an answer should be, means for the client."""
    message = presentable(message_in(error) or "")
    words = {str(error.get(key)) for key in ("type", "code", "status")} if isinstance(error, dict) else set()
    if words & set(CREDENTIALS):
        return credentials_refused()
    if words & set(_LIMITED):
        return RateLimited(message or "The provider's rate limit is reached (upstream).", limit="upstream")
    if words & set(_REFUSED):
        return InvalidRequest(message or "The provider refused the request.")
    return ProviderFailed(f"The provider failed: {message}" if message else "The provider failed.", told=True)


def stream_failed(error: SvcError) -> StreamFailed:
    """An upstream's error in mid-stream, as a delta."""
    return StreamFailed(error.message, error.status)


def error_of(failed: StreamFailed) -> SvcError:
    """And back: the error of such a delta."""
    if failed.status == RateLimited.status:
        return RateLimited(failed.message, limit="upstream")
    if failed.status == InvalidRequest.status:
        return InvalidRequest(failed.message)
    return ProviderFailed(failed.message, told=True)


def credentials_refused() -> ProviderFailed:
    """The error for a key that the provider refused. The client cannot change it, so it learns no details."""
    return ProviderFailed("The provider refused the gateway's own credentials.")


def cut_short() -> ProviderFailed:
    """The upstream's answer ended before it was complete."""
    return ProviderFailed("The provider ended its answer before it was complete.")
