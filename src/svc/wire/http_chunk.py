"""Size lines of the chunked transfer coding (RFC 9112, section 7.1). Data only."""

from __future__ import annotations

from typing import Final

SIZE_LINE_COUNT: Final = 2048
CHUNK_SIZE_LINES: Final = tuple(b"%x\r\n" % size for size in range(SIZE_LINE_COUNT))
"""The line before a chunk, by the chunk's size. Made once, because every chunk of every stream needs one."""
