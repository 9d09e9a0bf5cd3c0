"""An upstream's thinking as the opaque `encrypted_content` of a reasoning item, and back.

The string names the backend that made the block. Another backend would reject its signature, so it is left out there.
It is encoded, not encrypted: the same client could read the block through any other endpoint.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from svc.wire.chat import RedactedThinkingPart, ThinkingPart

_PREFIX: Final = "svc1."
MAX_ENCODED_CHARS: Final = 4 * 1024 * 1024


class _Block(msgspec.Struct, omit_defaults=True):
    origin: str
    text: str = ""
    signature: str | None = None
    data: str | None = None
    """The content of a redacted block."""


_BLOCK_DECODER: Final = msgspec.json.Decoder(_Block)


def encode_thinking(part: ThinkingPart | RedactedThinkingPart, origin: str) -> str:
    """Return the opaque string for a block of the backend `origin`."""
    if isinstance(part, RedactedThinkingPart):
        block = _Block(origin, data=part.data)
    else:
        block = _Block(origin, part.text, part.signature)
    return _PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(block)).decode("ascii")


def has_encoded_thinking(body: bytes) -> bool:
    """Return whether a JSON body can have a string of `encode_thinking`."""
    return _PREFIX.encode() in body


def without_encoded_thinking(items: list[Any]) -> list[Any]:
    """Return input items without the reasoning that `encode_thinking` encoded, which only its backend understands."""
    return [item for item in items if not _is_encoded_thinking(item)]


def _is_encoded_thinking(item: Any) -> bool:
    encoded = item.get("encrypted_content") if isinstance(item, dict) and item.get("type") == "reasoning" else None
    return isinstance(encoded, str) and encoded.startswith(_PREFIX)


def decode_thinking(encoded: str) -> ThinkingPart | RedactedThinkingPart | None:
    """Return the block of an opaque string, with its origin. None for a string of another gateway or provider."""
    if not encoded.startswith(_PREFIX) or len(encoded) > MAX_ENCODED_CHARS:
        return None
    try:
        block = _BLOCK_DECODER.decode(base64.urlsafe_b64decode(encoded[len(_PREFIX) :].encode("ascii")))
    except (binascii.Error, UnicodeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    if block.data is not None:
        return RedactedThinkingPart(block.data, origin=block.origin)
    return ThinkingPart(block.text, block.signature, origin=block.origin)
