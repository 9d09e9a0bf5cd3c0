"""Match chunks that differ from a parsed chunk only in their text, so that they need no parsing. On the hot path.

    data: {"id":"c1",…,"choices":[{"index":0,"delta":{"content":" Hello"},"finish_reason":null}],"obfuscation":"x8Kq"}
    └─────────────────────── prefix ────────────────────────┘└─text─┘└─────────── suffix ───────────────────┘└padding┘

A template is learned from a chunk that was parsed and is valid. Bytes with the same prefix and suffix, and the content
of a JSON string between them, are a valid chunk too. All other bytes are parsed. The padding is optional.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from svc.dialects.json_scan import is_utf8

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_LEARNED_TEMPLATES: Final = 64
"""Maximum templates per stream. If chunks of several kinds alternate, learning costs more than it saves."""

MAX_BYTEWISE_SCAN_BYTES: Final = 128
"""Up to this length of the text, a loop over the bytes is faster than a regular expression."""

_TEXT_AND_QUOTE: Final = re.compile(
    rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb'|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})[^"\\\x00-\x1f]*+)*+"'
)
"""The content of a JSON string and its closing quote (RFC 8259, section 7). Unpaired surrogates do not match."""
_RANDOM_PADDING: Final = re.compile(rb'("(?:obfuscation|p)":\s?")[A-Za-z0-9]*("\}\n\n)\Z')
"""Padding that hides the length of the text.

OpenAI: https://platform.openai.com/docs/api-reference/chat/create (stream_options.include_obfuscation).
Cloudflare: https://blog.cloudflare.com/ai-side-channel-attack-mitigated (`p`).
"""
_PADDING_END: Final = b'"}\n\n'
_TEXT_END_CODE: Final = 0x22
_TEXT_ESCAPE_CODE: Final = 0x5C
_TEXT_FIELD_NAMES: Final = (
    b"content",
    b"reasoning_content",
    b"arguments",
    b"input",
    b"text",
    b"thinking",
    b"partial_json",
)
_TEXT_FIELD_STARTS: Final = {name: re.compile(rb'"' + name + rb'"\s*:\s*"') for name in _TEXT_FIELD_NAMES}


class ChunkTemplate:
    """The prefix and suffix of a chunk, as received from the upstream and as sent to the client."""

    __slots__ = ("client_prefix", "client_suffix", "is_identity", "padding_end", "prefix", "suffix")

    def __init__(self, upstream_parts: tuple[bytes, bytes], client_parts: tuple[bytes, bytes]) -> None:
        self.prefix, suffix = upstream_parts
        self.is_identity = upstream_parts == client_parts
        """True if the chunk is sent as it was received."""
        self.padding_end = b""
        """The end of a chunk with padding."""
        padding = _RANDOM_PADDING.search(suffix) if self.is_identity and suffix.endswith(_PADDING_END) else None
        if padding:
            suffix, self.padding_end = suffix[: padding.end(1)], padding.group(2)
        self.suffix = suffix
        self.client_prefix, self.client_suffix = client_parts

    def find_text_end(self, data: bytes, start: int) -> int:
        """Return the end of the text of a matching chunk that begins at `start`, or -1. See `find_chunk_end`."""
        text_start = start + len(self.prefix)
        if data[start:text_start] != self.prefix:
            return -1
        index: i64 = text_start
        max_end: i64 = len(data) - len(self.suffix)
        if max_end - index > MAX_BYTEWISE_SCAN_BYTES:
            max_end = index + MAX_BYTEWISE_SCAN_BYTES
        bits: i64 = 0
        while index <= max_end:
            byte: i64 = data[index]
            if byte == _TEXT_END_CODE:
                if bits >= 0x80 and not is_utf8(data[text_start:index]):
                    return -1
                return index if index > text_start or self.is_identity else -1
            if byte == _TEXT_ESCAPE_CODE:
                if index == max_end or not _is_short_escape(data[index + 1]):
                    break
                index += 1
            elif byte < 0x20:
                break
            bits |= byte
            index += 1
        # A long text, or one with other escapes. These reach a client of another dialect as they are.
        found = _TEXT_AND_QUOTE.match(data, text_start)
        text_end = found.end() - 1 if found is not None else -1
        if text_end < 0 or (text_end == text_start and not self.is_identity):
            return -1
        text = data[text_start:text_end]  # a read can have thousands of chunks
        return text_end if is_utf8(text) else -1

    def find_chunk_end(self, data: bytes, text_end: int) -> int:
        """Return the end of the chunk whose text ends at `text_end`, or -1 if the suffix differs."""
        end = text_end + len(self.suffix)
        if data[text_end:end] != self.suffix:
            return -1
        if not self.padding_end:
            return end
        index: i64 = end
        size: i64 = len(data)
        while index < size and _is_alphanumeric(data[index]):
            index += 1
        end = index
        padding_end = end + len(self.padding_end)
        return padding_end if data[end:padding_end] == self.padding_end else -1

    def matches(self, block: bytes) -> bool:
        """Return whether the block consists of matching chunks only."""
        start = 0
        while start < len(block):
            text_end = self.find_text_end(block, start)
            start = self.find_chunk_end(block, text_end) if text_end >= 0 else -1
            if start < 0:
                return False
        return True

    def apply(self, block: bytes) -> bytes | None:
        """Return the block for the client if it consists of matching chunks only, or else None."""
        if self.is_identity:
            return block if self.matches(block) else None
        parts: list[bytes] = []
        start = 0
        while start < len(block):
            text_end = self.find_text_end(block, start)
            end = self.find_chunk_end(block, text_end) if text_end >= 0 else -1
            if end < 0:
                return None
            parts += self.client_prefix, block[start + len(self.prefix) : text_end], self.client_suffix
            start = end
        return b"".join(parts)


def learn_template(
    upstream_event: bytes, client_event: bytes, field: bytes, client_field: bytes = b""
) -> ChunkTemplate | None:
    """Return the template of a chunk whose only text is `field`. None if the position of the text is ambiguous.

    `client_field` is its name in the client's chunk, if that differs.
    """
    upstream_parts = _split_around_text(upstream_event, field)
    client_parts = (
        upstream_parts if client_event is upstream_event else _split_around_text(client_event, client_field or field)
    )
    return ChunkTemplate(upstream_parts, client_parts) if upstream_parts and client_parts else None


def _split_around_text(event: bytes, field: bytes) -> tuple[bytes, bytes] | None:
    """Return what is before and after the text. A name in a text has escaped quotes, so that it is not counted."""
    if event.count(b'"' + field + b'"') != 1:
        return None
    match = _TEXT_FIELD_STARTS[field].search(event)
    text_and_quote = _TEXT_AND_QUOTE.match(event, match.end()) if match is not None else None
    if match is None or text_and_quote is None:
        return None
    return event[: match.end()], event[text_and_quote.end() - 1 :] + b"\n\n"


def _is_short_escape(byte: i64) -> bool:
    """Return whether this byte after a backslash is a complete escape (RFC 8259, section 7)."""
    return byte in (0x6E, 0x22, 0x5C, 0x74, 0x72, 0x62, 0x66, 0x2F)


def _is_alphanumeric(byte: i64) -> bool:
    return 0x30 <= byte <= 0x39 or 0x41 <= byte <= 0x5A or 0x61 <= byte <= 0x7A
