"""A journal segment in the form that a database stores: batches of entries, and sums. Data only."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import zstandard

SECONDS_PER_HOUR = 3600
MIN_COMPRESSED_BYTES = 8 * 1024
"""Minimum size of a batch's lines for compression. For smaller batches the fixed cost exceeds the gain."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The magic number of a Zstandard frame (RFC 8878, section 3.1.1)."""


class SumKey(NamedTuple):
    """The key of a usage sum: the start of an hour or day (Unix seconds), and its key, model, provider and tags."""

    start: int
    key_id: str
    model: str
    provider: str
    tags: str
    """A JSON object with sorted names."""


class UsageTotals(msgspec.Struct):
    """The summed usage of a set of requests."""

    key_name: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    priced: int = 0
    """Number of requests whose cost is known."""

    def add(self, key_name: str, requests: int, prompt: int, completion: int, cost: float, priced: int) -> None:
        self.key_name = key_name or self.key_name
        self.requests += requests
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost_usd += cost
        self.priced += priced


class BatchLines(NamedTuple):
    """A batch's lines as the database stores them: plain or compressed. Each line ends with a newline."""

    uncompressed: str | None
    compressed: bytes | None = None

    @classmethod
    def from_bytes(cls, lines: bytes) -> BatchLines:
        """Compress the lines if they are long enough. Compression releases the GIL."""
        if len(lines) < MIN_COMPRESSED_BYTES:
            return cls(lines.decode())
        return cls(None, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(lines))

    @property
    def text(self) -> str | None:
        """Return the lines as text. Raises ValueError if they are damaged."""
        return self.uncompressed if self.compressed is None else _decompress(self.compressed).decode()


def _decompress(data: bytes) -> bytes:
    """Decompress Zstandard, or zlib, which older versions wrote. Raises ValueError."""
    try:
        if data.startswith(_ZSTD_MAGIC):
            return zstandard.ZstdDecompressor().decompress(data)
        return zlib.decompress(data)
    except (
        zlib.error,
        zstandard.ZstdError,
        MemoryError,
    ) as error:  # MemoryError: the size in a damaged frame header can be any number
        raise ValueError(str(error) or "its size cannot be true") from error


class EntryBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one key and hour (UTC) that were ingested together: one row of the database.

    A batch of one entry is packed, and its id is the request id. A batch of several has an id of its own, its lines,
    and the range of its requests' numbers.
    """

    id: str
    key_id: str
    first_ms: int
    """Time of the oldest entry, in milliseconds since 1970."""
    last_ms: int
    """Time of the newest entry, in milliseconds since 1970."""
    count: int = 1
    packed_entry: str = ""
    id_prefix: str | None = None
    """The common prefix of the request ids, which identifies the process that generated them."""
    min_number: int | None = None
    max_number: int | None = None
    lines: BatchLines | None = None


class JournalSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The entries and sums of a contiguous range of a journal."""

    batches: list[EntryBatch]
    hourly_sums: Mapping[SumKey, UsageTotals]
    entry_count: int
    broken_lines: int = 0
    """Number of lines that were skipped."""
