"""A journal segment in the form that a database stores: batches of entries, and sums. Data only."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import zstandard

SECONDS_PER_HOUR = 3600
MIN_COMPRESSED_BYTES = 8 * 1024
"""Minimum size of a batch's lines for compression. For smaller batches the fixed cost exceeds the gain."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The magic number of a Zstandard frame (RFC 8878, section 3.1.1)."""


OK_STATUS: Final = "ok"
ERROR_STATUSES: Final = ("error", "cut")
"""The values of `status` that count as errors. A client that disconnects is none."""


class SumKey(NamedTuple):
    """The key of a usage sum: the start of an hour or day (Unix seconds), and its key, model, provider and tags."""

    start: int
    key_id: str
    model: str
    provider: str
    tags: str
    """A JSON object with sorted names."""


class StatusSumKey(NamedTuple):
    """The key of a sum of requests with one status, which is not `ok`. `start` is an hour."""

    start: int
    key_id: str
    model: str
    provider: str
    tags: str
    status: str


# begin: field totals, from ledger_fields.toml by `make ledger`
class FieldTotals(msgspec.Struct):
    """The totals of the fields of entries that are summed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


# end: field totals


TOTAL_FIELDS: Final = FieldTotals.__struct_fields__
"""The fields of an entry that are summed, in the order of the table."""
COUNT_FIELDS: Final = ("requests", *TOTAL_FIELDS, "priced", "errors")


class UsageTotals(FieldTotals):
    """The summed usage of a set of requests. Each field is a column of the tables of sums."""

    key_name: str = ""
    requests: int = 0
    priced: int = 0
    """Number of requests whose cost is known."""
    errors: int = 0
    """Number of requests that ended with an error or an interrupted stream."""

    @property
    def unpriced(self) -> int:
        """Number of requests whose cost is not known."""
        return self.requests - self.priced

    def add(self, other: UsageTotals) -> None:
        """Add the usage of other requests, which are newer."""
        self.key_name = other.key_name or self.key_name
        for name in COUNT_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def subtract(self, other: UsageTotals) -> None:
        """Subtract the usage of a part of the requests."""
        for name in COUNT_FIELDS:
            setattr(self, name, max(0, getattr(self, name) - getattr(other, name)))


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

    @property
    def encoded(self) -> bytes | None:
        """Return the lines as UTF-8. Raises ValueError if they are damaged."""
        if self.compressed is not None:
            return _decompress(self.compressed)
        return None if self.uncompressed is None else self.uncompressed.encode()


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

    A batch of one entry is packed, and its id is the request id. A batch of several has its own id, its lines,
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
    status_sums: Mapping[StatusSumKey, UsageTotals] = {}
    """The sums by hour of the requests whose status is not `ok`."""
    entry_count: int
    broken_lines: int = 0
    """Number of lines that were skipped."""
