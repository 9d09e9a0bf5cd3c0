"""Store bundles in a bucket, which any number of servers share. Needs the extra `s3`.

records/<model_id>/<version>/<platform>.json   the entry, which is immutable
yanked/<model_id>/<version>/<platform>         exists while the bundle is yanked
blobs/<sha256>/<random>.xyb                    the bytes, with a unique name per publish, so that `gc`, which removes
                                               old blobs without a record, cannot remove a new one
aside/<sha256>/<random>.xyb                    damaged bytes, until `gc`
snapshot.json                                  a cache of all records, so that a new server starts with one read

A publish uploads the bytes, then creates the record, which commits it. The server must reject the creation of an
existing object (`If-None-Match: *`, RFC 9110, section 13.1.2). Some ignore it, so a write at the start checks it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, NotFoundError, PreconditionError

from svc.bundles import index_parser
from svc.bundles.archive import limits_from_environ
from svc.errors import AlreadyExists, BundleNotFound, RegistryFailed, UsageError
from svc.file_lock import remove_abandoned
from svc.stores.bundles.base import BundleDraft, VerifyFinding, validate_bundle
from svc.stores.bundles.bucket_connection import error_reason, open_bucket
from svc.stores.bundles.resumable_upload import remove_expired_uploads
from svc.stores.bundles.upload import BundleUpload, CompleteFile
from svc.wire.bundle import BundleEntry, entry_for_json

log = logging.getLogger("svc.stores")

MAX_RECORD_LIST_AGE_SECONDS = 1.0
"""Maximum age of the list of records."""
ORPHAN_GRACE_PERIOD = timedelta(days=1)
"""Minimum age of blobs that `gc` removes: younger ones may belong to a running publish."""
PRESIGNED_URL_LIFETIME = timedelta(hours=1)
READ_CHUNK_BYTES = 4 << 20
READER_THREADS = 16
MIN_NEW_RECORDS_PER_SNAPSHOT = 200
NEW_OBJECT_PAUSES_SECONDS = (0.1, 0.4, 1.5)
"""Pauses before a new blob that the bucket does not show yet is looked up again."""


class BucketStore:
    """A bucket at s3://bucket/prefix. Raises UsageError if the bucket cannot be used.

    `proxies_bucket`: this server sends the bundles itself, and does not redirect clients to the bucket.
    With `may_be_unavailable`, a storage server that does not respond is no error: each call tries it again.
    Without `publishes`, nothing is written before the first publish, so that reading needs no permission to write.
    """

    is_on_disk = False

    def __init__(
        self,
        url: str,
        work_dir: Path,
        environ: Mapping[str, str],
        *,
        proxies_bucket: bool = False,
        may_be_unavailable: bool = False,
        publishes: bool = True,
    ) -> None:
        self.limits = limits_from_environ(environ)
        self.bucket: Any = open_bucket(url, environ)
        self._url = url.rstrip("/")
        self.work_dir = work_dir
        for name in ("uploads", "downloads", "locks"):
            (work_dir / name).mkdir(parents=True, exist_ok=True)
        for partial_file in (work_dir / "uploads").glob("*.part"):
            remove_abandoned(partial_file)
        remove_expired_uploads(work_dir)
        self._proxies_bucket = proxies_bucket
        self._lock = threading.Lock()
        self._records: dict[str, BundleEntry] = {}
        self._unreadable_keys: set[str] = set()
        """Keys of records that cannot be decoded."""
        self._yanked: frozenset[str] = frozenset()
        self._listed_at = 0.0
        self._failed_at = -math.inf
        self._failure = RegistryFailed("")
        self._reader_pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="s3")
        self._is_checked = False
        """Whether the storage server is known to reject the creation of existing objects."""
        self._open(url, environ, may_be_unavailable, publishes)

    def __enter__(self) -> BucketStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader_pool.shutdown(cancel_futures=True)

    def _open(self, url: str, environ: Mapping[str, str], may_be_unavailable: bool, publishes: bool) -> None:
        try:
            bucket = open_bucket(url, environ, is_check=True) if may_be_unavailable else self.bucket
            next(
                iter(obstore.list(bucket, "records/")), None
            )  # some servers create a missing bucket at the first write
            if publishes:
                self._check_conditional_put(bucket)
        except BaseError as error:
            problem = f"The bucket {url} cannot be used: {error_reason(error)}"
            if not (may_be_unavailable and isinstance(error, GenericError)):
                raise UsageError(problem) from error
            log.error("%s; requests to the registry fail until it responds", problem)
            return
        self._load_records()

    def _check_conditional_put(self, bucket: Any) -> None:
        """Raise UsageError if the storage server ignores `If-None-Match`, and BaseError if it fails."""
        path = f"probe/{uuid.uuid4().hex}"
        obstore.put(bucket, path, b"1")
        is_overwritten = self._create_object(path, b"2")
        obstore.delete(bucket, path)
        if is_overwritten:
            raise UsageError(
                f"The server of {self._url} overwrites existing objects (it ignores If-None-Match), so publishes could "
                "overwrite each other; use a store with conditional puts."
            )
        self._is_checked = True

    def _to_registry_error(self, error: BaseError, action: str = "respond") -> RegistryFailed:
        """Return the error for a client. Only the log and commands get its reason, which may hold an address."""
        reason = f"{self._url}: {error_reason(error)}"
        log.error("the bucket failed: %s", reason)
        return RegistryFailed(f"The registry's bucket does not {action}.", reason=reason)

    def _create_object(self, path: str, data: bytes) -> bool:
        """Create an object. Returns False if it exists, perhaps from an attempt whose response was lost."""
        try:
            obstore.put(self.bucket, path, data, mode="create")
        except (AlreadyExistsError, FileExistsError, PreconditionError):
            return False
        return True

    def _read_object(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.bucket, path).bytes())
        except (NotFoundError, FileNotFoundError):
            return None

    # records

    def refresh(self) -> None:
        """Load the records of other servers, unless they were loaded within MAX_RECORD_LIST_AGE_SECONDS.

        Raises RegistryFailed. A failure is reported to all callers that waited for it, and for as long as a success:
        each further attempt at a bucket that hangs would wait for its own timeout.
        """
        requested_at = time.monotonic()
        with self._lock:
            if self._failed_at > min(requested_at, time.monotonic() - MAX_RECORD_LIST_AGE_SECONDS):
                raise RegistryFailed(self._failure.message, reason=self._failure.reason)
            if time.monotonic() - self._listed_at >= MAX_RECORD_LIST_AGE_SECONDS:
                self._load_records()

    def _load_records(self) -> None:
        try:
            if not self._records:
                self._read_snapshot()
            keys = {path.removeprefix("records/").removesuffix(".json") for path in self._list_paths("records/")}
            yanked = frozenset(path.removeprefix("yanked/") for path in self._list_paths("yanked/"))
            missing = sorted(keys - self._records.keys() - self._unreadable_keys)
            for entry in self._reader_pool.map(self._read_record, missing):
                if entry is not None:
                    self._records[entry.key] = entry
        except BaseError as error:
            self._failure, self._failed_at = self._to_registry_error(error), time.monotonic()
            raise self._failure from error
        self._yanked = yanked
        self._listed_at, self._failed_at = time.monotonic(), -math.inf
        if len(missing) >= MIN_NEW_RECORDS_PER_SNAPSHOT:
            with contextlib.suppress(BaseError):  # it only makes the next start faster
                obstore.put(self.bucket, "snapshot.json", msgspec.json.encode(list(self._records.values())))

    def _list_paths(self, prefix: str) -> Iterator[str]:
        for batch in obstore.list(self.bucket, prefix):
            for item in batch:
                yield item["path"]

    def _read_record(self, key: str) -> BundleEntry | None:
        data = self._read_object(f"records/{key}.json")
        if data is None:
            return None
        try:
            return index_parser.parse_entry(key, data)
        except ValueError as error:
            if key not in self._unreadable_keys:
                log.warning("the record %.200r of %s is not valid: %s", key, self._url, error)
            self._unreadable_keys.add(key)
            return None

    def _read_snapshot(self) -> None:
        data = self._read_object("snapshot.json")
        try:
            entries = msgspec.json.decode(data or b"[]", type=list[BundleEntry])
        except (ValueError, RecursionError):  # fall back to the records
            entries = []
        self._records = {entry.key: entry for entry in entries}

    def entries(self, model_id: str | None = None) -> Sequence[BundleEntry]:
        self.refresh()
        matching = [entry for entry in list(self._records.values()) if model_id in (None, entry.model_id)]
        return sorted((self._with_yanked(entry) for entry in matching), key=lambda entry: entry.key)

    def _with_yanked(self, entry: BundleEntry) -> BundleEntry:
        return msgspec.structs.replace(entry, yanked=entry.key in self._yanked)

    def find(self, key: str) -> BundleEntry | None:
        entry = self._records.get(key)
        if entry is None:
            try:
                entry = self._read_record(key)
            except BaseError as error:
                raise self._to_registry_error(error) from error
            if entry is not None:
                self._records[key] = entry
        return None if entry is None else self._with_yanked(entry)

    def list_unhashed(self) -> Sequence[BundleEntry]:
        return ()

    def ensure_hash(self, entry: BundleEntry) -> BundleEntry:
        return entry

    def revision(self) -> str:
        self.refresh()
        state = hashlib.sha256("\n".join(sorted(self._yanked)).encode()).hexdigest()[:16]
        return f"{len(self._records)}-{state}"

    # publishing

    def create_upload(self, size: int | None = None) -> BundleUpload:
        return BundleUpload(self.work_dir / "uploads")

    def publish(self, upload: BundleUpload | CompleteFile, draft: BundleDraft) -> tuple[BundleEntry, bool]:
        try:
            draft.validate_new()
            return self._commit_upload(upload, draft)
        finally:
            upload.close()

    def import_file(self, path: Path, entry: BundleEntry, sha256: str, *, durable: bool = True) -> BundleEntry:
        finished = CompleteFile(path, sha256)
        try:
            draft = BundleDraft(entry.model_id, entry.version, entry.target, entry.signatures)
            draft.validate()
            stored, created = self._commit_upload(finished, draft, entry.created)
            return self.set_yanked(entry.key, True) if created and entry.yanked else stored
        finally:
            finished.close()

    def _commit_upload(
        self, upload: BundleUpload | CompleteFile, draft: BundleDraft, created: str | None = None
    ) -> tuple[BundleEntry, bool]:
        try:
            if not self._is_checked:
                self._check_conditional_put(self.bucket)
            existing = self._find_same_bundle(draft.key, upload.sha256)
            if existing is not None and self.is_complete(existing):
                return existing, False
            validate_bundle(upload.path, draft, self.limits)
            entry = existing or _new_entry(draft, upload, created)
            obstore.put(self.bucket, entry.path, upload.path)
            if not self._wait_until_complete(entry):
                raise RegistryFailed("The registry's bucket did not store the bundle.")
            if existing is not None:  # the bytes were lost, and are back
                return existing, False
            if self._create_object(f"records/{draft.key}.json", msgspec.json.encode(entry_for_json(entry))):
                self._records[entry.key] = entry
                return entry, True
            published = self.find(draft.key)
            if published is not None and published.path == entry.path:  # a repeated request met its own record
                return published, True
            obstore.delete(self.bucket, entry.path)  # another server published first
            existing = self._find_same_bundle(draft.key, upload.sha256)
            if existing is None:
                raise RegistryFailed(f"The record of {draft.key} in the bucket cannot be decoded.")
            return existing, False
        except UsageError as error:
            raise RegistryFailed("The registry's bucket cannot accept bundles.", reason=error.message) from error
        except BaseError as error:
            raise self._to_registry_error(error, "accept the bundle") from error

    def is_complete(self, entry: BundleEntry) -> bool:
        try:
            return int(obstore.head(self.bucket, entry.path)["size"]) == entry.size_bytes
        except (NotFoundError, FileNotFoundError):
            return False
        except BaseError as error:
            raise self._to_registry_error(error) from error

    def _wait_until_complete(self, entry: BundleEntry) -> bool:
        """Return whether the uploaded blob is in the bucket. Some storage servers show a new object a little later."""
        for pause in NEW_OBJECT_PAUSES_SECONDS:
            if self.is_complete(entry):
                return True
            time.sleep(pause)
        return self.is_complete(entry)

    def _find_same_bundle(self, key: str, sha256: str) -> BundleEntry | None:
        entry = self.find(key)
        if entry is not None and entry.sha256 != sha256:
            raise AlreadyExists(f"{key} is already published with other bytes. Choose another version.")
        return entry

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        if self.find(key) is None:
            raise BundleNotFound(f"There is no bundle {key}.")
        try:
            if yanked:
                obstore.put(self.bucket, f"yanked/{key}", b"")
            else:
                obstore.delete(self.bucket, f"yanked/{key}")
        except BaseError as error:
            raise self._to_registry_error(error) from error
        with self._lock:
            self._load_records()
        return self._with_yanked(self._records[key])

    # reading

    def location(self, entry: BundleEntry) -> str:
        return f"{self._url}/{entry.path}"

    def local_file(self, entry: BundleEntry) -> Path | None:
        return None

    def presigned_url(self, entry: BundleEntry) -> str | None:
        if self._proxies_bucket:
            return None
        return str(obstore.sign(self.bucket, "GET", entry.path, PRESIGNED_URL_LIFETIME))

    def read_range(self, entry: BundleEntry, start: int, end: int) -> Iterator[bytes]:
        try:
            yield from self._read_chunks(entry, start, end)
        except (NotFoundError, FileNotFoundError) as error:
            raise RegistryFailed(f"The registry's bucket has lost the bytes of {entry.key}.") from error
        except BaseError as error:
            raise self._to_registry_error(error) from error

    def _read_chunks(self, entry: BundleEntry, start: int, end: int) -> Iterator[bytes]:
        for offset in range(start, end, READ_CHUNK_BYTES):
            yield bytes(
                obstore.get_range(self.bucket, entry.path, start=offset, end=min(offset + READ_CHUNK_BYTES, end))
            )

    # health

    def verify(self, *, repair: bool = False) -> Iterator[VerifyFinding]:
        for entry in self.entries():
            yield self._verify(entry, repair)

    def _verify(self, entry: BundleEntry, repair: bool) -> VerifyFinding:
        digest = hashlib.sha256()
        try:
            for chunk in self._read_chunks(entry, 0, entry.size_bytes):
                digest.update(chunk)
            if digest.hexdigest() == entry.sha256 and self.is_complete(entry):
                return VerifyFinding(entry.key, "ok")
            if not repair:
                detail = f"{self.location(entry)} is not what was published; repair with: svc registry verify --repair"
                return VerifyFinding(entry.key, "damaged", detail)
            quarantine_path = entry.path.replace("blobs/", "aside/", 1)
            obstore.rename(self.bucket, entry.path, quarantine_path)
        except (NotFoundError, FileNotFoundError):
            return VerifyFinding(entry.key, "missing", f"{self.location(entry)}; publish it again")
        except BaseError as error:  # the bundle may be intact
            raise self._to_registry_error(error) from error
        return VerifyFinding(
            entry.key, "removed", f"damaged; it is now at {self._url}/{quarantine_path}; publish it again"
        )

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """Remove quarantined blobs, and blobs without a record that are older than a day."""
        try:
            orphans = list(self._list_paths("aside/")) + [
                item["path"]
                for batch in obstore.list(self.bucket, "blobs/")
                for item in batch
                if datetime.now(UTC) - item["last_modified"] > ORPHAN_GRACE_PERIOD
            ]
            with self._lock:
                self._load_records()
            used_paths = {entry.path for entry in list(self._records.values())}
            for path in orphans:
                if path not in used_paths:
                    if not dry_run:
                        obstore.delete(self.bucket, path)
                    yield path
        except BaseError as error:
            raise self._to_registry_error(error) from error


def check_bucket(url: str, environ: Mapping[str, str]) -> None:
    """Create an object in the bucket and delete it, without long retries. Raises UsageError with the reason."""
    bucket = open_bucket(url, environ, is_check=True)
    path = f"probe/{uuid.uuid4().hex}"
    try:
        obstore.put(bucket, path, b"1", mode="create")
        obstore.delete(bucket, path)
    except BaseError as error:
        raise UsageError(f"The bucket {url} cannot be used: {error_reason(error)}") from error


def _new_entry(draft: BundleDraft, upload: BundleUpload | CompleteFile, created: str | None) -> BundleEntry:
    return BundleEntry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.platform,
        size_bytes=upload.size,
        path=f"blobs/{upload.sha256}/{uuid.uuid4().hex}.xyb",
        sha256=upload.sha256,
        created=created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        signatures=draft.signatures,
    )
