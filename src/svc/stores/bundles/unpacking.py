"""Unpacked bundles: `content/`, there whole or not at all, and `content.json`, which says what should be in it."""

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
from svc.bundles.archive import Limits, metadata_of
from svc.bundles.opening import extract, open_archive
from svc.bundles.room import room
from svc.errors import BundleNotFound, InvalidBundle
from svc.stores.bundles.locks import held, stripe
from svc.wire.bundle import Entry

MANIFEST = "content.json"


class Manifest(msgspec.Struct):
    """Sizes show what a power failure has cut; the hash shows of which bundle it is the content."""

    sha256: str | None
    files: dict[str, int]


class Folder(Protocol):
    """What is asked of the store."""

    state: Path
    limits: Limits

    def path(self, entry: Entry) -> Path: ...
    def content(self, entry: Entry) -> Path: ...


def unpack(store: Folder, entry: Entry, *, trusted: bool) -> Path:
    """The folder with the bundle's files."""
    target = store.content(entry)
    if is_unpacked(target, entry.sha256):
        return target
    with held(stripe(store.state / "locks", f"unpack {entry.key}")):
        if not is_unpacked(target, entry.sha256):
            with room("The disk is full; nothing was unpacked."):
                _unpack(store, entry, target, trusted)
    return target


def _unpack(store: Folder, entry: Entry, target: Path, trusted: bool) -> None:
    if not store.path(entry).is_file():
        raise BundleNotFound(f"The file of {entry.key} is missing; pull it again.")
    with open_archive(store.path(entry), store.limits) as archive, _temporary(store.state / "unpacking") as temporary:
        about = metadata_of(archive)
        if (about.model_id, about.version) != (entry.model_id, entry.version):
            raise InvalidBundle(f"The bundle of {entry.key} says it is {about.model_id}@{about.version}.")
        if target.exists():  # of another bundle, or damaged
            os.rename(target, temporary.with_name(f"{uuid.uuid4().hex}-old"))
        extract(archive, temporary, target, trusted=trusted)
        write_manifest(target, entry.sha256, dict(archive.files))


def write_manifest(target: Path, sha256: str | None, files: dict[str, int]) -> None:
    """Notes what `content` should hold."""
    temporary = target.with_name(f".{MANIFEST}-{uuid.uuid4().hex}")
    temporary.write_bytes(msgspec.json.encode(Manifest(sha256, files)))
    os.replace(temporary, target.with_name(MANIFEST))


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A folder that is known to be in use while this process lives."""
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
    """Whether the content of that bundle is there in full. Content without a manifest only needs its files."""
    try:
        manifest = msgspec.json.decode(target.with_name(MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return _has_its_files(target)
    if sha256 is not None and manifest.sha256 not in (None, sha256):
        return False
    try:
        return all((target / name).stat().st_size == size for name, size in manifest.files.items())
    except OSError:
        return False


def _has_its_files(target: Path) -> bool:
    try:
        about = metadata.parse((target / metadata.FILE).read_bytes())
    except (OSError, InvalidBundle):
        return False
    return all((target / name).is_file() for name in about.files)
