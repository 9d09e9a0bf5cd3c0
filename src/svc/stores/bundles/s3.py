"""Bundles in a bucket, shared by any number of servers. Needs the extra `s3`.

records/<model_id>/<version>/<platform>.json   the entry; created once and never written again
yanked/<model_id>/<version>/<platform>         there while the bundle is withdrawn
blobs/<sha256>.xyb                             the bytes
snapshot.json                                  records read before, so that a new server need not read them one by one

A publish uploads the bytes, then creates the record: that one step decides. The store must refuse to create an object
twice (`If-None-Match: *`), which is tried at the start, since some servers ignore it.
"""

from __future__ import annotations

import hashlib
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

from svc.errors import AlreadyExists, BundleNotFound, RegistryFailed, UsageError
from svc.stores.bundles.base import Draft, Finding, check_bundle
from svc.stores.bundles.spool import Spool
from svc.stores.bundles.tidy import remove_abandoned
from svc.wire.bundle import Entry, shown

FRESH_SECONDS = 1.0
"""So old may the list of records be that others have changed."""
GRACE = timedelta(days=1)
"""Bytes that no record names may belong to a publish that is under way."""
ADDRESS_LIFE = timedelta(hours=1)
PIECE = 4 << 20
READERS = 16
SNAPSHOT_EVERY = 200


class BucketStore:
    """`url` is s3://bucket/prefix. Raises UsageError when the bucket cannot be used."""

    on_disk = False
    root = None

    def __init__(self, url: str, spool_folder: Path, environ: Mapping[str, str], *, proxy: bool = False) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise UsageError(f"{url!r} is no address of a bucket: s3://BUCKET/PREFIX is.")
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        self._bucket: Any = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options={"allow_http": endpoint.startswith("http://")},
        )
        self._spools = spool_folder
        self._spools.mkdir(parents=True, exist_ok=True)
        for part in self._spools.glob("*.part"):
            remove_abandoned(part)
        self._proxy = proxy
        self._lock = threading.Lock()
        self._records: dict[str, Entry] = {}
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
            obstore.put(self._bucket, path, b"1", mode="create")
            twice = self._create(path, b"2")
            obstore.delete(self._bucket, path)
        except BaseError as error:
            raise UsageError(f"The bucket {url} cannot be used: {str(error).splitlines()[0][:300]}") from error
        if twice:
            raise UsageError(
                f"The server of {url} lets an object be created twice (it ignores If-None-Match), so publishes could "
                "overwrite each other; use a store with conditional puts."
            )

    def _create(self, path: str, data: bytes) -> bool:
        """False when it is there already."""
        try:
            obstore.put(self._bucket, path, data, mode="create")
        except (AlreadyExistsError, FileExistsError, PreconditionError):
            return False
        return True

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._bucket, path).bytes())
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
            missing = sorted(keys - self._records.keys())
            for entry in self._readers.map(self._record, missing):
                if entry is not None:
                    self._records[entry.key] = entry
        except BaseError as error:
            raise RegistryFailed("The registry's bucket does not answer.") from error
        self._yanked = yanked
        self._listed = time.monotonic()
        if len(missing) >= SNAPSHOT_EVERY:
            obstore.put(self._bucket, "snapshot.json", msgspec.json.encode(list(self._records.values())))

    def _names(self, prefix: str) -> Iterator[str]:
        for batch in obstore.list(self._bucket, prefix):
            for item in batch:
                yield item["path"]

    def _record(self, key: str) -> Entry | None:
        data = self._read(f"records/{key}.json")
        return None if data is None else msgspec.json.decode(data, type=Entry)

    def _read_snapshot(self) -> None:
        data = self._read("snapshot.json")
        if data is not None:
            self._records = {entry.key: entry for entry in msgspec.json.decode(data, type=list[Entry])}

    def entries(self, model_id: str | None = None) -> Sequence[Entry]:
        self.refresh()
        known = [entry for entry in self._records.values() if model_id in (None, entry.model_id)]
        return sorted((self._with_state(entry) for entry in known), key=lambda entry: entry.key)

    def _with_state(self, entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, yanked=entry.key in self._yanked)

    def find(self, key: str) -> Entry | None:
        entry = self._records.get(key)
        if entry is None:
            try:
                entry = self._record(key)
            except BaseError as error:
                raise RegistryFailed("The registry's bucket does not answer.") from error
            if entry is not None:
                self._records[key] = entry
        return None if entry is None else self._with_state(entry)

    def hashed(self, entry: Entry) -> Entry:
        return entry

    def revision(self) -> str:
        self.refresh()
        state = hashlib.sha256("\n".join(sorted(self._yanked)).encode()).hexdigest()[:16]
        return f"{len(self._records)}-{state}"

    # publishing

    def spool(self, size: int | None = None) -> Spool:
        return Spool(self._spools)

    def publish(self, spool: Spool, draft: Draft) -> tuple[Entry, bool]:
        try:
            draft.check()
            known = self._same(draft.key, spool.sha256)
            if known is not None:
                return known, False
            check_bundle(spool.path, draft)
            blob = f"blobs/{spool.sha256}.xyb"
            obstore.put(self._bucket, blob, spool.path)
            entry = _entry(draft, spool, blob)
            created = self._create(f"records/{draft.key}.json", msgspec.json.encode(shown(entry)))
            kept = self._same(draft.key, spool.sha256) or entry
            if obstore.head(self._bucket, blob)["size"] != spool.size:
                raise RegistryFailed("The registry's bucket did not keep the bundle.")
            return kept, created
        except BaseError as error:
            raise RegistryFailed("The registry's bucket does not take the bundle.") from error
        finally:
            spool.close()

    def _same(self, key: str, sha256: str) -> Entry | None:
        entry = self.find(key)
        if entry is not None and entry.sha256 != sha256:
            raise AlreadyExists(f"{key} is published already, with other bytes; choose another version.")
        return entry

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        if self.find(key) is None:
            raise BundleNotFound(f"There is no bundle {key}.")
        if yanked:
            obstore.put(self._bucket, f"yanked/{key}", b"")
        else:
            obstore.delete(self._bucket, f"yanked/{key}")
        with self._lock:
            self._list()
        return self.find(key) or self.entries()[0]

    # reading

    def file(self, entry: Entry) -> Path | None:
        return None

    def address(self, entry: Entry) -> str | None:
        return None if self._proxy else str(obstore.sign(self._bucket, "GET", entry.path, ADDRESS_LIFE))

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, PIECE):
            yield bytes(obstore.get_range(self._bucket, entry.path, start=at, end=min(at + PIECE, end)))

    # health

    def verify(self, *, repair: bool = False) -> Iterator[Finding]:
        for entry in self.entries():
            digest = hashlib.sha256()
            try:
                for piece in self.read(entry, 0, entry.size_bytes):
                    digest.update(piece)
            except (NotFoundError, FileNotFoundError):
                yield Finding(entry.key, "missing", f"{entry.path} is not in the bucket; publish it again")
                continue
            except BaseError as error:
                yield Finding(entry.key, "damaged", str(error).splitlines()[0][:200])
                continue
            sound = digest.hexdigest() == entry.sha256
            yield Finding(entry.key, "ok" if sound else "damaged", "" if sound else f"{entry.path} has other bytes")

    def gc(self, *, dry_run: bool = False) -> Iterator[str]:
        """Bytes without a record, once they are a day old."""
        old = [
            item["path"]
            for batch in obstore.list(self._bucket, "blobs/")
            for item in batch
            if datetime.now(UTC) - item["last_modified"] > GRACE
        ]
        with self._lock:
            self._list()
        named = {entry.path for entry in self._records.values()}
        for path in old:
            if path not in named:
                if not dry_run:
                    obstore.delete(self._bucket, path)
                yield path


def _entry(draft: Draft, spool: Spool, blob: str) -> Entry:
    return Entry(
        model_id=draft.model_id,
        version=draft.version,
        target=draft.target,
        size_bytes=spool.size,
        path=blob,
        sha256=spool.sha256,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        signatures=draft.signatures,
    )
