"""The archive of `svc backup`: a tar of plain files, and a manifest as its last member.

The manifest has the size and the SHA-256 of each file, so that a truncated or damaged archive is detected. The reader
accepts only what the writer creates. The writer checks each path and the manifest as the reader does, before it writes.
`tarfile` decodes single headers, and never follows links. A path that has no place in a header is in a pax header.
https://www.gnu.org/software/tar/manual/html_node/Standard.html
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_03

Version 2 has pax headers, the first one before the first file, so that a reader of version 1 stops at once.
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
MANIFEST_MAX_BYTES: Final = 256 << 20
_VERSION_1_MANIFEST_MAX_BYTES: Final = 64 << 20
_COPY_BYTES: Final = 1 << 20
_USTAR_SIZE_LIMIT: Final = 8**11
"""Larger files need GNU's encoding of the size."""
_PAX_HEADER_NAME: Final = "PaxHeaders/needs-a-newer-version-of-svc"
"""Programs that read only version 1 show this name in their error."""
_PAX_HEADER_MAX_BYTES: Final = 8192
_PAX_PATH_RECORD: Final = re.compile(rb"([1-9][0-9]{0,4}) path=([^\n\x00]+)\n")
_LARGEST_SIZE: Final = 2**63 - 1
_TOP_LEVEL_FILE: Final = re.compile(r"svc\.db|api_key|console_key|signing\.key|svc\.toml")
_JOURNAL_FILE: Final = re.compile(r"journal/[A-Za-z0-9_-][A-Za-z0-9._-]*\.journal")
_FOLDER_FILE: Final = re.compile(r"(?:recipes|registry)(?:/[^/\\\x00-\x1f\x7f]+)+")
REGISTRY_RECORDS: Final = "registry/.registry/records.sqlite"

OnBytes = Callable[[int, int], None]
"""Called with the bytes so far, and in total."""


OnVanished = Callable[["SourceFile"], None]
"""Called with an optional file that vanished before it was read."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    path: str
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member of the archive."""

    format: Literal["svc-backup"] = "svc-backup"
    format_version: Literal[1, 2] = 1
    svc_version: str
    created: str
    schema_version: int
    """The version of the database schema."""
    files: tuple[BackupFile, ...]


class SourceFile(msgspec.Struct, frozen=True):
    """A file to back up, and its path in the archive."""

    name: str
    path: Path
    is_optional: bool = False
    """Whether the backup is complete without the file if it vanishes before it is read."""


def is_backup_path(name: str) -> bool:
    """Return whether a backup may contain this path. All such paths are inside the state folder."""
    if _TOP_LEVEL_FILE.fullmatch(name) or _JOURNAL_FILE.fullmatch(name) or name == REGISTRY_RECORDS:
        return True
    is_inside = _FOLDER_FILE.fullmatch(name) is not None
    return is_inside and not any(part.startswith(".") for part in name.split("/"))


def is_restorable(name: str) -> bool:
    """Return whether the reader accepts a file of this path. Other tools may create names that are not UTF-8."""
    try:
        return is_backup_path(name) and len(_pax_path_record(name)) <= _PAX_HEADER_MAX_BYTES
    except UnicodeEncodeError:
        return False


def write_backup(
    archive: BinaryIO,
    sources: Sequence[SourceFile],
    *,
    svc_version: str,
    created: str,
    schema_version: int,
    on_bytes: OnBytes,
    on_vanished: OnVanished,
) -> BackupManifest:
    """Write the files and the manifest.

    Raises OSError, and before the first byte is written CommandFailed for files that `extract_backup` would reject.
    """
    manifest = BackupManifest(svc_version=svc_version, created=created, schema_version=schema_version, files=())
    sizes = [_size_of(source) for source in sources]
    needs_version_2 = _check_sources(sources, sizes, manifest)
    total, done = sum(sizes), 0
    files: list[BackupFile] = []
    for source in sources:
        try:
            file = source.path.open("rb")
        except FileNotFoundError:
            if not source.is_optional:
                raise
            on_vanished(source)
            continue
        with file:
            files.append(_write_file(archive, source.name, file, use_pax=needs_version_2 and not files))
        done += files[-1].size
        on_bytes(done, max(done, total))
    manifest = msgspec.structs.replace(manifest, files=tuple(files), format_version=2 if needs_version_2 else 1)
    data = _encode_manifest(manifest)
    archive.write(_encode_header(MANIFEST_NAME, len(data), 0o600))
    archive.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
    archive.write(bytes(2 * tarfile.BLOCKSIZE))
    return manifest


def _size_of(source: SourceFile) -> int:
    try:
        return source.path.stat().st_size
    except FileNotFoundError:  # `write_backup` decides whether the file is optional
        return 0


def _check_sources(sources: Sequence[SourceFile], sizes: Sequence[int], manifest: BackupManifest) -> bool:
    """Raise CommandFailed for what the reader rejects. Return whether the backup needs version 2."""
    for source in sources:
        if not is_restorable(source.name):
            raise CommandFailed(f"The path {source.name!r} cannot be in a backup. Rename or remove the file.")
    largest = tuple(BackupFile(path=source.name, size=_LARGEST_SIZE, sha256="0" * 64) for source in sources)
    manifest_bytes = len(_encode_manifest(msgspec.structs.replace(manifest, files=largest)))
    if manifest_bytes > MANIFEST_MAX_BYTES:
        raise CommandFailed(
            f"A backup cannot list {len(sources)} files: its manifest would have {manifest_bytes} bytes, and at most "
            f"{MANIFEST_MAX_BYTES} can be restored. Remove `content` folders: svc registry pull unpacks again."
        )
    return manifest_bytes > _VERSION_1_MANIFEST_MAX_BYTES or any(
        _encode_plain_header(source.name, size, 0o600) is None for source, size in zip(sources, sizes, strict=True)
    )


def _encode_manifest(manifest: BackupManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def _write_file(archive: BinaryIO, name: str, file: BinaryIO, *, use_pax: bool) -> BackupFile:
    status = os.fstat(file.fileno())
    archive.write(_encode_header(name, status.st_size, 0o600 | (status.st_mode & 0o100), use_pax=use_pax))
    digest = _copy_exactly(file, archive, status.st_size, name)
    archive.write(bytes(-status.st_size % tarfile.BLOCKSIZE))
    return BackupFile(path=name, size=status.st_size, sha256=digest)


def _encode_header(name: str, size: int, mode: int, *, use_pax: bool = False) -> bytes:
    """Return the header of a file, with a pax header before it if the path is too long for one header."""
    header = _encode_plain_header(name, size, mode)
    if header is not None and not use_pax:
        return header
    path = _pax_path_record(name)
    pax = tarfile.TarInfo(_PAX_HEADER_NAME)
    pax.type, pax.size = tarfile.XHDTYPE, len(path)
    short_name = name.encode()[: tarfile.LENGTH_NAME].decode(errors="ignore")  # the pax header replaces it
    header = header or _encode_plain_header(short_name, size, mode)
    assert header is not None, "a name of at most 100 bytes has a place in a header"
    padding = bytes(-len(path) % tarfile.BLOCKSIZE)
    return pax.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict") + path + padding + header


def _encode_plain_header(name: str, size: int, mode: int) -> bytes | None:
    """Return one header, or None if the path has no place in it."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    if size >= _USTAR_SIZE_LIMIT:  # GNU headers do not divide a path as USTAR does
        is_short = len(name.encode()) <= tarfile.LENGTH_NAME
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict") if is_short else None
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return None


def _pax_path_record(name: str) -> bytes:
    """Return the record `LENGTH path=NAME`, where the length counts its own digits."""
    rest = b" path=" + name.encode() + b"\n"
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


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
    """Return the path, size and mode of the next file. Only the header of a long path may precede it."""
    info, path = _decode_header(archive), None
    if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        path = _read_long_path(archive, info)
        info = _decode_header(archive)
    if info.type != tarfile.REGTYPE or info.size < 0:
        raise CommandFailed(f"The file is not a backup of svc: {info.name[:100]!r} is not a plain file.")
    return info.name if path is None else path, info.size, info.mode


def _read_long_path(archive: BinaryIO, header: tarfile.TarInfo) -> str:
    """Return the path in a pax header, or in that of GNU tar, which older programs wrote for large files."""
    if not 0 < header.size <= _PAX_HEADER_MAX_BYTES:
        raise CommandFailed("The file is not a backup of svc, or it is damaged: the header of a path has a wrong size.")
    data = archive.read(header.size)
    archive.read(-header.size % tarfile.BLOCKSIZE)
    try:
        if header.type == tarfile.GNUTYPE_LONGNAME:
            return data.removesuffix(b"\0").decode()
        record = _PAX_PATH_RECORD.fullmatch(data)
        if record is not None and int(record[1]) == header.size:
            return record[2].decode()
    except UnicodeDecodeError:
        pass
    raise CommandFailed("The file is not a backup of svc, or it is damaged: the header of a path is not valid.")


def _decode_header(archive: BinaryIO) -> tarfile.TarInfo:
    block = archive.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or not any(block):
        raise CommandFailed("The file is not a complete backup: its manifest is missing.")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.TarError, ValueError) as error:
        raise CommandFailed(f"The file is not a backup of svc, or it is damaged: {error}.") from error


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
