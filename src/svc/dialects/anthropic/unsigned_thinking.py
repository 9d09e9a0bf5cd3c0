"""Thinking of upstreams of other dialects, in the messages of an Anthropic client.

Anthropic signs its thinking, and rejects a block with another signature: "Invalid `signature` in `thinking` block".
Clients return all blocks unchanged. So the gateway marks the blocks of other upstreams in the field `signature`, and
omits marked blocks in requests to an Anthropic upstream.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.base import EncodedRequest, RequestBody
from svc.dialects.validation import decode_client_fields, encode_upstream_body

UNSIGNED_MARK: Final = "c3ZjLXVuc2lnbmVk"
"""The signature of unsigned thinking: `svc-unsigned` in base64, since signatures are base64."""
_UNSIGNED_MARK_BYTES: Final = UNSIGNED_MARK.encode()
_THINKING_TYPE: Final = msgspec.Raw(b'"thinking"')
_MARK_SIGNATURE: Final = msgspec.Raw(b'"' + _UNSIGNED_MARK_BYTES + b'"')
_VALUES_DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(list[msgspec.Raw])


def drop_unsigned_thinking(encoded: EncodedRequest, body: RequestBody) -> EncodedRequest:
    """Return a request for an Anthropic upstream without unsigned thinking. All other values keep their bytes."""
    if (body.skeleton or body.raw).find(_UNSIGNED_MARK_BYTES) < 0:
        return encoded
    fields = decode_client_fields(encoded.body)
    messages: list[msgspec.Raw] = _VALUES_DECODER.decode(fields["messages"])
    kept = [message for raw in messages if (message := _drop_from_message(raw)) is not None]
    if len(kept) == len(messages) and all(message is raw for message, raw in zip(kept, messages, strict=True)):
        return encoded
    fields["messages"] = kept
    dropped = (*encoded.dropped_fields, "messages[].thinking")
    return EncodedRequest(encode_upstream_body(fields), dropped, encoded.header_lines)


def _drop_from_message(raw: msgspec.Raw) -> msgspec.Raw | dict[str, Any] | None:
    """Return the message without unsigned thinking, or None if nothing is left of it."""
    value = bytes(raw)
    if value.find(_UNSIGNED_MARK_BYTES) < 0:
        return raw
    message = decode_client_fields(value)
    content = message.get("content")
    if content is None or not bytes(content).startswith(b"["):
        return raw
    blocks: list[msgspec.Raw] = _VALUES_DECODER.decode(content)
    kept = [block for block in blocks if not _is_unsigned_thinking(block)]
    if len(kept) == len(blocks):
        return raw
    return {**message, "content": kept} if kept else None


def _is_unsigned_thinking(raw: msgspec.Raw) -> bool:
    value = bytes(raw)
    if value.find(_UNSIGNED_MARK_BYTES) < 0 or not value.startswith(b"{"):
        return False
    block = decode_client_fields(value)
    return block.get("type") == _THINKING_TYPE and block.get("signature") == _MARK_SIGNATURE
