"""Tests of selecting the bundle store by the settings."""

from pathlib import Path

import pytest

from svc.errors import UsageError
from svc.stores.bundles.factory import open_store


@pytest.mark.parametrize("url", ["file://relative", "file://./folder", "file://~/bundles", "file://"])
def test_open_store_file_url_without_absolute_path_raises_usage_error(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="three slashes: file:///FOLDER"):
        open_store(tmp_path / "root", {"SVC_BLOB_URL": url})
    assert list(tmp_path.iterdir()) == []


def test_open_store_absolute_file_url_and_relative_root_are_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(Path("root"), {"SVC_BLOB_URL": f"file://{tmp_path}/blobs"}) as store:
        assert list(store.entries()) == []
    with open_store(Path("root"), {"SVC_BLOB_URL": ""}) as store:
        assert list(store.entries()) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["blobs", "root"]
