"""Manage unpacked bundles: `content/` is created atomically, and `content.json` lists its expected files."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from svc.bundles import metadata
from svc.bundles.archive import ArchiveLimits, read_metadata
from svc.bundles.disk_space import translate_disk_full_errors
from svc.bundles.open_archive import extract, open_archive
from svc.errors import BundleNotFound, InvalidBundle
from svc.file_lock import hold_lock
from svc.stores.bundles.locks import striped_lock_path
from svc.wire.bundle import BundleEntry

CONTENT_MANIFEST_FILE_NAME = "content.json"


class ContentManifest(msgspec.Struct):
    """The expected content. Sizes detect files that a power failure truncated, and the hash identifies the bundle."""

    sha256: str | None
    files: dict[str, int]


class UnpackStore(Protocol):
    """The methods of the store that unpacking needs."""

    work_dir: Path
    limits: ArchiveLimits

    def bundle_path(self, entry: BundleEntry) -> Path: ...
    def content_dir(self, entry: BundleEntry) -> Path: ...


def unpack(store: UnpackStore, entry: BundleEntry, *, trusted: bool) -> Path:
    """Return the folder with the bundle's files, unpacked if needed."""
    target = store.content_dir(entry)
    if is_unpacked(target, entry.sha256):
        return target
    with hold_lock(striped_lock_path(store.work_dir / "locks", f"unpack {entry.key}")):
        if not is_unpacked(target, entry.sha256):
            with translate_disk_full_errors("The disk is full; nothing was unpacked."):
                _unpack(store, entry, target, trusted)
    return target


def _unpack(store: UnpackStore, entry: BundleEntry, target: Path, trusted: bool) -> None:
    if not store.bundle_path(entry).is_file():
        raise BundleNotFound(f"The file of {entry.key} is missing; pull it again.")
    with (
        open_archive(store.bundle_path(entry), store.limits) as archive,
        _temporary_dir(store.work_dir / "unpacking") as temporary,
    ):
        bundle_metadata = read_metadata(archive)
        if (bundle_metadata.model_id, bundle_metadata.version) != (entry.model_id, entry.version):
            raise InvalidBundle(
                f"The bundle of {entry.key} says it is {bundle_metadata.model_id}@{bundle_metadata.version}."
            )
        if target.exists():  # belongs to another bundle, or is damaged
            os.rename(target, temporary.with_name(f"{uuid.uuid4().hex}-old"))
        extract(archive, temporary, target, trusted=trusted)
        write_manifest(target, entry.sha256, dict(archive.file_sizes))


def write_manifest(target: Path, sha256: str | None, files: dict[str, int]) -> None:
    """Write the expected content."""
    temporary = target.with_name(f".{CONTENT_MANIFEST_FILE_NAME}-{uuid.uuid4().hex}")
    temporary.write_bytes(msgspec.json.encode(ContentManifest(sha256, files)))
    os.replace(temporary, target.with_name(CONTENT_MANIFEST_FILE_NAME))


@contextmanager
def _temporary_dir(folder: Path) -> Iterator[Path]:
    """Create a folder with a lock, which marks it as in use while this process lives."""
    path = folder / uuid.uuid4().hex
    path.mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        os.close(fd)
        shutil.rmtree(path, ignore_errors=True)


def is_unpacked(target: Path, sha256: str | None) -> bool:
    """Return whether the bundle's content is complete. Without a manifest, only the files' existence is checked."""
    try:
        manifest = msgspec.json.decode(target.with_name(CONTENT_MANIFEST_FILE_NAME).read_bytes(), type=ContentManifest)
    except (OSError, msgspec.DecodeError):
        return _has_all_files(target)
    if sha256 is not None and manifest.sha256 not in (None, sha256):
        return False
    try:
        return all((target / name).stat().st_size == size for name, size in manifest.files.items())
    except OSError:
        return False


def _has_all_files(target: Path) -> bool:
    try:
        bundle_metadata = metadata.parse_metadata((target / metadata.METADATA_FILE).read_bytes())
    except (OSError, InvalidBundle):
        return False
    return all((target / name).is_file() for name in bundle_metadata.files)
