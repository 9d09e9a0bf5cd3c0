"""Cache the first and last chunks that the streams of one model share, so that they need no parsing. No I/O.

    data: {"id":"c1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":{"role":…
    └────────────────────────── prefix ──────────────────────────┘└───────────────────── suffix ─────────────────────
              └┘└───────────────── middle ──────────────────┘└┘

Most chunks of a stream begin with its prefix: the id and the time. The suffix equals that of an earlier stream, except
for the text. A chunk with the suffix of a parsed and valid chunk is valid too, with its own id and time. All other
chunks are parsed. If the first chunks never repeat, for example with random padding, the cache has no effect.
"""

from __future__ import annotations

from typing import Final

from svc.dialects.fastpath.chunk_template import ChunkTemplate, is_plain_json_text
from svc.wire.chat import FinishReason

MAX_CACHED_CHUNK_BYTES: Final = 2048
"""Maximum size of a cached chunk."""
_CHUNK_START: Final = b'data: {"id":"'
_ID_OFFSET: Final = len(_CHUNK_START)
_CREATED_FIELD: Final = b'"created":'
_PREFIX_FIELDS: Final = (b'"id"', b'"created"')
"""The fields of the prefix. They must occur only there."""
_USAGE_FIELD: Final = b'"usage":'
_QUOTE: Final = b'"'
_BACKSLASH_BYTE: Final = 0x5C
_ZERO_DIGIT: Final = 0x30
_MAX_CREATED_DIGITS: Final = 18


class ChunkTemplateCache:
    """The shared chunks of streams with the same first chunk and one choice. Parsed streams fill the cache."""

    __slots__ = (
        "_first_chunk_suffix",
        "_prefix_middle",
        "choice_index",
        "finish_reason",
        "finish_suffix",
        "model",
        "text_parts",
        "usage_lead",
    )

    def __init__(self, prefix_middle: bytes, first_chunk_suffix: bytes, choice_index: int, model: str) -> None:
        self._prefix_middle = prefix_middle
        self._first_chunk_suffix = first_chunk_suffix
        self.choice_index = choice_index
        """The `index` of the choice."""
        self.model = model
        self.text_parts: tuple[bytes, bytes] | None = None
        """The suffix of a text chunk: the part before the text, and the part after it."""
        self.finish_suffix = b""
        """The suffix of the last chunk of the choice, which has `finish_reason`."""
        self.finish_reason: FinishReason | None = None
        self.usage_lead = b""
        """The suffix of a usage chunk up to the usage. Nothing follows the usage."""

    def match_prefix(self, event: bytes) -> bytes:
        """Return the prefix of a stream's chunks if `event` is a known first chunk, and otherwise empty bytes."""
        end = event.find(_QUOTE, _ID_OFFSET)
        created_start, stop = end + len(self._prefix_middle), len(event) - len(self._first_chunk_suffix)
        if not (
            0 < stop - created_start <= _MAX_CREATED_DIGITS
            and end > _ID_OFFSET
            and event.endswith(self._first_chunk_suffix)
        ):
            return b""
        if (
            not event.startswith(_CHUNK_START)
            or event[end:created_start] != self._prefix_middle
            or not is_plain_json_text(event, _ID_OFFSET, end)
        ):
            return b""
        digits = event[created_start:stop]
        return event[:stop] if digits.isdigit() and (digits[0] != _ZERO_DIGIT or len(digits) == 1) else b""

    def build_text_template(self, prefix: bytes) -> ChunkTemplate | None:
        """Return the template of the stream's text chunks, or None if it is not known."""
        if self.text_parts is None:
            return None
        parts = (prefix + self.text_parts[0], self.text_parts[1])
        return ChunkTemplate(parts, parts)


def parse_chunk_prefix(prefix: bytes) -> tuple[str, int]:
    """Return the id and the time of a prefix."""
    return prefix[_ID_OFFSET : prefix.index(_QUOTE, _ID_OFFSET)].decode(), int(prefix[prefix.rindex(b":") + 1 :])


def learn_first_chunk(
    event: bytes, chunk_id: str, created: int, choice_index: int, model: str
) -> tuple[ChunkTemplateCache, bytes] | None:
    """Return a cache for a first chunk, and the prefix of the chunk. None if the positions are ambiguous."""
    if len(event) > MAX_CACHED_CHUNK_BYTES or not event.startswith(_CHUNK_START) or _BACKSLASH_BYTE in event:
        return None
    if event.count(_PREFIX_FIELDS[0]) != 1 or event.count(_PREFIX_FIELDS[1]) != 1:
        return None
    end = event.index(_QUOTE, _ID_OFFSET)
    created_start = event.find(_CREATED_FIELD) + len(_CREATED_FIELD)
    stop = created_start + len(str(created))
    prefix = event[:stop]
    if event[stop : stop + 1] not in (b",", b"}") or event[created_start:stop] != b"%d" % created or created < 0:
        return None
    cache = ChunkTemplateCache(event[end:created_start], event[stop:], choice_index, model)
    return (
        (cache, prefix)
        if cache.match_prefix(event) == prefix and parse_chunk_prefix(prefix) == (chunk_id, created)
        else None
    )


def strip_chunk_prefix(event: bytes, prefix: bytes) -> bytes:
    """Return the suffix of a chunk. Empty if it may depend on the prefix, or is too long for the cache."""
    if len(event) > MAX_CACHED_CHUNK_BYTES or not event.startswith(prefix) or _BACKSLASH_BYTE in event:
        return b""
    suffix = event[len(prefix) :]
    return b"" if _PREFIX_FIELDS[0] in suffix or _PREFIX_FIELDS[1] in suffix else suffix


def cut_before_usage(suffix: bytes) -> bytes:
    """Return the part of a usage chunk up to the usage. Empty if the position is ambiguous."""
    return suffix[: suffix.index(_USAGE_FIELD) + len(_USAGE_FIELD)] if suffix.count(_USAGE_FIELD) == 1 else b""
