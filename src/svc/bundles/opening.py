"""Opens a bundle whichever of the two forms it has, found by its first bytes; and extracts it, whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from svc.bundles import tarred, zipped
from svc.bundles.archive import Archive, Limits
from svc.bundles.room import room
from svc.errors import InsufficientStorage, InvalidBundle

RESERVE = 16 << 20
"""Bytes that stay free on the disk."""


def known(first: bytes) -> bool:
    """Whether these first bytes (four at least) can begin a bundle."""
    return first.startswith((*zipped.MAGIC, tarred.MAGIC))


def open_archive(path: Path, limits: Limits | None = None) -> Archive:
    """The archive, checked. Raises InvalidBundle."""
    with path.open("rb") as file:
        first = file.read(4)
    if first.startswith(zipped.MAGIC):
        return zipped.ZipArchive(path, limits or Limits())
    if first == tarred.MAGIC:
        return tarred.TarArchive(path, limits or Limits())
    raise InvalidBundle("The file is no bundle: neither a zip nor a tar compressed with zstd.")


def extract(archive: Archive, temporary: Path, target: Path, *, trusted: bool = False) -> None:
    """Unpacks into `temporary`, an empty folder on the target's file system, and renames that once, to `target`.

    Raises InvalidBundle, InsufficientStorage; then neither is left behind.
    """
    need = sum(archive.files.values()) + 4096 * len(archive.files) + RESERVE
    try:
        if need > shutil.disk_usage(temporary).free:
            raise InsufficientStorage(f"The disk has no room for it: it unpacks to {need >> 20} MiB.")
        with room("The disk is full; nothing was unpacked."):
            archive.unpack(temporary, trusted=trusted)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
