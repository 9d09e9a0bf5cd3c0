"""Uploads in chunks, with every implementation of a bundle store."""

from __future__ import annotations

import hashlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.errors import (
    AlreadyExists,
    InsufficientStorage,
    InvalidBundle,
    InvalidRequest,
    NotFound,
    RateLimited,
    UploadConflict,
)
from svc.stores.bundles import resumable_upload
from svc.stores.bundles.base import BundleDraft, BundleStore
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.resumable_upload import (
    UPLOAD_LIFETIME_SECONDS,
    AnnouncedUpload,
    ResumableUploads,
    remove_expired_uploads,
)
from svc.stores.bundles.s3 import BucketStore
from tests.contracts.test_bundle_stores import bundle

DRAFT = BundleDraft("m", "1", "any")


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BundleStore]:
    if request.param == "folder":
        with FolderStore(tmp_path / "root") as folder:
            yield folder
        return
    for name, value in request.getfixturevalue("bucket").items():
        monkeypatch.setenv(name, value)
    with BucketStore(f"s3://bundles/{tmp_path.name}", tmp_path / "state", os.environ) as opened:
        yield opened


def announce(
    data: bytes, draft: BundleDraft = DRAFT, sha256: str | None = None, owner: str = "key_1"
) -> AnnouncedUpload:
    return AnnouncedUpload(owner=owner, draft=draft, size=len(data), sha256=sha256)


def files(store: BundleStore) -> list[str]:
    return sorted(path.name for path in (store.work_dir / "resumable").glob("upload_*"))


def test_upload_in_chunks_publishes_the_same_bytes(store: BundleStore) -> None:
    data = bundle(data=os.urandom(50_000))
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data, sha256=hashlib.sha256(data).hexdigest()))
    for offset in range(0, len(data), 7001):
        upload = ResumableUploads(store).append(upload.id, offset, data[offset : offset + 7001])
    entry, created = uploads.commit(upload.id)
    assert (created, entry.size_bytes) == (True, len(data))
    assert b"".join(store.read_range(entry, 0, len(data))) == data
    assert files(store) == []
    again = uploads.create(announce(data))
    uploads.append(again.id, 0, data)
    assert uploads.commit(again.id) == (entry, False)
    with pytest.raises(AlreadyExists):
        uploads.create(announce(data + b"x"))


def test_unfinished_uploads_are_limited_for_each_key_and_in_total(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, uploads = bundle(data=b"many"), ResumableUploads(store)
    for _ in range(resumable_upload.MAX_PENDING_UPLOADS_OF_KEY):
        last = uploads.create(announce(data))
    with pytest.raises(RateLimited, match="This key has 16 unfinished uploads"):
        uploads.create(announce(data))
    uploads.create(announce(data, owner="key_2"))
    uploads.remove(last.id)
    uploads.create(announce(data))
    monkeypatch.setattr(resumable_upload, "MAX_PENDING_UPLOADS", 17)
    with pytest.raises(RateLimited, match="There are 17 unfinished uploads of all keys"):
        uploads.create(announce(data, owner="key_3"))


def test_upload_commit_of_other_bytes_leaves_nothing(store: BundleStore) -> None:
    data, other = bundle(data=b"one"), bundle(data=b"two")
    uploads = ResumableUploads(store)
    first, second = uploads.create(announce(data)), uploads.create(announce(other))
    uploads.append(first.id, 0, data)
    uploads.append(second.id, 0, other)
    uploads.commit(first.id)
    with pytest.raises(AlreadyExists):
        uploads.commit(second.id)
    assert files(store) == []


def test_upload_damaged_bundle_is_removed(store: BundleStore) -> None:
    data = bundle()[:-40]
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data))
    uploads.append(upload.id, 0, data)
    with pytest.raises(InvalidBundle):
        uploads.commit(upload.id)
    assert files(store) == []
    assert store.find(DRAFT.key) is None


def test_upload_append_needs_the_offset_and_stays_within_its_size(store: BundleStore) -> None:
    data = bundle()
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data))
    uploads.append(upload.id, 0, data[:10])
    for offset in (0, 9, 11):
        with pytest.raises(UploadConflict):
            uploads.append(upload.id, offset, data[10:20])
    with pytest.raises(InvalidRequest):
        uploads.append(upload.id, 10, data[10:] + b"x")
    with pytest.raises(UploadConflict):
        uploads.commit(upload.id)
    assert uploads.get(upload.id).offset == 10


def test_upload_concurrent_chunks_are_written_once(store: BundleStore) -> None:
    data = bundle(data=os.urandom(3_000_000))
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data))
    outcomes: list[str] = []

    def append() -> None:
        try:
            uploads.append(upload.id, 0, data)
            outcomes.append("written")
        except UploadConflict:
            outcomes.append("refused")

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["refused", "refused", "refused", "written"]
    assert uploads.commit(upload.id)[1] is True


def test_upload_concurrent_commits_publish_once(store: BundleStore) -> None:
    data = bundle(data=os.urandom(200_000))
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data))
    uploads.append(upload.id, 0, data)
    outcomes: list[object] = []

    def commit() -> None:
        try:
            outcomes.append(uploads.commit(upload.id)[1])
        except (UploadConflict, NotFound) as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert outcomes.count(True) == 1
    assert len(outcomes) == 4
    entry = store.find(DRAFT.key)
    assert entry is not None
    assert store.is_complete(entry)


def test_upload_full_disk_keeps_the_bytes_before_the_chunk(store: BundleStore) -> None:
    data = bundle(data=os.urandom(200_000))
    uploads = ResumableUploads(store)
    upload = uploads.create(announce(data))
    uploads.append(upload.id, 0, data[:50_000])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, limits[1]))
    try:
        with pytest.raises(InsufficientStorage):
            uploads.append(upload.id, 50_000, data[50_000:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert uploads.get(upload.id).offset == 50_000
    uploads.append(upload.id, 50_000, data[50_000:])
    assert uploads.commit(upload.id)[1] is True


def test_upload_expires_with_its_last_byte(store: BundleStore) -> None:
    data = bundle()
    uploads = ResumableUploads(store)
    kept, stale = uploads.create(announce(data)), uploads.create(announce(data))
    old = time.time() - UPLOAD_LIFETIME_SECONDS - 1
    os.utime(store.work_dir / "resumable" / f"{stale.id}.part", (old, old))
    with pytest.raises(NotFound):
        uploads.append(stale.id, 0, data)
    remove_expired_uploads(store.work_dir)
    assert files(store) == [f"{kept.id}.json", f"{kept.id}.part"]


@pytest.mark.parametrize("upload_id", ["", "..", "../records", "upload_", "upload_" + "g" * 32, "upload_" + "0" * 32])
def test_upload_unknown_id_is_not_found(store: BundleStore, upload_id: str) -> None:
    uploads = ResumableUploads(store)
    for call in (uploads.get, uploads.commit):
        with pytest.raises(NotFound):
            call(upload_id)
    with pytest.raises(NotFound):
        uploads.append(upload_id, 0, b"x")
    uploads.remove(upload_id)
