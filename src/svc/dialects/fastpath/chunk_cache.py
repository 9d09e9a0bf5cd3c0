"""What the streams of a provider's model have in common, so that the chunks around the text need no parsing either.

    data: {"id":"c1","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"delta":{"role":…
    └────────────────────────── stamp ───────────────────────────┘└────────────────────── rest ──────────────────────
              └┘└───────────────── middle ──────────────────┘└┘

The chunks of a stream mostly begin with its stamp, and what follows it is, but for the text, what it was in the stream
before. A chunk whose rest equals that of one that was parsed and found right is as right, with an id and a time of its
own: nothing else is taken for known. Where openings never repeat, as with random padding, nothing ever is.
"""

from __future__ import annotations

from typing import Final

from svc.dialects.fastpath.chunk_template import ChunkTemplate, is_plain_json_text
from svc.wire.chat import FinishReason

MAX_CACHED_CHUNK_BYTES: Final = 2048
"""Bytes of a chunk that is kept."""
_CHUNK_START: Final = b'data: {"id":"'
_ID_OFFSET: Final = len(_CHUNK_START)
_CREATED_FIELD: Final = b'"created":'
_PREFIX_FIELDS: Final = (b'"id"', b'"created"')
"""What a stamp says, and nothing but it."""
_USAGE_FIELD: Final = b'"usage":'
_QUOTE: Final = b'"'
_BACKSLASH_BYTE: Final = 0x5C
_ZERO_DIGIT: Final = 0x30
_MAX_CREATED_DIGITS: Final = 18


class ChunkTemplateCache:
    """Of streams whose opening is this one, of one choice; filled by those of them that are parsed."""

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
        """Of the choice."""
        self.model = model
        self.text_parts: tuple[bytes, bytes] | None = None
        """The rest of a chunk of text, up to the text and from there."""
        self.finish_suffix = b""
        """The rest of the chunk that has ended the choice, for `reason`."""
        self.finish_reason: FinishReason | None = None
        self.usage_lead = b""
        """The rest of a chunk of usage, up to the usage, which nothing follows."""

    def match_prefix(self, event: bytes) -> bytes:
        """What a stream's chunks begin with, if its first one is this `event`; empty for a first one not known."""
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
        """Of the stream's chunks of text."""
        if self.text_parts is None:
            return None
        parts = (prefix + self.text_parts[0], self.text_parts[1])
        return ChunkTemplate(parts, parts)


def parse_chunk_prefix(prefix: bytes) -> tuple[str, int]:
    """The id and the time that a stamp says."""
    return prefix[_ID_OFFSET : prefix.index(_QUOTE, _ID_OFFSET)].decode(), int(prefix[prefix.rindex(b":") + 1 :])


def learn_first_chunk(
    event: bytes, chunk_id: str, created: int, choice_index: int, model: str
) -> tuple[ChunkTemplateCache, bytes] | None:
    """By the first chunk of a stream, and its stamp; None where one cannot be sure of the places."""
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
    """What follows the stamp; empty where it may depend on that, or is too long to be kept."""
    if len(event) > MAX_CACHED_CHUNK_BYTES or not event.startswith(prefix) or _BACKSLASH_BYTE in event:
        return b""
    suffix = event[len(prefix) :]
    return b"" if _PREFIX_FIELDS[0] in suffix or _PREFIX_FIELDS[1] in suffix else suffix


def cut_before_usage(suffix: bytes) -> bytes:
    """Of a chunk of usage, all up to that; empty where one cannot be sure of the place."""
    return suffix[: suffix.index(_USAGE_FIELD) + len(_USAGE_FIELD)] if suffix.count(_USAGE_FIELD) == 1 else b""
