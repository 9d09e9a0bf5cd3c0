"""Open a bundle of either format, detected by its first bytes, and extract it atomically."""

from __future__ import annotations

import shutil
from pathlib import Path

from svc.bundles import tar_archive, zip_archive
from svc.bundles.archive import Archive, ArchiveLimits
from svc.bundles.disk_space import move_on_disk, translate_disk_full_errors
from svc.errors import InsufficientStorage, InvalidBundle

EXTRACT_RESERVE_BYTES = 16 << 20
"""Bytes that must stay free on the disk."""


def has_archive_magic(first_bytes: bytes) -> bool:
    """Return whether the first four or more bytes are those of a bundle."""
    return first_bytes.startswith((*zip_archive.ZIP_MAGIC, tar_archive.ZSTD_MAGIC))


def open_archive(path: Path, limits: ArchiveLimits | None = None) -> Archive:
    """Open and check an archive. Raises InvalidBundle."""
    with path.open("rb") as file:
        first_bytes = file.read(4)
    if first_bytes.startswith(zip_archive.ZIP_MAGIC):
        return zip_archive.ZipArchive(path, limits or ArchiveLimits())
    if first_bytes == tar_archive.ZSTD_MAGIC:
        return tar_archive.TarArchive(path, limits or ArchiveLimits())
    raise InvalidBundle("The file is not a bundle: neither a zip nor a tar compressed with zstd.")


def extract(archive: Archive, temporary: Path, destination: Path, *, trusted: bool = False) -> None:
    """Extract into `temporary`, an empty folder on the file system of `destination`, then rename it to `destination`.

    Raises InvalidBundle and InsufficientStorage. After an error neither folder is left behind.
    """
    content_bytes = sum(archive.file_sizes.values()) + 4096 * len(archive.file_sizes)
    try:
        free_bytes = shutil.disk_usage(temporary).free
        if content_bytes + EXTRACT_RESERVE_BYTES > free_bytes:
            raise InsufficientStorage(
                f"The disk has not enough free space: the bundle unpacks to {_mebibytes(content_bytes)} MiB, "
                f"{_mebibytes(EXTRACT_RESERVE_BYTES)} MiB must stay free, and {free_bytes >> 20} MiB are free."
            )
        with translate_disk_full_errors("The disk is full; nothing was unpacked."):
            archive.unpack(temporary, trusted=trusted)
            destination.parent.mkdir(parents=True, exist_ok=True)
            move_on_disk(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _mebibytes(size: int) -> int:
    """Return the size in MiB, rounded up."""
    return -(-size >> 20)
