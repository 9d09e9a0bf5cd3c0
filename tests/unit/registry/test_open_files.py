"""The cache of open files follows the path of a bundle."""

import os
from pathlib import Path

import pytest

from svc.registry.open_files import OpenFile, OpenFileCache
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import BundleEntry

KEY = "m/1/any"
DATA = b"weights"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.xyb"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def cache(tmp_path, path):
    """A cache that holds the open file of `path`."""
    with FolderStore(tmp_path / "root") as store:
        cache = OpenFileCache(store)
        cache.put(KEY, open_file(path))
        yield cache
        cache.clear()


def open_file(path: Path) -> OpenFile:
    entry = BundleEntry(
        model_id="m", version="1", target="any", size_bytes=len(DATA), path="m/1/any/m.xyb", sha256="0" * 64
    )
    return OpenFile(str(path), entry)


def test_open_file_cache_unchanged_file_is_reused(cache):
    file = cache.get(KEY)
    assert file is not None
    assert cache.get(KEY) is file


def test_open_file_cache_replaced_file_is_opened_again(cache, path):
    """Repair moves the damaged file aside, and `add` renames a new file of the same size to its path."""
    assert cache.get(KEY) is not None
    aside, new = path.with_name("aside"), path.with_name("new")
    os.rename(path, aside)
    new.write_bytes(DATA)
    os.utime(new, ns=(aside.stat().st_mtime_ns, aside.stat().st_mtime_ns))
    os.rename(new, path)
    assert cache.get(KEY) is None
    cache.put(KEY, open_file(path))
    assert cache.get(KEY) is not None


def test_open_file_cache_removed_file_is_dropped(cache, path):
    path.unlink()
    assert cache.get(KEY) is None
