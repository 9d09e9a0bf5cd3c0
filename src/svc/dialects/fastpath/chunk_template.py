"""Match chunks that differ from a parsed chunk only in their text, so that they need no parsing. On the hot path.

    data: {"id":"c1",…,"choices":[{"index":0,"delta":{"content":" Hello"},"finish_reason":null}]}
    └─────────────────────── prefix ────────────────────────┘└─text─┘└────────── suffix ─────────┘

A template is learned from a chunk that was parsed and is valid. Bytes with the same prefix and suffix, and the content
of a JSON string between them, are a valid chunk too. All other bytes are parsed.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LEARNED_TEMPLATES: Final = 64
"""Maximum templates per stream. If chunks of several kinds alternate, learning costs more than it saves."""

MAX_BYTEWISE_SCAN_BYTES: Final = 48
"""Up to this length, a loop over the bytes is faster than a regular expression."""

_JSON_TEXT_PATTERN: Final = rb'[^"\\\x00-\x1f]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f]*+)*+'
_match_plain_text: Final = re.compile(rb"[ !#-\[\]-\x7e]*+").fullmatch
_CHUNK_RUN: Final = re.compile(rb"(?:\x00" + _JSON_TEXT_PATTERN + rb"\x01)+")
_PADDED_CHUNK_RUN: Final = re.compile(rb"(?:\x00" + _JSON_TEXT_PATTERN + rb"\x01[A-Za-z0-9]*\x02)+")
_RANDOM_PADDING: Final = re.compile(rb'("(?:obfuscation|p)":\s?")[A-Za-z0-9]*("\}\n\n)\Z')
_PADDING_END: Final = b'"}\n\n'
_ESCAPE_BYTE: Final = 0x5C
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

    __slots__ = ("_client_parts", "_padding_end", "_run_pattern", "is_identity", "is_plain", "prefix", "suffix")

    def __init__(self, upstream_parts: tuple[bytes, bytes], client_parts: tuple[bytes, bytes]) -> None:
        self.prefix, suffix = upstream_parts
        self.is_identity = upstream_parts == client_parts
        """True if the chunk is sent as it was received."""
        self._run_pattern = _CHUNK_RUN
        self._padding_end = b""
        padding = _RANDOM_PADDING.search(suffix) if self.is_identity and suffix.endswith(_PADDING_END) else None
        if padding:  # vendors pad chunks randomly, so that their length reveals nothing about the text
            suffix, self._padding_end = suffix[: padding.end(1)], padding.group(2)
            self._run_pattern = _PADDED_CHUNK_RUN
        self.suffix = suffix
        self._client_parts = client_parts
        self.is_plain = self.is_identity and not self._padding_end

    def apply(self, block: bytes) -> bytes | None:
        """Return the block for the client if it consists of matching chunks only, or else None."""
        if not block.startswith(self.prefix):
            return None
        stop = len(block) - len(self.suffix)
        if self.is_plain and block.endswith(self.suffix) and is_plain_json_text(block, len(self.prefix), stop):
            return block  # one chunk: the common case
        condensed = block.replace(self.prefix, b"\x00").replace(self.suffix, b"\x01")
        if self._padding_end:
            condensed = condensed.replace(self._padding_end, b"\x02")
            if 2 in block:
                return None
        if self._run_pattern.fullmatch(condensed) is None or 0 in block or 1 in block:
            return None
        if not block.isascii() and not _is_utf8(block):
            return None
        return (
            block
            if self.is_identity
            else condensed.replace(b"\x00", self._client_parts[0]).replace(b"\x01", self._client_parts[1])
        )


def is_plain_json_text(data: bytes, start: int, stop: int) -> bool:
    """Return whether the range is JSON string content in printable ASCII without escapes. False if `start > stop`."""
    if not 0 <= stop - start <= MAX_BYTEWISE_SCAN_BYTES:
        return start <= stop and _match_plain_text(data, start, stop) is not None
    for index in range(start, stop):
        byte = data[index]
        if byte < 0x20 or byte == 0x22 or byte == 0x5C or byte > 0x7E:
            return False
    return True


def learn_template(upstream_event: bytes, client_event: bytes, field: bytes) -> ChunkTemplate | None:
    """Return the template of a chunk whose only text is in `field`, or None if its position is ambiguous."""
    pattern = _TEXT_FIELD_STARTS[field]
    upstream_parts = _split_around_text(upstream_event, pattern, field)
    client_parts = (
        upstream_parts if client_event is upstream_event else _split_around_text(client_event, pattern, field)
    )
    return ChunkTemplate(upstream_parts, client_parts) if upstream_parts and client_parts else None


def _split_around_text(event: bytes, pattern: re.Pattern[bytes], field: bytes) -> tuple[bytes, bytes] | None:
    if _ESCAPE_BYTE in event or event.count(b'"' + field + b'"') != 1:
        return None
    match = pattern.search(event)
    if match is None:
        return None
    end = event.index(b'"', match.end())
    return event[: match.end()], event[end:] + b"\n\n"


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
