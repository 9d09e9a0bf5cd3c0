"""Read the metadata of a remote bundle with a few range requests, without a full download."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

import zstandard

from svc.bundles import metadata, tar_archive, zip_archive
from svc.bundles.archive import ArchiveLimits
from svc.bundles.member_names import normalize_member_name
from svc.bundles.zip_end_record import read_end_record
from svc.errors import InvalidBundle

MAX_REMOTE_READ_BYTES = 16 << 20
"""Maximum bytes to read from a bundle."""
MAX_UNPACKED_SCAN_BYTES = 1 << 30
"""Maximum decompressed bytes to scan: the metadata may follow large members."""
REMOTE_READ_BUFFER_BYTES = 16 << 10
_ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, zlib.error),
    *(EOFError, KeyError, NotImplementedError, ValueError, RuntimeError, OverflowError, RecursionError),
)

ReadRemoteRange = Callable[[int, int], bytes]
"""Returns `length` bytes from `start`, fewer only at the end of the bundle."""


def read_remote_metadata(read: ReadRemoteRange, size: int) -> metadata.BundleMetadata | None:
    """Return the metadata, or None if it is beyond the read limit. The hash is not verified. Raises InvalidBundle."""
    remote_file: IO[bytes] = io.BufferedReader(_RemoteFile(read, size), REMOTE_READ_BUFFER_BYTES)
    try:
        first_bytes = remote_file.read(4)
        remote_file.seek(0)
        if first_bytes.startswith(zip_archive.ZIP_MAGIC):
            return metadata.parse_metadata(_read_zip_metadata(remote_file, size))
        if first_bytes == tar_archive.ZSTD_MAGIC:
            return metadata.parse_metadata(_read_tar_metadata(remote_file))
    except _ReadLimitExceeded:
        return None
    except _ARCHIVE_ERRORS as error:
        raise InvalidBundle(f"The bundle's metadata cannot be read: {error}.") from error
    raise InvalidBundle("The file is not a bundle: neither a zip nor a tar compressed with zstd.")


def _read_zip_metadata(remote_file: IO[bytes], size: int) -> bytes:
    def read(start: int, length: int) -> bytes:
        remote_file.seek(start)
        return remote_file.read(length)

    read_end_record(read, size, ArchiveLimits())  # bounds the directory, which is read as a whole
    with zipfile.ZipFile(remote_file) as archive, archive.open(metadata.METADATA_FILE) as member:
        return member.read(metadata.MAX_METADATA_BYTES + 1)


def _read_tar_metadata(remote_file: IO[bytes]) -> bytes:
    for member, stream in tar_archive.iter_members(remote_file, MAX_UNPACKED_SCAN_BYTES):
        if member.isreg() and normalize_member_name(member.name) == metadata.METADATA_FILE:
            stream.seek(member.offset_data)
            return b"".join(stream.iter_chunks(min(member.size, metadata.MAX_METADATA_BYTES + 1)))
    raise InvalidBundle(f"The bundle has no {metadata.METADATA_FILE} at its root.")


class _ReadLimitExceeded(Exception):
    """The metadata is beyond the read limit."""


class _RemoteFile(io.RawIOBase):
    """A seekable file over a function that reads ranges."""

    def __init__(self, read: ReadRemoteRange, size: int) -> None:
        self._read, self._size = read, size
        self._position = self._bytes_read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("the position is before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        self._bytes_read += length
        if self._bytes_read > MAX_REMOTE_READ_BYTES:
            raise _ReadLimitExceeded
        data = self._read(self._position, length) if length else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
