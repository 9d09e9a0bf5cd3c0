"""An upload in progress: a temporary file that is hashed as it grows, and locked so that it is known to be in use."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from pathlib import Path

from svc.bundles.disk_space import translate_disk_full_errors
from svc.bundles.open_archive import has_archive_magic
from svc.errors import InvalidBundle


class BundleUpload:
    """Bytes on their way in. Not safe for two threads at once."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self.path = folder / f"{self.name}.part"
        self.size = 0
        self._hash = hashlib.sha256()
        self._magic = b""
        self._fd = _create_locked(self.path)

    @property
    def sha256(self) -> str:
        """The hash of what was written."""
        return self._hash.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Raises InvalidBundle as soon as it cannot become a bundle, InsufficientStorage when the disk is full."""
        if self.size < 4:
            self._magic = (self._magic + bytes(data[:4]))[:4]
            if len(self._magic) == 4 and not has_archive_magic(self._magic):
                raise InvalidBundle("The file is no bundle: neither a zip nor a tar compressed with zstd.")
        self._hash.update(data)
        self.size += len(data)
        view = memoryview(data)
        with translate_disk_full_errors():
            while view:
                view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        """Everything is on the disk after this."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Removes the file, if it was not moved away, and lets go of the lock. May be called twice."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def _create_locked(path: Path) -> int:
    """A cleaner may take a file that is not locked yet: then another is made."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.stat(path).st_ino == os.fstat(fd).st_ino:
                return fd
        except OSError:  # the cleaner holds it, for a moment, to remove it
            pass
        os.close(fd)


def is_abandoned(path: Path) -> bool:
    """Whether nobody holds the lock of an existing file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class CompleteFile:
    """A whole file that is about to be moved into a store: locked like an upload, and of known hash."""

    def __init__(self, path: Path, sha256: str, *, durable: bool = True) -> None:
        self.name = uuid.uuid4().hex
        self.path = path
        self.sha256 = sha256
        self._durable = durable
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync(self) -> None:
        """Everything is on the disk after this, unless it need not be."""
        if self._durable:
            os.fsync(self._fd)

    def close(self) -> None:
        """Lets go of the lock."""
        os.close(self._fd)
