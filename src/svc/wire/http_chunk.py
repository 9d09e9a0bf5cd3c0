"""Size lines of the chunked transfer coding (RFC 9112, section 7.1). Data only."""

from __future__ import annotations

from typing import Final

SIZE_LINE_COUNT: Final = 2048
CHUNK_SIZE_LINES: Final = tuple(b"%x\r\n" % size for size in range(SIZE_LINE_COUNT))
"""The size line by chunk size. Precomputed, because every chunk of a stream needs one."""
