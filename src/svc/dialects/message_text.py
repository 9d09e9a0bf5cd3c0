"""Checks that values of a message are texts, without decoding them. Most bytes of a body are text.

`msgspec.Raw` is a value as its JSON bytes. msgspec has checked the syntax of these bytes, but not their UTF-8.
"""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.json_scan import is_string
from svc.dialects.message_schema import MessagePart, UndecodedPart
from svc.dialects.validation import decode_client_value

TEXT_PART_TYPES: Final = ("text", "refusal", "tool_use", "thinking", "redacted_thinking")
"""Types of parts without images, documents and audio."""
_NULL_VALUE: Final = msgspec.Raw(b"null")
_UNDECODED_PARTS_DECODER: Final = msgspec.json.Decoder(list[UndecodedPart])
_CONTENT_DECODER: Final = msgspec.json.Decoder(str | list[MessagePart])


def is_null(value: msgspec.Raw) -> bool:
    """Return whether a value is null or absent."""
    return value == _NULL_VALUE


def check_content(value: msgspec.Raw, path: str) -> bool:
    """Check that a client's value is a string or a list of parts, each with `type` and an optional string `text`.

    Return whether it is only text. Raises InvalidRequest with the field. `path` is the path of the value in the body.
    """
    if is_string(value):
        return True
    parts = _decode_parts(value)
    if parts is None:
        decode_client_value(_CONTENT_DECODER, value, path)  # for the error
        return False
    return all(part.type in TEXT_PART_TYPES or _is_text_result(part) for part in parts)


def _is_text_result(part: UndecodedPart) -> bool:
    """Return whether a part is the result of a tool in text. The dialect checks other contents."""
    if part.type != "tool_result":
        return False
    if is_string(part.content) or is_null(part.content):
        return True
    inner = _decode_parts(part.content)
    return inner is not None and all(each.type == "text" for each in inner)


def _decode_parts(value: msgspec.Raw) -> list[UndecodedPart] | None:
    """Return the parts of a content, or None if they are invalid."""
    try:
        parts = _UNDECODED_PARTS_DECODER.decode(value)
    except msgspec.ValidationError:
        return None
    return parts if all(is_string(part.text) or is_null(part.text) for part in parts) else None
