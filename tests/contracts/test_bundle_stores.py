"""The contract of bundle stores, tested with every implementation."""

import io
import json
import os
import threading
import zipfile

import pytest
from obstore.store import S3Store

from svc.errors import AlreadyExists, BundleNotFound, InvalidBundle, InvalidRequest, RegistryFailed, UsageError
from svc.stores.bundles import s3
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.s3 import BucketStore, check_bucket
from svc.wire.bundle import Signature
from tests.fakes.bucket import LateFailureServer
from tests.fakes.ports import closed_port


def bundle(model_id="m", version="1", data=b"w"):
    buffer = io.BytesIO()
    metadata = {"model_id": model_id, "version": version, "execution_template": {"type": "X"}, "files": ["w"]}
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model_metadata.json", json.dumps(metadata))
        archive.writestr("w", data)
    return buffer.getvalue()


@pytest.fixture(params=["folder", "s3"])
def open_store(request, tmp_path, monkeypatch):
    """A function that opens the same store each time."""
    if request.param == "folder":
        yield lambda: FolderStore(tmp_path / "root")
        return
    environ = request.getfixturevalue("bucket")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    yield lambda: BucketStore(f"s3://bundles/{tmp_path.name}", tmp_path / "state", os.environ)


@pytest.fixture
def store(open_store):
    with open_store() as store:
        yield store


DRAFT = BundleDraft("m", "1", "any")


def publish_bytes(store, data, draft=DRAFT):
    upload = store.create_upload(len(data))
    for start in range(0, len(data), 1000):
        upload.write(data[start : start + 1000])
    return store.publish(upload, draft)


def test_bundle_store_published_bundle_is_read_back_and_immutable(store):
    data = bundle(data=os.urandom(300_000))
    before = store.revision()
    entry, created = publish_bytes(store, data)
    assert (created, entry.size_bytes, entry.key) == (True, len(data), "m/1/any")
    assert store.revision() != before
    assert publish_bytes(store, data) == (entry, False)
    with pytest.raises(AlreadyExists):
        publish_bytes(store, bundle(data=b"other"))
    assert b"".join(store.read_range(entry, 0, len(data))) == data
    assert b"".join(store.read_range(entry, 7, 200_000)) == data[7:200_000]
    assert [each.key for each in store.entries()] == ["m/1/any"]
    assert list(store.entries("other")) == []
    assert store.find("m/2/any") is None


@pytest.mark.parametrize(
    ("data", "draft", "error"),
    [
        (b"PK\x03\x04", BundleDraft("m", "1", "any"), InvalidBundle),
        (bundle()[:-30], BundleDraft("m", "1", "any"), InvalidBundle),
        (bundle(version="2"), BundleDraft("m", "1", "any"), InvalidBundle),
        (bundle("n"), BundleDraft("m", "1", "any"), InvalidBundle),
        (bundle(), BundleDraft("../m", "1", "any"), InvalidRequest),
        (bundle(version="latest"), BundleDraft("m", "latest", "any"), InvalidRequest),
        (bundle(), BundleDraft("m", "1", ".hidden"), InvalidRequest),
    ],
)
def test_bundle_store_invalid_or_misnamed_bundle_is_rejected(store, data, draft, error):
    with pytest.raises(error):
        publish_bytes(store, data, draft)
    assert list(store.entries()) == []


def test_bundle_store_upload_of_non_bundle_is_rejected_at_first_write(store):
    upload = store.create_upload()
    with pytest.raises(InvalidBundle):
        upload.write(b"hello")
    upload.close()
    assert not upload.path.exists()


def test_bundle_store_yank_is_persisted_and_reversible(open_store, store):
    publish_bytes(store, bundle())
    assert store.set_yanked("m/1/any", True).yanked
    with open_store() as other:
        assert other.find("m/1/any").yanked
        assert other.entries()[0].yanked
        other.set_yanked("m/1/any", False)
    with open_store() as other:
        assert not other.find("m/1/any").yanked
    with pytest.raises(BundleNotFound):
        store.set_yanked("m/9/any", True)


def test_bundle_store_signatures_are_persisted(open_store, store):
    publish_bytes(store, bundle(), BundleDraft("m", "1", "any", (Signature("k", "v"),)))
    with open_store() as other:
        assert other.entries()[0].signatures == (Signature("k", "v"),)


def test_bundle_store_concurrent_publishers_one_wins(open_store):
    payloads = [bundle(data=os.urandom(100)) for _ in range(4)] * 2
    results = []

    def publish(data):
        with open_store() as store:
            try:
                results.append((publish_bytes(store, data)[0].sha256, True))
            except AlreadyExists:
                results.append((None, False))

    threads = [threading.Thread(target=publish, args=(data,)) for data in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    winners = {sha256 for sha256, won in results if won}
    assert len(winners) == 1
    with open_store() as store:
        assert {entry.sha256 for entry in store.entries()} == winners


def test_bundle_store_verify_and_gc_of_intact_store_change_nothing(store):
    publish_bytes(store, bundle())
    assert [finding.state for finding in store.verify(repair=True)] == ["ok"]
    assert list(store.gc()) == []
    assert len(store.entries()) == 1


def test_bucket_store_failure_reason_is_logged_but_not_in_message(bucket, tmp_path, monkeypatch, caplog):
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    port = closed_port()
    with BucketStore("s3://bundles/failing", tmp_path / "state", os.environ) as store:
        store.bucket = S3Store(
            "bundles",
            endpoint=f"http://127.0.0.1:{port}",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(RegistryFailed) as caught:
            store.find("m/1/any")
    assert caught.value.message == "The registry's bucket does not respond."
    assert "s3://bundles/failing" in caught.value.reason
    assert f"127.0.0.1:{port}" in caught.value.reason
    assert caught.value.reason in caplog.text
    assert bucket["AWS_SECRET_ACCESS_KEY"] not in caplog.text


def test_check_bucket_wrong_credentials_raise_usage_error(bucket, monkeypatch):
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    check_bucket("s3://bundles/checked", os.environ)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(UsageError, match="s3://bundles/checked") as caught:
        check_bucket("s3://bundles/checked", os.environ)
    assert "another-secret" not in caught.value.message


def test_check_bucket_wrong_credentials_name_code_and_settings(bucket, monkeypatch):
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(UsageError) as caught:
        check_bucket("s3://bundles/checked", os.environ)
    assert "status 403 Forbidden: SignatureDoesNotMatch: The request signature" in caught.value.message
    assert "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in caught.value.message
    assert "<?xml" not in caught.value.message


def test_bucket_store_failed_list_is_reported_again_without_another_request(bucket, tmp_path, monkeypatch, caplog):
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "MAX_RECORD_LIST_AGE_SECONDS", 0.0)
    with BucketStore("s3://bundles/waiting", tmp_path / "state", os.environ) as store:
        working, store.bucket = (
            store.bucket,
            S3Store(
                "bundles",
                endpoint=f"http://127.0.0.1:{closed_port()}",
                client_options={"allow_http": True},
                retry_config={"max_retries": 0},
            ),
        )
        with pytest.raises(RegistryFailed):
            store.refresh()
        monkeypatch.setattr(s3, "MAX_RECORD_LIST_AGE_SECONDS", 3600.0)
        with pytest.raises(RegistryFailed) as caught:
            store.refresh()
        assert "s3://bundles/waiting" in caught.value.reason
        assert caplog.text.count("the bucket failed") == 1
        monkeypatch.setattr(s3, "MAX_RECORD_LIST_AGE_SECONDS", 0.0)
        store.bucket = working
        store.refresh()
        assert list(store.entries()) == []


def test_bucket_store_repeated_creation_of_record_keeps_bundle(bucket, tmp_path, monkeypatch):
    with LateFailureServer(bucket, "/records/") as late:
        for name, value in (bucket | {"AWS_ENDPOINT_URL": late.url}).items():
            monkeypatch.setenv(name, value)
        with BucketStore(f"s3://bundles/{tmp_path.name}", tmp_path / "state", os.environ) as store:
            data = bundle()
            entry, created = publish_bytes(store, data)
            assert (created, late.fails_put) == (True, False)
            assert b"".join(store.read_range(entry, 0, len(data))) == data


def test_bucket_store_new_object_that_appears_later_is_published(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(s3, "NEW_OBJECT_PAUSES_SECONDS", (0, 0))
    with LateFailureServer(bucket, "/blobs/", misses=2) as late:
        for name, value in (bucket | {"AWS_ENDPOINT_URL": late.url}).items():
            monkeypatch.setenv(name, value)
        with BucketStore(f"s3://bundles/{tmp_path.name}", tmp_path / "state", os.environ) as store:
            assert publish_bytes(store, bundle())[1]
            assert late.misses == 0
