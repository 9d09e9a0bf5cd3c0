"""The index of the files in packed bundles of a folder."""

import json
from pathlib import Path

import pytest

from svc.bundles.digest import sha256_file
from svc.bundles.pack import pack
from svc.stores.bundles.content_index import BundleContentIndex
from svc.stores.bundles.folder import FolderStore
from svc.stores.bundles.install import find_unpacked
from svc.wire.bundle import BundleEntry


def publish(root: Path, work: Path, model_id: str, version: str, *files: str) -> Path:
    folder = work / f"{model_id}-{version}"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    about = {"model_id": model_id, "version": version, "execution_template": {"type": "Speech"}, "files": files}
    (folder / "model_metadata.json").write_text(json.dumps(about))
    packed = folder.with_suffix(".xyb")
    pack(folder, packed)
    digest = sha256_file(packed)
    entry = BundleEntry(
        model_id=model_id, version=version, target="any", size_bytes=packed.stat().st_size, path="", sha256=digest
    )
    with FolderStore(root) as store:
        return store.bundle_path(store.import_file(packed, entry, digest))


def test_models_with_file_several_versions_uses_newest(tmp_path: Path):
    root = tmp_path / "root"
    contents = BundleContentIndex(root)
    assert contents.models_with_file("stt.json") == []
    publish(root, tmp_path, "ears", "1.0", "stt.json")
    publish(root, tmp_path, "mouth", "1.0", "tts.json")
    publish(root, tmp_path, "was-ears", "1.0", "stt.json")
    publish(root, tmp_path, "was-ears", "1.1", "tts.json")
    assert contents.models_with_file("stt.json") == ["ears"]
    assert contents.models_with_file("tts.json") == ["mouth", "was-ears"]
    publish(root, tmp_path, "more", "0.1", "stt.json")
    with FolderStore(root) as store:
        store.set_yanked("ears/1.0/any", yanked=True)
    assert contents.models_with_file("stt.json") == ["more"]


def test_models_with_file_damaged_or_missing_bundle_is_skipped(tmp_path: Path):
    root = tmp_path / "root"
    publish(root, tmp_path, "damaged", "1.0", "stt.json").write_bytes(b"no bundle")
    publish(root, tmp_path, "gone", "1.0", "stt.json").unlink()
    publish(root, tmp_path, "sound", "1.0", "stt.json")
    assert BundleContentIndex(root).models_with_file("stt.json") == ["sound"]


def test_models_with_file_root_is_not_a_folder_returns_empty_list(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert BundleContentIndex(tmp_path / "file").models_with_file("stt.json") == []


def test_unreadable_records_are_no_bundles_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = tmp_path / "root"
    publish(root, tmp_path, "mouth", "1.0", "tts.json")
    records = root / ".registry/records.sqlite"
    records.unlink()
    records.mkdir()
    for _ in range(2):
        assert BundleContentIndex(root).models_with_file("tts.json") == []
        assert find_unpacked(root, "mouth") is None
    (message,) = caplog.messages
    assert message.startswith(f"bundles of {root} are not available: The registry's records cannot be")
