"""Write an upload to a temporary file, hash it on the way, and lock it to mark it as in use."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from pathlib import Path

from svc.bundles.disk_space import translate_disk_full_errors
from svc.bundles.open_archive import has_archive_magic
from svc.errors import InvalidBundle
from svc.file_lock import create_locked


class BundleUpload:
    """An upload in progress. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self.path = folder / f"{self.name}.part"
        self.size = 0
        self._hash = hashlib.sha256()
        self._magic = b""
        self._fd = create_locked(self.path)

    @property
    def sha256(self) -> str:
        """Return the hash of the bytes written so far."""
        return self._hash.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises InvalidBundle for wrong first bytes, and InsufficientStorage when the disk is full."""
        if self.size < 4:
            self._magic = (self._magic + bytes(data[:4]))[:4]
            if len(self._magic) == 4 and not has_archive_magic(self._magic):
                raise InvalidBundle("The file is not a bundle: neither a zip nor a tar compressed with zstd.")
        self._hash.update(data)
        self.size += len(data)
        view = memoryview(data)
        with translate_disk_full_errors():
            while view:
                view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Remove the file unless it was moved away, and release the lock. May be called twice."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


class CompleteFile:
    """A complete file of known hash, locked like an upload, to be moved into a store."""

    def __init__(self, path: Path, sha256: str, *, durable: bool = True) -> None:
        """Raise BlockingIOError if another process has locked the file."""
        self.name = uuid.uuid4().hex
        self.path = path
        self.sha256 = sha256
        self._durable = durable
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def sync(self) -> None:
        """Sync the file to disk if it is durable."""
        if self._durable:
            os.fsync(self._fd)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)
