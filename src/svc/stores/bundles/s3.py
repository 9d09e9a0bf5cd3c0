"""Bundles in a bucket, shared by any number of servers. Needs the extra `s3`.

records/<model_id>/<version>/<platform>.json   the entry; created once and never written again
yanked/<model_id>/<version>/<platform>         there while the bundle is withdrawn
blobs/<sha256>/<random>.xyb                    the bytes, under a name of their own for each publish: `gc`, which
                                               takes what is old and has no record, never meets a new one
aside/<sha256>/<random>.xyb                    damaged bytes, until `gc`
snapshot.json                                  records read before, so that a new server need not read them one by one

A publish uploads the bytes, then creates the record: that one step decides. The store must refuse to create an object
twice (`If-None-Match: *`), which is tried at the start, since some servers ignore it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import S3Store

from svc.bundles import listing
from svc.bundles.archive import limits_of
from svc.errors import AlreadyExists, BundleNotFound, RegistryFailed, UsageError
from svc.stores.bundles.base import Draft, Finding, check_bundle
from svc.stores.bundles.spool import Finished, Spool
from svc.stores.bundles.tidy import remove_abandoned
from svc.wire.bundle import Entry, shown

log = logging.getLogger("svc.stores")

FRESH_SECONDS = 1.0
"""So old may the list of records be that others have changed."""
GRACE = timedelta(days=1)
"""Bytes that no record names may belong to a publish that is under way."""
CHECK_TIME = timedelta(seconds=5)
ADDRESS_LIFE = timedelta(hours=1)
PIECE = 4 << 20
READERS = 16
SNAPSHOT_EVERY = 200


class BucketStore:
    """`url` is s3://bucket/prefix. Raises UsageError when the bucket cannot be used."""

    on_disk = False

    def __init__(self, url: str, state: Path, environ: Mapping[str, str], *, proxy: bool = False) -> None:
        self.limits = limits_of(environ)
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise UsageError(f"{url!r} is no address of a bucket: s3://BUCKET/PREFIX is.")
        self.bucket: Any = S3Store(
            parts.netloc, prefix=parts.path.strip("/") or None, client_options={"allow_http": _allows_http(environ)}
        )
        self._url = url.rstrip("/")
        self.state = state
        for name in ("uploads", "downloads", "locks"):
            (state / name).mkdir(parents=True, exist_ok=True)
        for part in (state / "uploads").glob("*.part"):
            remove_abandoned(part)
        self._proxy = proxy
        self._lock = threading.Lock()
        self._records: dict[str, Entry] = {}
        self._damaged: set[str] = set()
        """The keys of records that cannot be read."""
        self._yanked: frozenset[str] = frozenset()
        self._listed = 0.0
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="s3")
        self._probe(url)
        self._read_snapshot()
        self._list()

    def __enter__(self) -> BucketStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)

    def _probe(self, url: str) -> None:
        path = f"probe/{uuid.uuid4().hex}"
        try:
            obstore.put(self.bucket, path, b"1", mode="create")
            twice = self._create(path, b"2")
            obstore.delete(self.bucket, path)
        except BaseError as error:
            raise UsageError(f"The bucket {url} cannot be used: {_reason(error)}") from error
        if twice:
            raise UsageError(
                f"The server of {url} lets an object be created twice (it ignores If-None-Match), so publishes could "
                "overwrite each other; use a store with conditional puts."
            )

    def _failed(self, error: BaseError, what: str = "answer") -> RegistryFailed:
        """Return the error for a client. Only the log and commands get its reason, which may hold an address."""
        reason = f"{self._url}: {_reason(error)}"
        log.error("the bucket fails: %s", reason)
        return RegistryFailed(f"The registry's bucket does not {what}.", reason=reason)

    def _create(self, path: str, data: bytes) -> bool:
        """False when it is there already."""
        try:
            obstore.put(self.bucket, path, data, mode="create")
        except (AlreadyExistsError, FileExistsError, PreconditionError):
            return False
        return True

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.bucket, path).bytes())
        except (NotFoundError, FileNotFoundError):
            return None

    # records

    def refresh(self) -> None:
        """Looks what others have published, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._listed >= FRESH_SECONDS:
                self._list()

    def _list(self) -> None:
        try:
            keys = {path.removeprefix("records/").removesuffix(".json") for path in self._names("records/")}
            yanked = frozenset(path.removeprefix("yanked/") for path in self._names("yanked/"))
            missing = sorted(keys - self._records.keys() - self._damaged)
            for entry in self._readers.map(self._record, missing):
                if entry is not None:
                    self._records[entry.key] = entry
        except BaseError as error:
            raise self._failed(error) from error
        self._yanked = yanked
        self._listed = time.monotonic()
        if len(missing) >= SNAPSHOT_EVERY:
            obstore.put(self.bucket, "snapshot.json", msgspec.json.encode(list(self._records.values())))

    def _names(self, prefix: str) -> Iterator[str]:
        for batch in obstore.list(self.bucket, prefix):
            for item in batch:
                yield item["path"]

    def _record(self, key: str) -> Entry | None:
        data = self._read(f"records/{key}.json")
        if data is None:
            return None
        try:
            return listing.parse(key, data)
        except ValueError as error:
            if key not in self._damaged:
                log.warning("the record %.200r of %s cannot be used: %s", key, self._url, error)
            self._damaged.add(key)
            return None

    def _read_snapshot(self) -> None:
        data = self._read("snapshot.json")
        try:
            entries = msgspec.json.decode(data or b"[]", type=list[Entry])
        except (ValueError, RecursionError):  # the records themselves are read instead
            entries = []
        self._records = {entry.key: entry for entry in entries}

    def entries(self, model_id: str | None = None) -> Sequence[Entry]:
        self.refresh()
        known = [entry for entry in list(self._records.values()) if model_id in (None, entry.model_id)]
        return sorted((self._with_state(entry) for entry in known), key=lambda entry: entry.key)

    def _with_state(self, entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, yanked=entry.key in self._yanked)

    def find(self, key: str) -> Entry | None:
        entry = self._records.get(key)
        if entry is None:
            try:
                entry = self._record(key)
            except BaseError as error:
                raise self._failed(error) from error
            if entry is not None:
                self._records[key] = entry
        return None if entry is None else self._with_state(entry)

    def unhashed(self) -> Sequence[Entry]:
        return ()

    def hashed(self, entry: Entry) -> Entry:
        return entry

    def revision(self) -> str:
        self.refresh()
        state = hashlib.sha256("\n".join(sorted(self._yanked)).encode()).hexdigest()[:16]
        return f"{len(self._records)}-{state}"

    # publishing

    def spool(self, size: int | None = None) -> Spool:
        return Spool(self.state / "uploads")

    def publish(self, spool: Spool, draft: Draft) -> tuple[Entry, bool]:
        try:
            draft.check()
            return self._keep(spool, draft)
        finally:
            spool.close()

    def adopt(self, path: Path, entry: Entry, sha256: str, *, durable: bool = True) -> Entry:
        finished = Finished(path, sha256)
        try:
            draft = Draft(entry.model_id, entry.version, entry.target, entry.signatures)
            draft.check()
            kept, created = self._keep(finished, draft, entry.created)
            return self.set_yanked(entry.key, True) if created and entry.yanked else kept
        finally:
            finished.close()

    def _keep(self, spool: Spool | Finished, draft: Draft, created: str | None = None) -> tuple[Entry, bool]:
        try:
            known = self._same(draft.key, spool.sha256)
            if known is not None and self.is_whole(known):
                return known, False
            check_bundle(spool.path, draft, self.limits)
            entry = known or _entry(draft, spool, created)
            obstore.put(self.bucket, entry.path, spool.path)
            if not self.is_whole(entry):
                raise RegistryFailed("The registry's bucket did not keep the bundle.")
            if known is not None:  # its bytes were lost, and are back
                return known, False
            if self._create(f"records/{draft.key}.json", msgspec.json.encode(shown(entry))):
                self._records[entry.key] = entry
                return entry, True
            obstore.delete(self.bucket, entry.path)  # somebody else was first
            known = self._same(draft.key, spool.sha256)
            if known is None:
                raise RegistryFailed(f"The record of {draft.key} in the bucket cannot be read.")
            return known, False
        except BaseError as error:
            raise self._failed(error, "take the bundle") from error

    def is_whole(self, entry: Entry) -> bool:
        try:
            return int(obstore.head(self.bucket, entry.path)["size"]) == entry.size_bytes
        except (NotFoundError, FileNotFoundError):
            return False

    def _same(self, key: str, sha256: str) -> Entry | None:
        entry = self.find(key)
        if entry is not None and entry.sha256 != sha256:
            raise AlreadyExists(f"{key} is published already, with other bytes; choose another version.")
        return entry

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        if self.find(key) is None:
            raise BundleNotFound(f"There is no bundle {key}.")
        try:
            if yanked:
                obstore.put(self.bucket, f"yanked/{key}", b"")
            else:
                obstore.delete(self.bucket, f"yanked/{key}")
        except BaseError as error:
            raise self._failed(error) from error
        with self._lock:
            self._list()
        return self._with_state(self._records[key])

    # reading

    def where(self, entry: Entry) -> str:
        return f"{self._url}/{entry.path}"

    def file(self, entry: Entry) -> Path | None:
        return None

    def address(self, entry: Entry) -> str | None:
        return None if self._proxy else str(obstore.sign(self.bucket, "GET", entry.path, ADDRESS_LIFE))

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, PIECE):
            yield bytes(obstore.get_range(self.bucket, entry.path, start=at, end=min(at + PIECE, end)))

    # health

    def verify(self, *, repair: bool = False) -> Iterator[Finding]:
        for entry in self.entries():
            yield self._verify(entry, repair)

    def _verify(self, entry: Entry, repair: bool) -> Finding:
        digest = hashlib.sha256()
        try:
            for piece in self.read(entry, 0, entry.size_bytes):
                digest.update(piece)
            if digest.hexdigest() == entry.sha256 and self.is_whole(entry):
                return Finding(entry.key, "ok")
            if not repair:
                said = f"{self.where(entry)} is not what was published; mend with: svc registry verify --repair"
                return Finding(entry.key, "damaged", said)
            aside = entry.path.replace("blobs/", "aside/", 1)
            obstore.rename(self.bucket, entry.path, aside)
        except (NotFoundError, FileNotFoundError):
            return Finding(entry.key, "missing", f"{self.where(entry)}; publish it again")
        except BaseError as error:
            return Finding(entry.key, "damaged", str(error).splitlines()[0][:200])
        return Finding(entry.key, "removed", f"damaged; put aside as {self._url}/{aside}; publish it again")

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """What was put aside, and bytes without a record once they are a day old."""
        try:
            old = list(self._names("aside/")) + [
                item["path"]
                for batch in obstore.list(self.bucket, "blobs/")
                for item in batch
                if datetime.now(UTC) - item["last_modified"] > GRACE
            ]
            with self._lock:
                self._list()
            named = {entry.path for entry in list(self._records.values())}
            for path in old:
                if path not in named:
                    if not dry_run:
                        obstore.delete(self.bucket, path)
                    yield path
        except BaseError as error:
            raise self._failed(error) from error


def _allows_http(environ: Mapping[str, str]) -> bool:
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    return endpoint.startswith("http://")


def _reason(error: BaseError) -> str:
    """The first line; what follows is for the authors of the library."""
    return str(error).partition("\n")[0][:300]


def check_bucket(url: str, environ: Mapping[str, str]) -> None:
    """Create an object in the bucket and delete it, without long retries. Raises UsageError with the reason."""
    parts = urlsplit(url)
    bucket = S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options={"allow_http": _allows_http(environ), "timeout": CHECK_TIME, "connect_timeout": CHECK_TIME},
        retry_config={"max_retries": 0, "retry_timeout": CHECK_TIME},
    )
    path = f"probe/{uuid.uuid4().hex}"
    try:
        obstore.put(bucket, path, b"1", mode="create")
        obstore.delete(bucket, path)
    except BaseError as error:
        raise UsageError(f"The bucket {url} cannot be used: {_reason(error)}") from error


def _entry(draft: Draft, spool: Spool | Finished, created: str | None) -> Entry:
    return Entry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.target,
        size_bytes=spool.size,
        path=f"blobs/{spool.sha256}/{uuid.uuid4().hex}.xyb",
        sha256=spool.sha256,
        created=created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        signatures=draft.signatures,
    )
