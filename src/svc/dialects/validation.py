"""Decodes JSON of clients and upstreams to typed values, with errors that have the field. No rules of dialects.

A client's error is InvalidRequest with `param` as a path (`messages[0].role`). An upstream's is ProviderFailed.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, TypeVar

import msgspec

from svc.dialects.json_scan import check_utf8
from svc.dialects.message_schema import ModelField
from svc.errors import InvalidRequest, ProviderFailed
from svc.wire.type_names import with_json_types

T = TypeVar("T")

astuple: Final = msgspec.structs.astuple
"""Returns all decoded fields in order. Access to single fields would cost a lookup by name each."""

MAX_MODEL_CHARS: Final = 512
"""Maximum length of a model's name."""
_ERROR_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING_FIELD: Final = re.compile(r"missing required field `(.*?)`")
_NOT_UTF8: Final = "The body is not valid UTF-8."
_TRUNCATED_INPUT: Final = "Input data was truncated"
_SURROGATE_ERROR: Final = re.compile(r"(?:surrogate pair|end of hex escape) \(byte (\d+)\)$")
_LONE_SURROGATE_ESCAPE: Final = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u|\\?\Z)")
"""A surrogate escape (not an escaped backslash) that no escape follows, and that does not end the body."""
_SURROGATES_OR_BACKSLASH: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash or a pair of surrogates, as group 1, or an unpaired surrogate."""
_UNICODE_ESCAPE_BYTES: Final = len(r"\ud800")
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_client_json(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode a client's body. Raises InvalidRequest if it is not JSON, not UTF-8, or not of the decoder's type."""
    try:
        check_utf8(raw)
        return decoder.decode(raw)
    except DECODE_ERRORS as fault:
        raise to_invalid_request(fault, raw=raw) from None


def decode_client_object(raw: bytes) -> dict[str, Any]:
    """Decode a client's complete body to a dictionary. Raises InvalidRequest."""
    try:
        return _OBJECT_DECODER.decode(raw)  # decodes all strings, and so validates their UTF-8
    except DECODE_ERRORS as fault:
        raise to_invalid_request(fault, raw=raw) from None


def decode_client_fields(raw: bytes) -> dict[str, Any]:
    """Decode a client's body to a dictionary of `msgspec.Raw` with the bytes of each field. Raises InvalidRequest.

    The body was decoded before, so that the UTF-8 of the values is not checked again.
    """
    try:
        fields: dict[str, Any] = _RAW_FIELDS_DECODER.decode(raw)
    except DECODE_ERRORS as fault:
        raise to_invalid_request(fault, raw=raw) from None
    return fields


def find_requested_model(raw: bytes) -> str | None:
    """Return the model of a body that was rejected, or None if it cannot be read."""
    try:
        model = _MODEL_DECODER.decode(raw).model
    except DECODE_ERRORS:
        return None
    return model if 0 < len(model) <= MAX_MODEL_CHARS else None


def encode_upstream_body(body: dict[str, Any]) -> bytes:
    """Encode a body for an upstream. Raises InvalidRequest if translation has nested it too deeply."""
    try:
        return msgspec.json.encode(body)
    except RecursionError as fault:
        raise to_invalid_request(fault) from None


def decode_client_value(decoder: msgspec.json.Decoder[T], value: msgspec.Raw, path: str) -> T:
    """Decode a part of a client's body, at `path`, whose syntax was checked before. Raises InvalidRequest."""
    try:
        return decoder.decode(value)
    except DECODE_ERRORS as fault:
        raise to_invalid_request(fault, parent_path=path) from None


def convert_client_value(value: Any, target_type: type[T], path: str) -> T:
    """Convert a decoded part of a client's body, at `path`, to a type. Raises InvalidRequest."""
    try:
        return msgspec.convert(value, target_type)
    except (msgspec.ValidationError, RecursionError) as fault:
        raise to_invalid_request(fault, parent_path=path) from None


def to_invalid_request(error: Exception, *, parent_path: str = "", raw: bytes | None = None) -> InvalidRequest:
    """Return an InvalidRequest for an error of msgspec, in the body `raw` or a part at `parent_path`."""
    if raw is not None and not raw.strip():
        return InvalidRequest("The body is empty. It must be a JSON object.")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(_NOT_UTF8)
    if isinstance(error, RecursionError):
        return InvalidRequest("The body is nested too deeply.")
    if not isinstance(error, msgspec.ValidationError):
        reason = _describe_lone_surrogate(str(error), raw or b"") or str(error).removeprefix("JSON is malformed: ")
        return InvalidRequest(f"The body is not valid JSON: {reason}.")
    return _to_invalid_value(str(error), parent_path)


def _describe_lone_surrogate(text: str, raw: bytes) -> str:
    """Return a message if the error is a lone surrogate, for which msgspec has several messages, else an empty string.

    If fewer bytes follow than a second surrogate needs, msgspec reports a truncated body.
    """
    if surrogate_error := _SURROGATE_ERROR.search(text):
        start = int(surrogate_error.group(1)) - _UNICODE_ESCAPE_BYTES
    elif text == _TRUNCATED_INPUT and (
        lone_surrogate := _LONE_SURROGATE_ESCAPE.search(raw, max(0, len(raw) - 2 * _UNICODE_ESCAPE_BYTES))
    ):
        start = lone_surrogate.start(1)
    else:
        return ""
    escape = raw[start : start + _UNICODE_ESCAPE_BYTES].decode("ascii", "replace")
    return f"{escape} (byte {start}) is an unpaired surrogate"


def _to_invalid_value(text: str, parent_path: str) -> InvalidRequest:
    location = _ERROR_PATH.search(text)
    path = location.group(1) if location else ""
    reason = text[: location.start()] if location else text
    missing = _MISSING_FIELD.search(reason)
    names = [parent_path, path, missing.group(1) if missing else ""]
    param = ".".join(name for name in names if name).replace(".[", "[")
    if not param:
        return InvalidRequest(f"The body must be a JSON object: {_simplify_reason(reason)}.")
    if missing:
        return InvalidRequest(f"`{param}` is required.", param=param)
    return InvalidRequest(f"Invalid value for `{param}`: {_simplify_reason(reason)}.", param=param)


def _simplify_reason(reason: str) -> str:
    reason = with_json_types(reason.replace(" | null", "")).replace("`", "")
    reason = reason.replace(">=", "at least").replace("<=", "at most")
    return reason[:1].lower() + reason[1:200]


def decode_upstream_json(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode an upstream's JSON. Raises ProviderFailed if it is malformed or not of the decoder's type.

    Escapes of unpaired surrogates become U+FFFD: some providers divide an emoji between two events.
    """
    try:
        return _decode_checked(decoder, raw)
    except DECODE_ERRORS:
        repaired = _SURROGATES_OR_BACKSLASH.sub(_replace_unpaired, raw) if raw.find(b"\\u") >= 0 else raw
    if repaired != raw:
        with contextlib.suppress(*DECODE_ERRORS):
            return _decode_checked(decoder, repaired)
    raise ProviderFailed("The provider sent an invalid response.")


def decode_upstream_object(raw: bytes) -> dict[str, Any]:
    """Decode an upstream's JSON object, as `decode_upstream_json` does. Raises ProviderFailed."""
    return decode_upstream_json(_OBJECT_DECODER, raw)


def _decode_checked(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    check_utf8(raw)
    return decoder.decode(raw)


def _replace_unpaired(match: re.Match[bytes]) -> bytes:
    return match[1] or rb"\ufffd"


_MODEL_DECODER: Final = msgspec.json.Decoder(ModelField)
_RAW_FIELDS_DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT_DECODER: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])
