"""JSON from outside -> typed values, with an error that names the field. No dialect's rules.

A client's mistake is InvalidRequest with `param` as a path (`messages[0].role`); an upstream's is ProviderFailed.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, TypeVar

import msgspec

from svc.dialects.outline import MAX_ESCAPES, MAX_VALUES, has_many_escapes, has_many_values, outline
from svc.errors import InvalidRequest, ProviderFailed

T = TypeVar("T")

FIELDS: Final = msgspec.structs.astuple
"""What was decoded, all at once and in order: each look at one field is a look-up by its name."""

_AT: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING: Final = re.compile(r"missing required field `(.*?)`")
_TRUNCATED: Final = "Input data was truncated"
_HALF_ENDS: Final = re.compile(r"(?:surrogate pair|end of hex escape) \(byte (\d+)\)$")
_HALF: Final = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u|\\?\Z)")
"""An escape, not an escaped backslash, that neither goes on nor ends with the body."""
_ESCAPE: Final = len(r"\ud800")
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_request(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """A client's body; raises InvalidRequest for what is not JSON, not UTF-8, or not of the decoder's type."""
    try:
        if not raw.isascii():
            raw.decode()  # msgspec looks at the bytes of those strings only that it hands out
        return decoder.decode(raw)
    except _FAULTS as fault:
        raise invalid(fault, raw=raw) from None


def decode_outline(decoder: msgspec.json.Decoder[T], raw: bytes) -> tuple[T, bytes]:
    """As `decode_request`, from the outline of the body, which is returned as well.

    Raises InvalidRequest as well for a body of so many values that reading it would block the event loop.
    """
    if has_many_escapes(raw):
        raise InvalidRequest(f"The body has more than {MAX_ESCAPES} backslashes.")
    short = outline(raw)
    if has_many_values(short):
        raise InvalidRequest(f"The body has more than {MAX_VALUES} values (parts, keys, messages and others).")
    if short is not raw:
        with contextlib.suppress(*_FAULTS):  # the error is to name places in the body that was sent
            if not raw.isascii():
                raw.decode()
            return decoder.decode(short), short
    return decode_request(decoder, raw), raw


def decode_object(raw: bytes) -> dict[str, Any]:
    """A client's whole body as a dictionary; raises InvalidRequest."""
    return decode_request(_OBJECT, raw)


def decode_fields(raw: bytes) -> dict[str, Any]:
    """A client's whole body as a dictionary of `msgspec.Raw`: each field as it was written; raises InvalidRequest."""
    fields: dict[str, Any] = decode_request(_FIELDS, raw)
    return fields


def encode_request(body: dict[str, Any]) -> bytes:
    """Encode a body for an upstream; raises InvalidRequest if translation has nested it too deeply."""
    try:
        return msgspec.json.encode(body)
    except RecursionError as fault:
        raise invalid(fault) from None


def convert_request(value: Any, kind: type[T], path: str) -> T:
    """A part of a client's body that is decoded already, found at `path`; raises InvalidRequest."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as fault:
        raise invalid(fault, under=path) from None


def invalid(fault: Exception, *, under: str = "", raw: bytes | None = None) -> InvalidRequest:
    """The InvalidRequest that says what msgspec found, in a body `raw` or in a part of one."""
    if raw is not None and not raw.strip():
        return InvalidRequest("The body is empty; it has to be a JSON object.")
    if isinstance(fault, UnicodeDecodeError):
        return InvalidRequest("The body is not valid UTF-8.")
    if isinstance(fault, RecursionError):
        return InvalidRequest("The body is nested too deeply.")
    if not isinstance(fault, msgspec.ValidationError):
        reason = _half_a_pair(str(fault), raw or b"") or str(fault).removeprefix("JSON is malformed: ")
        return InvalidRequest(f"The body is not valid JSON: {reason}.")
    return _wrong_value(str(fault), under)


def _half_a_pair(text: str, raw: bytes) -> str:
    """What is wrong if it is half of a surrogate pair, which msgspec has several words for; empty if it is not.

    With fewer bytes to come than the other half would have, it takes the body for one that was cut off.
    """
    if half := _HALF_ENDS.search(text):
        start = int(half.group(1)) - _ESCAPE
    elif text == _TRUNCATED and (cut := _HALF.search(raw, max(0, len(raw) - 2 * _ESCAPE))):
        start = cut.start(1)
    else:
        return ""
    escape = raw[start : start + _ESCAPE].decode("ascii", "replace")
    return f"{escape} (byte {start}) is half of a surrogate pair, and the other half is not beside it"


def _wrong_value(text: str, under: str) -> InvalidRequest:
    at = _AT.search(text)
    path = at.group(1) if at else ""
    reason = text[: at.start()] if at else text
    missing = _MISSING.search(reason)
    names = [under, path, missing.group(1) if missing else ""]
    param = ".".join(name for name in names if name).replace(".[", "[")
    if not param:
        return InvalidRequest(f"The body has to be a JSON object: {_plain(reason)}.")
    if missing:
        return InvalidRequest(f"`{param}` is required.", param=param)
    return InvalidRequest(f"Invalid value for `{param}`: {_plain(reason)}.", param=param)


def _plain(reason: str) -> str:
    reason = reason.replace("`", "").replace(" | null", "").replace(">=", "at least").replace("<=", "at most")
    return reason[:1].lower() + reason[1:200]


def decode_upstream(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """An upstream's JSON; raises ProviderFailed for what is malformed or not of the decoder's type."""
    try:
        if not raw.isascii():
            raw.decode()
        return decoder.decode(raw)
    except _FAULTS:
        raise ProviderFailed("The provider's answer was not understandable.") from None


def upstream_object(raw: bytes) -> dict[str, Any]:
    """An upstream's JSON object; raises ProviderFailed."""
    return decode_upstream(_OBJECT, raw)


_FIELDS: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])
