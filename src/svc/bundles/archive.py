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

BLOCK = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """What an archive may unpack to: bytes in all, times its own size (beyond `free` bytes), and how many members."""

    total: int = 256 << 30
    ratio: float = 100.0
    free: int = 16 << 20
    members: int = 100_000


def limits_of(environ: Mapping[str, str]) -> Limits:
    """The limits, with what `SVC_BUNDLE_MAX_BYTES` and `SVC_BUNDLE_MAX_RATIO` say instead. Raises UsageError."""
    total, ratio = environ.get("SVC_BUNDLE_MAX_BYTES"), environ.get("SVC_BUNDLE_MAX_RATIO")
    usual = Limits()
    try:
        found = Limits(int(total) if total else usual.total, float(ratio) if ratio else usual.ratio)
    except ValueError:
        found = Limits(0)
    if not (found.total > 0 and found.ratio >= 1):  # which no NaN is
        raise UsageError("SVC_BUNDLE_MAX_BYTES is a number of bytes, SVC_BUNDLE_MAX_RATIO a number from 1.")
    return found


class Archive(Protocol):
    """An open, checked archive; use it as a context."""

    kind: str

    @property
    def files(self) -> Mapping[str, int]:
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


def check_totals(sizes: Mapping[str, int], archive_size: int, limits: Limits) -> None:
    """Raises InvalidBundle when there is too much of it."""
    total = sum(sizes.values())
    if len(sizes) > limits.members:
        raise InvalidBundle(f"The bundle is refused: it has more than {limits.members} members.")
    if total > limits.total:
        raise InvalidBundle(f"The bundle is refused: it unpacks to {total} bytes, and {limits.total} are allowed.")
    if total > limits.free and total > limits.ratio * archive_size:
        raise InvalidBundle(
            f"The bundle is refused: it unpacks to more than {limits.ratio:g} times its size, as no model does."
        )


def metadata_of(archive: Archive) -> metadata.Metadata:
    """The bundle's metadata, with its files present. Raises InvalidBundle."""
    if metadata.FILE not in archive.files:
        raise InvalidBundle(f"The bundle has no {metadata.FILE} at its top.")
    about = metadata.parse(archive.read(metadata.FILE, metadata.MAX_BYTES))
    metadata.check_files(about, archive.files.keys())
    return about
