"""Maps errors of upstreams to the gateway's errors. Both dialects have an `error` object, in several variants."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.errors import InvalidRequest, ProviderFailed, RateLimited, SvcError
from svc.wire.chat import StreamError

MAX_UPSTREAM_MESSAGE_CHARS: Final = 1000
"""Maximum length of an upstream's message. The rest is truncated."""
MAX_UPSTREAM_DETAILS: Final = 32
"""Maximum number of fields or items of one level of an error's `details`, and of characters of a field's name."""
MIN_REDACTED_KEY_CHARS: Final = 6
"""Minimum length of a key that is redacted. A shorter one is no secret, and could be a part of any word."""

REPORTED_FAILURE_PREFIX: Final = "The provider failed: "
"""The beginning of the message of an error that the upstream reports in place of a response."""

_SECRET_PATTERN: Final = re.compile(
    r"""(?ix) (?: [a-z][a-z0-9+.-]{0,30}://\S+                  # addresses
    | \b \d{1,3} (?:\.\d{1,3}){3} (?: : \d+ )? \b
    | \b localhost (?: : \d+ )?
    | \[ [0-9a-f:]{0,39} :: [0-9a-f:]{0,39} \] (?: : \d+ )?
    | \b (?: sk | pk | gsk | key | xai | svc ) [-_] [\w*.-]{6,} # keys, also masked ones
    | (?<![\w-]) [\w-]+ (?: \.[\w-]+ ){0,15} : \d{2,5} \b     # host and port
    | (?<![\w-]) [\w-]+ (?: \.[\w-]+ ){0,15} \. (?: internal | local | svc | lan ) \b
    | \b bearer \s+ \S+ )"""
)
_FIELD_PATH: Final = re.compile(r"[a-z_]{1,40}(?:\.[A-Za-z_]{1,40}|\[\d{1,9}\]){0,8}")
"""The path of a field, such as `messages[0].content`. A key has a dash or more letters."""
_VENDOR_DOCS_LINK: Final = re.compile(
    r"https://(?:[a-z0-9-]{1,63}\.){0,4}(?:anthropic|claude|openai)\.com(?:/[\w./#-]*)?[.,;:!)'\"]*"
)
"""Links to a vendor's documentation, which its error messages contain."""
_RATE_LIMIT_CODES: Final = (
    "rate_limit_error",
    "rate_limit_exceeded",
    "insufficient_quota",
    "tokens",
    "requests",
    "429",
)
_INVALID_REQUEST_CODES: Final = (
    "invalid_request_error",
    "invalid_request",
    "request_too_large",
    "context_length_exceeded",
    "400",
    "413",
    "422",
)

CREDENTIAL_ERROR_CODES: Final = ("authentication_error", "permission_error", "invalid_api_key", "401", "403")
"""Types and codes of errors about the key that the gateway sent."""


def sanitize_message(message: str) -> str:
    """Return the message without keys and addresses, limited in length."""
    return _SECRET_PATTERN.sub(_redact_match, message[: 4 * MAX_UPSTREAM_MESSAGE_CHARS])[
        :MAX_UPSTREAM_MESSAGE_CHARS
    ].strip()


def _redact_match(match: re.Match[str]) -> str:
    text = match.group()
    return text if _VENDOR_DOCS_LINK.fullmatch(text) else "[…]"


def redact_key(message: str, api_key: str) -> str:
    """Return the message without the provider's key."""
    return message.replace(api_key, "[…]") if len(api_key) >= MIN_REDACTED_KEY_CHARS else message


def redact_error(error: SvcError, api_key: str) -> None:
    """Remove the provider's key from an error."""
    error.message = redact_key(error.message, api_key)
    if error.upstream is not None and error.upstream.details is not None:
        error.upstream.details = sanitize_details(error.upstream.details, api_key)


def sanitize_details(value: Any, api_key: str = "", depth: int = 0) -> Any:
    """Return the `details` of an upstream's error without keys and addresses, at up to four levels."""
    if isinstance(value, str):
        return redact_key(sanitize_message(value), api_key)
    if isinstance(value, dict | list) and depth > 3:
        return None
    if isinstance(value, list):
        return [sanitize_details(item, api_key, depth + 1) for item in value[:MAX_UPSTREAM_DETAILS]]
    if isinstance(value, dict):
        items = list(value.items())[:MAX_UPSTREAM_DETAILS]
        return {name[:MAX_UPSTREAM_DETAILS]: sanitize_details(item, api_key, depth + 1) for name, item in items}
    return value


def decode_error_message(raw: bytes) -> str | None:
    """Return the upstream's message in an error body, in any vendor's format, or None."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    message = extract_message(body)
    return sanitize_message(message) or None if message else None


def decode_error_object(raw: bytes) -> Any:
    """Return the `error` of a JSON object, or None."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return body.get("error") if isinstance(body, dict) else None


def decode_error_param(raw: bytes) -> str | None:
    """Return the field that an error body in OpenAI's format names, or None."""
    error = decode_error_object(raw)
    param = error.get("param") if isinstance(error, dict) else None
    return param if isinstance(param, str) and _FIELD_PATH.fullmatch(param) else None


def extract_message(body: Any, depth: int = 0) -> str | None:
    """Return the first text among `message`, `error`, `detail` and `msg`, at up to four levels.

    An error of validation has the path of its field in `loc`, such as `["body", "verbosity"]`.
    """
    if isinstance(body, str):
        return body
    if depth > 4:
        return None
    if isinstance(body, list):
        return extract_message(body[0], depth + 1) if body else None
    if isinstance(body, dict):
        for key in ("message", "error", "detail", "msg"):
            if body.get(key) and (message := extract_message(body[key], depth + 1)):
                location = body.get("loc") if key == "msg" else None
                return _join_location(location) + message if isinstance(location, list) else message
    return None


def _join_location(location: list[Any]) -> str:
    """Return the path of a field for the beginning of a message, or an empty string."""
    path = ".".join([str(name)[:100] for name in location[:10] if name != "body"])
    return f"`{path}`: " if path else ""


def map_upstream_error(error: Any) -> SvcError:
    """Return the error for the client if an upstream sent an error object in place of a response."""
    message = sanitize_message(extract_message(error) or "")
    codes = {str(error.get(key)) for key in ("type", "code", "status")} if isinstance(error, dict) else set()
    if codes & set(CREDENTIAL_ERROR_CODES):
        return credentials_rejected_error()
    if codes & set(_RATE_LIMIT_CODES):
        return RateLimited(message or "The provider's rate limit is reached (upstream).", limit="upstream")
    if codes & set(_INVALID_REQUEST_CODES):
        return InvalidRequest(message or "The provider rejected the request.")
    return ProviderFailed(
        f"{REPORTED_FAILURE_PREFIX}{message}" if message else "The provider failed.", is_reported_by_provider=True
    )


def to_stream_error(error: SvcError) -> StreamError:
    """Convert an error in a stream to a delta."""
    return StreamError(error.message, error.status)


def from_stream_error(stream_error: StreamError) -> SvcError:
    """Convert a delta back to its error."""
    if stream_error.status == RateLimited.status:
        return RateLimited(stream_error.message, limit="upstream")
    if stream_error.status == InvalidRequest.status:
        return InvalidRequest(stream_error.message)
    return ProviderFailed(stream_error.message, is_reported_by_provider=True)


def credentials_rejected_error() -> ProviderFailed:
    """Return the error for a key that the provider rejected. The client cannot change the key and gets no details."""
    return ProviderFailed("The provider rejected the gateway's credentials.")


def truncated_response_error() -> ProviderFailed:
    """Return the error for a response that ended before it was complete."""
    return ProviderFailed("The provider ended its response before it was complete.")
