"""Converts text chunks of a provider for the client without parsing them, by a template. No I/O. On the hot path.

    e3 CRLF data: {"id":"c1",…,"delta":{"content":" Hello"},"finish_reason":null}]} LF LF CRLF
    └size─┘ └───────────────── prefix ───────────────┘└text┘└────────── suffix ──────────────┘

Chunks for a client of the same dialect stay as they are. Those for another dialect get its prefix and suffix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from svc.dialects.fastpath.chunk_template import ChunkTemplate
from svc.dialects.text_weight import ASCII_CHARS_PER_TOKEN
from svc.wire.http_chunk import CHUNK_SIZE_LINES, SIZE_LINE_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable

_CRLF: Final = b"\r\n"
_SIZES_BY_LINE: Final = {line: size for size, line in enumerate(CHUNK_SIZE_LINES) if size}
_MAX_SIZE_LINE_BYTES: Final = max(map(len, _SIZES_BY_LINE))
_LINE_FEED: Final = 10
_TOKENS_BY_TEXT_BYTES: Final = tuple(
    max(1, int(length / ASCII_CHARS_PER_TOKEN)) if length else 0 for length in range(SIZE_LINE_COUNT)
)
"""Estimated tokens of a text, indexed by its bytes: the rule of `token_estimate.estimate_completion_tokens`."""


class ChunkConverter(Protocol):
    """Converts the framed chunks (RFC 9112, section 7.1) of one stream that match a template."""

    @property
    def tokens(self) -> int:
        """Estimated tokens of the converted text."""

    @property
    def converted_bytes(self) -> int:
        """The size of the provider's chunks that the last call of `convert` converted."""

    def convert(self, data: bytes, /) -> bytes:
        """Convert the matching chunks at the start of `data`. Return the client's chunks.

        The result is `data` itself if all of it stays as it is. A read is nearly always one chunk. It has several if
        the loop is late, and parsing them would delay it further.
        """


class PythonChunkConverter:
    """The converter where the C module is not compiled."""

    def __init__(self, template: ChunkTemplate) -> None:
        self._template = template
        self.tokens = 0
        self.converted_bytes = 0

    def convert(self, data: bytes) -> bytes:
        template = self._template
        converted: list[bytes] = []
        offset = 0
        while (size := _chunk_size_at(data, offset)) > 0:
            chunk_start = offset + len(CHUNK_SIZE_LINES[size])
            chunk_end = chunk_start + size
            text_end = template.find_text_end(data, chunk_start)
            if (
                text_end < 0
                or template.find_chunk_end(data, text_end) != chunk_end
                or data[chunk_end : chunk_end + len(_CRLF)] != _CRLF
            ):
                break
            text_start = chunk_start + len(template.prefix)
            if not template.is_identity:
                client_size = len(template.client_prefix) + text_end - text_start + len(template.client_suffix)
                if client_size >= SIZE_LINE_COUNT:
                    break
                converted += (CHUNK_SIZE_LINES[client_size], template.client_prefix, data[text_start:text_end])
                converted += (template.client_suffix, _CRLF)
            self.tokens += _TOKENS_BY_TEXT_BYTES[text_end - text_start]
            offset = chunk_end + len(_CRLF)
        self.converted_bytes = offset
        if not template.is_identity:
            return b"".join(converted)
        return data if offset == len(data) else data[:offset]


def _chunk_size_at(data: bytes, offset: int) -> int:
    """Return the size of the chunk at `offset`, or 0 if it is incomplete or its size line is not canonical."""
    line_end = data.find(_LINE_FEED, offset, offset + _MAX_SIZE_LINE_BYTES)
    size = _SIZES_BY_LINE.get(data[offset : line_end + 1], 0) if line_end > offset else 0
    return size if line_end + 1 + size + len(_CRLF) <= len(data) else 0


def _load() -> Callable[..., ChunkConverter] | None:
    """Return the class of the C module."""
    try:
        from svc.gateway.upstream import _chunk_converter as module  # noqa: PLC0415 absent if it runs from source
    except ImportError:
        return None
    return module.ChunkConverter


_COMPILED_CONVERTER: Final = _load()


def create_converter(template: ChunkTemplate) -> ChunkConverter:
    """Return the converter of a template."""
    if _COMPILED_CONVERTER is None:
        return PythonChunkConverter(template)
    client_parts = (b"", b"") if template.is_identity else (template.client_prefix, template.client_suffix)
    return _COMPILED_CONVERTER(
        template.prefix, template.suffix, template.padding_end, *client_parts, template.is_identity
    )
