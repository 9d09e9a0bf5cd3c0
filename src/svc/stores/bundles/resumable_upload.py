"""Receive a bundle in chunks, over any number of requests and processes that share a folder.

<work_dir>/resumable/<id>.json   what the client announced
<work_dir>/resumable/<id>.part   the bytes so far

An upload expires when nothing is added to it for UPLOAD_LIFETIME_SECONDS. All calls block.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.bundles.digest import sha256_file
from svc.bundles.disk_space import translate_disk_full_errors, translate_write_errors
from svc.bundles.open_archive import has_archive_magic
from svc.errors import (
    AlreadyExists,
    InsufficientStorage,
    InvalidBundle,
    InvalidRequest,
    NotFound,
    RateLimited,
    TooLarge,
    UploadConflict,
)
from svc.stores.bundles.base import BundleDraft, BundleStore
from svc.stores.bundles.upload import CompleteFile
from svc.wire.bundle import BundleEntry

UPLOAD_LIFETIME_SECONDS = 3600.0
"""Age of the last received byte at which an upload expires."""
MAX_PENDING_UPLOADS_OF_KEY = 16
"""Maximum unfinished uploads of one key."""
MAX_PENDING_UPLOADS = 256
"""Maximum unfinished uploads of one folder."""
RESERVED_UPLOAD_DISK_BYTES = 64 << 20
"""Bytes of the disk that uploads leave free."""
ARCHIVE_MAGIC_BYTES = 4
_UPLOAD_ID = re.compile(r"upload_[0-9a-f]{32}", re.ASCII)


class AnnouncedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload as its client announced it."""

    owner: str
    """The id of the key that may continue it."""
    draft: BundleDraft
    size: int
    sha256: str | None = None


class PendingUpload(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an upload."""

    id: str
    announced: AnnouncedUpload
    offset: int
    """Bytes received so far."""
    expires: float
    """Unix time in seconds."""


class ResumableUploads:
    """The unfinished uploads of one store. Thread-safe and process-safe."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store
        self._folder = store.work_dir / "resumable"

    def create(self, announced: AnnouncedUpload) -> PendingUpload:
        """Announce an upload.

        Raises InvalidRequest, AlreadyExists, TooLarge, InsufficientStorage, and RateLimited for too many uploads.
        """
        announced.draft.validate_new()
        if announced.size > self._store.limits.max_total_bytes:
            raise TooLarge(f"A bundle may have at most {self._store.limits.max_total_bytes} bytes.", param="size_bytes")
        existing = self._store.find(announced.draft.key)
        if existing is not None and self._differs(existing, announced):
            raise AlreadyExists(f"{existing.key} is already published with other bytes. Choose another version.")
        with translate_write_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._hold("create.lock"):
                self._check_capacity(announced)
                upload_id = f"upload_{secrets.token_hex(16)}"
                self._data_path(upload_id).touch(0o644, exist_ok=False)
                description = self._folder / f"{upload_id}.json"
                description.with_suffix(".new").write_bytes(msgspec.json.encode(announced))
                os.rename(description.with_suffix(".new"), description)
        return self.get(upload_id)

    def get(self, upload_id: str) -> PendingUpload:
        """Return an upload. Raises NotFound."""
        try:
            if not _UPLOAD_ID.fullmatch(upload_id):
                raise FileNotFoundError
            announced = msgspec.json.decode(
                (self._folder / f"{upload_id}.json").read_bytes(), type=AnnouncedUpload, strict=True
            )
            status = self._data_path(upload_id).stat()
        except (FileNotFoundError, msgspec.DecodeError):
            raise _not_found(upload_id) from None
        expires = status.st_mtime + UPLOAD_LIFETIME_SECONDS
        if expires <= time.time():
            raise _not_found(upload_id)
        return PendingUpload(id=upload_id, announced=announced, offset=status.st_size, expires=expires)

    def append(self, upload_id: str, offset: int, data: bytes) -> PendingUpload:
        """Add bytes at `offset`, all or none.

        Raises NotFound, UploadConflict, InvalidRequest, InvalidBundle and InsufficientStorage.
        """
        upload = self.get(upload_id)
        with self._open_locked(upload_id) as fd:
            received = os.fstat(fd).st_size
            if offset != received:
                raise UploadConflict(f"The upload has {received} bytes: continue at this offset.")
            if offset + len(data) > upload.announced.size:
                raise InvalidRequest(f"The upload was announced with {upload.announced.size} bytes.")
            if offset < ARCHIVE_MAGIC_BYTES:
                self._check_magic(fd, offset, data)
            try:
                with translate_disk_full_errors():
                    _write_at(fd, offset, data)
            except BaseException:
                os.ftruncate(fd, offset)
                raise
        return self.get(upload_id)

    def commit(self, upload_id: str) -> tuple[BundleEntry, bool]:
        """Check and publish an upload. Returns its entry, and whether it is new.

        An invalid upload is removed. Raises NotFound, UploadConflict, AlreadyExists, InvalidBundle and
        InsufficientStorage.
        """
        upload = self.get(upload_id)
        announced = upload.announced
        if upload.offset != announced.size:
            raise UploadConflict(f"The upload has {upload.offset} of {announced.size} bytes.")
        path = self._data_path(upload_id)
        try:
            os.utime(path)  # a long check must not outlive the upload
            digest = sha256_file(path)
            if announced.sha256 not in (None, digest):
                raise InvalidBundle("The SHA-256 of the received bytes is not the announced one.")
            published = self._store.publish(CompleteFile(path, digest), announced.draft)
        except (AlreadyExists, InvalidBundle):
            self.remove(upload_id)
            raise
        except BlockingIOError:
            raise _busy_error() from None
        except FileNotFoundError:
            raise _not_found(upload_id) from None
        self.remove(upload_id)
        return published

    def remove(self, upload_id: str) -> None:
        """Remove an upload. Unknown ids are ignored."""
        if _UPLOAD_ID.fullmatch(upload_id):
            for suffix in ("json", "part"):
                (self._folder / f"{upload_id}.{suffix}").unlink(missing_ok=True)

    def remove_expired(self) -> None:
        """Remove the files of expired uploads."""
        remove_expired_uploads(self._store.work_dir)

    def _check_capacity(self, announced: AnnouncedUpload) -> None:
        self.remove_expired()
        pending, size = self._list_pending(), announced.size
        own_count = sum(upload.announced.owner == announced.owner for upload in pending)
        if own_count >= MAX_PENDING_UPLOADS_OF_KEY:
            raise RateLimited(f"This key has {own_count} unfinished uploads. Finish or delete one.", retry_after=60)
        if len(pending) >= MAX_PENDING_UPLOADS:
            raise RateLimited(f"There are {len(pending)} unfinished uploads of all keys.", retry_after=60)
        missing_bytes = sum(upload.announced.size - upload.offset for upload in pending)
        if size + missing_bytes + RESERVED_UPLOAD_DISK_BYTES > shutil.disk_usage(self._folder).free:
            raise InsufficientStorage(f"The registry's disk has no space for {size} bytes.")

    def _list_pending(self) -> list[PendingUpload]:
        pending = []
        for path in self._folder.glob("upload_*.json"):
            with contextlib.suppress(NotFound):  # it has just ended
                pending.append(self.get(path.stem))
        return pending

    def _differs(self, existing: BundleEntry, announced: AnnouncedUpload) -> bool:
        if existing.size_bytes != announced.size:
            return True
        return announced.sha256 is not None and existing.sha256 not in (None, announced.sha256)

    def _check_magic(self, fd: int, offset: int, data: bytes) -> None:
        first_bytes = os.pread(fd, offset, 0) + data[:ARCHIVE_MAGIC_BYTES]
        if len(first_bytes) >= ARCHIVE_MAGIC_BYTES and not has_archive_magic(first_bytes):
            raise InvalidBundle("The file is not a bundle: neither a zip nor a tar compressed with zstd.")

    def _data_path(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.part"

    @contextlib.contextmanager
    def _open_locked(self, upload_id: str) -> Iterator[int]:
        """Open the data for one writer. Raises UploadConflict if there is another."""
        try:
            fd = os.open(self._data_path(upload_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _not_found(upload_id) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield fd
        except BlockingIOError:
            raise _busy_error() from None
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _hold(self, name: str) -> Iterator[None]:
        fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def remove_expired_uploads(work_dir: Path) -> None:
    """Remove the files of uploads to which nothing was added for UPLOAD_LIFETIME_SECONDS."""
    oldest = time.time() - UPLOAD_LIFETIME_SECONDS
    files_by_name: dict[str, list[Path]] = {}
    for path in (work_dir / "resumable").glob("upload_*"):
        files_by_name.setdefault(path.stem, []).append(path)
    for files in files_by_name.values():
        data = next((path for path in files if path.suffix == ".part"), files[0])
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if data.stat().st_mtime < oldest:
                for path in files:
                    path.unlink(missing_ok=True)


def _write_at(fd: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset, view = offset + written, view[written:]


def _busy_error() -> UploadConflict:
    return UploadConflict("Another request is writing this upload.")


def _not_found(upload_id: str) -> NotFound:
    return NotFound(f"There is no upload {upload_id[:48]!r}. It expires an hour after its last byte.", param="id")
