"""The archive of `svc backup`: a tar of plain files, and a manifest as its last member.

The manifest has the size and the SHA-256 of each file, so that a truncated or damaged archive is detected. The reader
accepts only what the writer creates. `tarfile` decodes single headers, and never follows links or extension headers.
https://www.gnu.org/software/tar/manual/html_node/Standard.html
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from svc.errors import CommandFailed

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_MAX_BYTES: Final = 64 << 20
_COPY_BYTES: Final = 1 << 20
_USTAR_SIZE_LIMIT: Final = 8**11
"""Larger files need GNU's encoding of the size."""
_TOP_LEVEL_FILE: Final = re.compile(r"svc\.db|api_key|console_key|signing\.key|svc\.toml")
_JOURNAL_FILE: Final = re.compile(r"journal/[A-Za-z0-9_-][A-Za-z0-9._-]*\.journal")
_FOLDER_FILE: Final = re.compile(r"(?:recipes|registry)(?:/[^/\\\x00-\x1f\x7f]+)+")
REGISTRY_RECORDS: Final = "registry/.registry/records.sqlite"

OnBytes = Callable[[int, int], None]
"""Called with the bytes so far, and in total."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    path: str
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member of the archive."""

    format: Literal["svc-backup"] = "svc-backup"
    format_version: Literal[1] = 1
    svc_version: str
    created: str
    schema_version: int
    """The version of the database schema."""
    files: tuple[BackupFile, ...]


class SourceFile(msgspec.Struct, frozen=True):
    """A file to back up, and its path in the archive."""

    name: str
    path: Path


def is_backup_path(name: str) -> bool:
    """Return whether a backup may contain this path. All such paths are inside the state folder."""
    if _TOP_LEVEL_FILE.fullmatch(name) or _JOURNAL_FILE.fullmatch(name) or name == REGISTRY_RECORDS:
        return True
    is_inside = _FOLDER_FILE.fullmatch(name) is not None
    return is_inside and not any(part.startswith(".") for part in name.split("/"))


def write_backup(
    archive: BinaryIO,
    sources: Sequence[SourceFile],
    *,
    svc_version: str,
    created: str,
    schema_version: int,
    on_bytes: OnBytes,
) -> BackupManifest:
    """Write the files and the manifest. Raises OSError, and CommandFailed for a path that is too long."""
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    files = []
    for source in sources:
        file = _write_file(archive, source)
        files.append(file)
        done += file.size
        on_bytes(done, max(done, total))
    manifest = BackupManifest(
        svc_version=svc_version, created=created, schema_version=schema_version, files=tuple(files)
    )
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    archive.write(_encode_header(MANIFEST_NAME, len(data), 0o600))
    archive.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
    archive.write(bytes(2 * tarfile.BLOCKSIZE))
    return manifest


def _write_file(archive: BinaryIO, source: SourceFile) -> BackupFile:
    with source.path.open("rb") as file:
        status = os.fstat(file.fileno())
        archive.write(_encode_header(source.name, status.st_size, 0o600 | (status.st_mode & 0o100)))
        digest = _copy_exactly(file, archive, status.st_size, source.name)
    archive.write(bytes(-status.st_size % tarfile.BLOCKSIZE))
    return BackupFile(path=source.name, size=status.st_size, sha256=digest)


def _encode_header(name: str, size: int, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    try:
        if size >= _USTAR_SIZE_LIMIT:
            return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError as error:
        raise CommandFailed(f"The path {name!r} cannot be in a backup: {error}.") from error


def _copy_exactly(source: BinaryIO, target: BinaryIO, size: int, name: str) -> str:
    """Copy `size` bytes, and return their SHA-256. Raises CommandFailed if the source ends earlier."""
    digest = hashlib.sha256()
    remaining = size
    while remaining:
        data = source.read(min(_COPY_BYTES, remaining))
        if not data:
            raise CommandFailed(f"{name} is {remaining} bytes shorter than expected.")
        digest.update(data)
        target.write(data)
        remaining -= len(data)
    return digest.hexdigest()


def extract_backup(archive: BinaryIO, folder: Path, on_bytes: OnBytes) -> BackupManifest:
    """Extract all files to an empty folder, check them against the manifest, and sync them.

    Raises CommandFailed if the archive is truncated, damaged, or not a backup. Then the folder must be discarded.
    """
    total = os.fstat(archive.fileno()).st_size
    extracted: dict[str, BackupFile] = {}
    while True:
        name, size, mode = _read_header(archive)
        if name == MANIFEST_NAME:
            break
        if not is_backup_path(name):
            raise CommandFailed(f"The file is not a backup of svc: it contains {name[:100]!r}.")
        if name in extracted:
            raise CommandFailed(f"The backup is damaged: it contains {name[:100]!r} twice.")
        if size > total:
            raise CommandFailed(f"The backup is truncated in {name[:100]!r}.")
        extracted[name] = _extract_file(archive, folder / name, name, size, mode)
        on_bytes(archive.tell(), total)
    manifest = _decode_manifest(archive, size)
    if archive.read(1 + 2 * tarfile.BLOCKSIZE) != bytes(2 * tarfile.BLOCKSIZE):
        raise CommandFailed("The backup is damaged: it has no valid end after its manifest.")
    _check_files(manifest, extracted)
    return manifest


def _read_header(archive: BinaryIO) -> tuple[str, int, int]:
    block = archive.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or not any(block):
        raise CommandFailed("The file is not a complete backup: its manifest is missing.")
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.TarError, ValueError) as error:
        raise CommandFailed(f"The file is not a backup of svc, or it is damaged: {error}.") from error
    if info.type != tarfile.REGTYPE or info.size < 0:
        raise CommandFailed(f"The file is not a backup of svc: {info.name[:100]!r} is not a plain file.")
    return info.name, info.size, info.mode


def _extract_file(archive: BinaryIO, path: Path, name: str, size: int, mode: int) -> BackupFile:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600 | (mode & 0o100)), "wb") as file:
        digest = _copy_exactly(archive, file, size, name)
        file.flush()
        os.fsync(file.fileno())
    archive.read(-size % tarfile.BLOCKSIZE)
    return BackupFile(path=name, size=size, sha256=digest)


def _decode_manifest(archive: BinaryIO, size: int) -> BackupManifest:
    if size > MANIFEST_MAX_BYTES:
        raise CommandFailed("The backup is damaged: its manifest is too large.")
    data = archive.read(size)
    archive.read(-size % tarfile.BLOCKSIZE)
    try:
        return msgspec.json.decode(data, type=BackupManifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CommandFailed(f"The manifest of the backup is not valid: {error}.") from error


def _check_files(manifest: BackupManifest, extracted: dict[str, BackupFile]) -> None:
    expected = {file.path: file for file in manifest.files}
    for name in sorted(expected.keys() | extracted.keys()):
        if name not in extracted or name not in expected:
            raise CommandFailed(f"The backup is damaged: {name[:100]!r} is only in its manifest, or not there.")
        if extracted[name] != expected[name]:
            raise CommandFailed(f"The backup is damaged: the SHA-256 of {name[:100]!r} differs from its manifest.")
    if "svc.db" not in extracted:
        raise CommandFailed("The backup is damaged: it contains no database.")
