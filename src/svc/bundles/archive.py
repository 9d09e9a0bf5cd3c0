"""Define the interface of all `.xyb` archive formats, and the limits that apply to each of them.

Opening an archive performs every check that needs no extraction. A malicious archive raises InvalidBundle.
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
    """Limits of an archive's unpacked content.

    `max_ratio` is unpacked size / archive size, and applies beyond `ratio_exempt_bytes`.
    """

    max_total_bytes: int = 256 << 30
    max_ratio: float = 100.0
    ratio_exempt_bytes: int = 16 << 20
    max_members: int = 100_000


def limits_from_environ(environ: Mapping[str, str]) -> ArchiveLimits:
    """Return the limits with the values of `SVC_BUNDLE_MAX_BYTES` and `SVC_BUNDLE_MAX_RATIO`. Raises UsageError."""
    total, ratio = environ.get("SVC_BUNDLE_MAX_BYTES"), environ.get("SVC_BUNDLE_MAX_RATIO")
    defaults = ArchiveLimits()
    try:
        limits = ArchiveLimits(
            int(total) if total else defaults.max_total_bytes, float(ratio) if ratio else defaults.max_ratio
        )
    except ValueError:
        limits = ArchiveLimits(0)
    if not (limits.max_total_bytes > 0 and limits.max_ratio >= 1):  # false for NaN
        raise UsageError("SVC_BUNDLE_MAX_BYTES must be a number of bytes, SVC_BUNDLE_MAX_RATIO at least 1.")
    return limits


class Archive(Protocol):
    """An open archive that passed all checks. A context manager."""

    kind: str

    @property
    def file_sizes(self) -> Mapping[str, int]:
        """Map each file's path to its size in bytes."""
        ...

    def read(self, path: str, limit: int) -> bytes:
        """Return a file's content. Raises InvalidBundle if it is missing, damaged or larger than `limit` bytes."""
        ...

    def verify(self) -> None:
        """Read every file completely. Raises InvalidBundle if one is damaged."""
        ...

    def unpack(self, folder: Path, *, trusted: bool) -> None:
        """Write every file into an empty folder. `trusted` means that the hash of the archive was just verified."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_limits(sizes: Mapping[str, int], archive_size: int, limits: ArchiveLimits) -> None:
    """Raise InvalidBundle if the content exceeds a limit."""
    total = sum(sizes.values())
    if len(sizes) > limits.max_members:
        raise InvalidBundle(f"The bundle is rejected: it has more than {limits.max_members} members.")
    if total > limits.max_total_bytes:
        raise InvalidBundle(
            f"The bundle is rejected: it unpacks to {total} bytes, more than the limit of {limits.max_total_bytes} "
            "(SVC_BUNDLE_MAX_BYTES)."
        )
    if total > limits.ratio_exempt_bytes and total > limits.max_ratio * archive_size:
        raise InvalidBundle(
            f"The bundle is rejected: it unpacks to more than {limits.max_ratio:g} times its size "
            "(SVC_BUNDLE_MAX_RATIO)."
        )


def read_metadata(archive: Archive) -> metadata.BundleMetadata:
    """Read and check the bundle's metadata, and that its files are present. Raises InvalidBundle."""
    if metadata.METADATA_FILE not in archive.file_sizes:
        raise InvalidBundle(f"The bundle has no {metadata.METADATA_FILE} at its root.")
    bundle_metadata = metadata.parse_metadata(archive.read(metadata.METADATA_FILE, metadata.MAX_METADATA_BYTES))
    metadata.check_files(bundle_metadata, archive.file_sizes.keys())
    return bundle_metadata
