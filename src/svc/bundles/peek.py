"""The metadata of a bundle that lies elsewhere, read out of its middle: a few kilobytes instead of all of it."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

import zstandard

from svc.bundles import metadata, tarred, zipped
from svc.bundles.archive import Limits
from svc.bundles.names import clean
from svc.bundles.zipend import read_end
from svc.errors import InvalidBundle

MOST = 16 << 20
"""Bytes that are read of a bundle at most."""
MOST_UNPACKED = 1 << 30
"""Bytes to which that may unpack: the metadata may come after large members, but not after any number of them."""
BUFFER = 16 << 10
_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, zlib.error),
    *(EOFError, KeyError, NotImplementedError, ValueError, RuntimeError, OverflowError, RecursionError),
)

Read = Callable[[int, int], bytes]
"""Bytes from a place on, as many as are asked for unless the bundle ends before."""


def peek(read: Read, size: int) -> metadata.Metadata | None:
    """None when it lies too deep inside. Raises InvalidBundle, and what `read` raises. Nothing is verified."""
    far: IO[bytes] = io.BufferedReader(_Far(read, size), BUFFER)
    try:
        first = far.read(4)
        far.seek(0)
        if first.startswith(zipped.MAGIC):
            return metadata.parse(_from_zip(far, size))
        if first == tarred.MAGIC:
            return metadata.parse(_from_tar(far))
    except _TooMuch:
        return None
    except _DAMAGE as error:
        raise InvalidBundle(f"The bundle's metadata cannot be read: {error}.") from error
    raise InvalidBundle("The file is no bundle: neither a zip nor a tar compressed with zstd.")


def _from_zip(far: IO[bytes], size: int) -> bytes:
    def read(start: int, length: int) -> bytes:
        far.seek(start)
        return far.read(length)

    read_end(read, size, Limits())  # a directory is read whole: it has to be one of as many members as are allowed
    with zipfile.ZipFile(far) as archive, archive.open(metadata.FILE) as member:
        return member.read(metadata.MAX_BYTES + 1)


def _from_tar(far: IO[bytes]) -> bytes:
    for member, stream in tarred.walk(far, MOST_UNPACKED):
        if member.isreg() and clean(member.name) == metadata.FILE:
            stream.seek(member.offset_data)
            return b"".join(stream.pieces(min(member.size, metadata.MAX_BYTES + 1)))
    raise InvalidBundle(f"The bundle has no {metadata.FILE} at its top.")


class _TooMuch(Exception):
    """More would have to be read than a look is worth."""


class _Far(io.RawIOBase):
    """A file that is read in parts."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size = read, size
        self._at = self._taken = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("it leads before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        self._taken += length
        if self._taken > MOST:
            raise _TooMuch
        data = self._read(self._at, length) if length else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
