"""What a stretch of a journal comes to, as a database takes it: batches of entries, and sums. Data only."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import zstandard

SECONDS_PER_HOUR = 3600
MIN_COMPRESSED_BYTES = 8 * 1024
"""Bytes of a batch's lines from which on they are compressed; for fewer the beginning costs too much."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""What its frames begin with (RFC 8878, section 3.1.1)."""


class SumKey(NamedTuple):
    """Where requests are summed up: an hour or a day (Unix seconds), and who spent in it, on what."""

    start: int
    key_id: str
    model: str
    provider: str
    tags: str
    """JSON, sorted."""


class UsageTotals(msgspec.Struct):
    """What some requests come to."""

    key_name: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    priced: int = 0
    """Requests whose cost is known."""

    def add(self, key_name: str, requests: int, prompt: int, completion: int, cost: float, priced: int) -> None:
        self.key_name = key_name or self.key_name
        self.requests += requests
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost_usd += cost
        self.priced += priced


class BatchLines(NamedTuple):
    """A batch's lines as they lie in the database: as they are, or compressed. Each ends with a newline."""

    uncompressed: str | None
    compressed: bytes | None = None

    @classmethod
    def from_bytes(cls, lines: bytes) -> BatchLines:
        """Compressed, if that is worth its time, which the interpreter is not held for."""
        if len(lines) < MIN_COMPRESSED_BYTES:
            return cls(lines.decode())
        return cls(None, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(lines))

    @property
    def text(self) -> str | None:
        """Raises ValueError where it is damaged."""
        return self.uncompressed if self.compressed is None else _decompress(self.compressed).decode()


def _decompress(data: bytes) -> bytes:
    """Of zstandard, or of zlib, which was used before. Raises ValueError."""
    try:
        if data.startswith(_ZSTD_MAGIC):
            return zstandard.ZstdDecompressor().decompress(data)
        return zlib.decompress(data)
    except (zlib.error, zstandard.ZstdError, MemoryError) as error:  # the size that it says may be any
        raise ValueError(str(error) or "its size cannot be true") from error


class EntryBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one key and one hour (UTC) that were taken in together: a row of the database.

    A batch of one has its request's id and is packed. One of several has an id of its own, its lines, and the range of
    its requests' numbers.
    """

    id: str
    key_id: str
    first_ms: int
    """Milliseconds since 1970 of its oldest entry."""
    last_ms: int
    """Of its newest."""
    count: int = 1
    packed_entry: str = ""
    id_prefix: str | None = None
    """Of its request ids: which process made them."""
    min_number: int | None = None
    max_number: int | None = None
    lines: BatchLines | None = None


class JournalSegment(msgspec.Struct, frozen=True, kw_only=True):
    """What a stretch of a journal holds."""

    batches: list[EntryBatch]
    hourly_sums: Mapping[SumKey, UsageTotals]
    entry_count: int
    broken_lines: int = 0
    """Lines that are left out."""
