"""Thinking of upstreams of other dialects, in the messages of an Anthropic client.

Anthropic signs its thinking, and rejects a block with another signature: "Invalid `signature` in `thinking` block".
Clients return all blocks unchanged. So a block of another upstream has a mark as its signature, and an Anthropic
upstream does not get it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.base import EncodedRequest, RequestBody
from svc.dialects.validation import decode_client_fields, encode_upstream_body

UNSIGNED_MARK: Final = "c3ZjLXVuc2lnbmVk"
"""The signature of unsigned thinking: `svc-unsigned` in base64, since signatures are base64."""
_UNSIGNED_MARK_BYTES: Final = UNSIGNED_MARK.encode()
_MESSAGES_DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(list[msgspec.Raw])


def drop_unsigned_thinking(encoded: EncodedRequest, body: RequestBody) -> EncodedRequest:
    """Return a request for an Anthropic upstream without unsigned thinking. All other values keep their bytes."""
    if (body.skeleton or body.raw).find(_UNSIGNED_MARK_BYTES) < 0:
        return encoded
    fields = decode_client_fields(encoded.body)
    messages: list[msgspec.Raw] = _MESSAGES_DECODER.decode(fields["messages"])
    kept = [message for raw in messages if (message := _drop_from_message(raw)) is not None]
    if all(message is raw for message, raw in zip(kept, messages, strict=False)):
        return encoded
    fields["messages"] = kept
    dropped = (*encoded.dropped_fields, "messages[].thinking")
    return EncodedRequest(encode_upstream_body(fields), dropped, encoded.header_lines)


def _drop_from_message(raw: msgspec.Raw) -> msgspec.Raw | dict[str, Any] | None:
    """Return the message without unsigned thinking, or None if nothing is left of it."""
    if bytes(raw).find(_UNSIGNED_MARK_BYTES) < 0:
        return raw
    message: Any = msgspec.json.decode(raw)
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return raw
    kept = [block for block in content if not _is_unsigned_thinking(block)]
    if len(kept) == len(content):
        return raw
    return {**message, "content": kept} if kept else None


def _is_unsigned_thinking(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "thinking" and block.get("signature") == UNSIGNED_MARK
