"""The seam of archive formats: what every kind of `.xyb` can be asked, and the limits that hold for all of them.

Opening an archive checks all of it that can be checked without writing; a hostile one raises InvalidBundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from svc.bundles import metadata
from svc.errors import InvalidBundle, UsageError

ARCHIVE_READ_BYTES = 1 << 20


class ArchiveLimits(msgspec.Struct, frozen=True):
    """What an archive may unpack to: bytes in all, times its own size (beyond `free` bytes), and how many members."""

    max_total_bytes: int = 256 << 30
    max_ratio: float = 100.0
    ratio_exempt_bytes: int = 16 << 20
    max_members: int = 100_000


def limits_from_environ(environ: Mapping[str, str]) -> ArchiveLimits:
    """The limits, with what `SVC_BUNDLE_MAX_BYTES` and `SVC_BUNDLE_MAX_RATIO` say instead. Raises UsageError."""
    total, ratio = environ.get("SVC_BUNDLE_MAX_BYTES"), environ.get("SVC_BUNDLE_MAX_RATIO")
    defaults = ArchiveLimits()
    try:
        limits = ArchiveLimits(
            int(total) if total else defaults.max_total_bytes, float(ratio) if ratio else defaults.max_ratio
        )
    except ValueError:
        limits = ArchiveLimits(0)
    if not (limits.max_total_bytes > 0 and limits.max_ratio >= 1):  # which no NaN is
        raise UsageError("SVC_BUNDLE_MAX_BYTES is a number of bytes, SVC_BUNDLE_MAX_RATIO a number from 1.")
    return limits


class Archive(Protocol):
    """An open, checked archive; use it as a context."""

    kind: str

    @property
    def file_sizes(self) -> Mapping[str, int]:
        """The size of every file, by its path."""
        ...

    def read(self, path: str, limit: int) -> bytes:
        """A small file. Raises InvalidBundle when it is missing, damaged or larger than `limit` bytes."""
        ...

    def verify(self) -> None:
        """Reads every file to its end. Raises InvalidBundle when one is damaged."""
        ...

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        """Writes every file under an empty folder. `trusted`: the whole archive's hash has just been checked."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_limits(sizes: Mapping[str, int], archive_size: int, limits: ArchiveLimits) -> None:
    """Raises InvalidBundle when there is too much of it."""
    total = sum(sizes.values())
    if len(sizes) > limits.max_members:
        raise InvalidBundle(f"The bundle is refused: it has more than {limits.max_members} members.")
    if total > limits.max_total_bytes:
        raise InvalidBundle(
            f"The bundle is refused: it unpacks to {total} bytes, and {limits.max_total_bytes} are allowed."
        )
    if total > limits.ratio_exempt_bytes and total > limits.max_ratio * archive_size:
        raise InvalidBundle(
            f"The bundle is refused: it unpacks to more than {limits.max_ratio:g} times its size, as no model does."
        )


def read_metadata(archive: Archive) -> metadata.BundleMetadata:
    """The bundle's metadata, with its files present. Raises InvalidBundle."""
    if metadata.METADATA_FILE not in archive.file_sizes:
        raise InvalidBundle(f"The bundle has no {metadata.METADATA_FILE} at its top.")
    about = metadata.parse_metadata(archive.read(metadata.METADATA_FILE, metadata.MAX_METADATA_BYTES))
    metadata.check_files(about, archive.file_sizes.keys())
    return about
