import errno
import fcntl
import json
import os
import time
import zipfile

import pytest

from svc.bundles.archive import read_metadata
from svc.bundles.open_archive import extract, open_archive
from svc.bundles.pack import pack
from svc.errors import InvalidBundle
from svc.file_lock import create_locked


def test_pack_same_files_gives_identical_bytes(model, tmp_path):
    one, other = tmp_path / "1.xyb", tmp_path / "2.xyb"
    pack(model, one)
    time.sleep(0.01)
    os.utime(model / "w.bin", (1, 1))
    (model / "w.bin").chmod(0o600)
    pack(model, other)
    assert one.read_bytes() == other.read_bytes()


def test_pack_then_extract_restores_every_file(model, tmp_path):
    output = tmp_path / "m.xyb"
    (model / "empty").write_bytes(b"")
    pack(model, output)
    with zipfile.ZipFile(output) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "model_metadata.json"
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    for trusted in (True, False):
        folder = tmp_path / f"tmp{trusted}"
        folder.mkdir()
        with open_archive(output) as archive:
            assert read_metadata(archive).model_id == "m"
            archive.verify()
            extract(archive, folder, tmp_path / f"out{trusted}", trusted=trusted)
        for path in (path for path in model.rglob("*") if path.is_file()):
            assert (tmp_path / f"out{trusted}" / path.relative_to(model)).read_bytes() == path.read_bytes()
        assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"model_id": None}, "model_id"),
        ({"version": "../1"}, "version"),
        ({"execution_template": "Onnx"}, "execution_template"),
        ({"execution_template": {"kind": "x"}}, "type"),
        ({"files": ["gone.bin"]}, "gone.bin"),
        ({"files": None}, "files"),
    ],
)
def test_pack_invalid_metadata_is_rejected(model, tmp_path, change, expected_text):
    metadata = json.loads((model / "model_metadata.json").read_text())
    (model / "model_metadata.json").write_text(json.dumps({**metadata, **change}))
    with pytest.raises(InvalidBundle, match=expected_text):
        pack(model, tmp_path / "m.xyb")
    assert list(tmp_path.glob("*.xyb")) == []
    assert list(tmp_path.glob(".packing*")) == []


def test_pack_unknown_types_and_fields_are_kept(model, tmp_path):
    metadata = json.loads((model / "model_metadata.json").read_text())
    metadata |= {"execution_template": {"type": "Brandnew", "deep": {"er": 1}}, "own": 1, "preprocessing": [{"a": 1}]}
    (model / "model_metadata.json").write_text(json.dumps(metadata))
    assert pack(model, tmp_path / "m.xyb").execution_template == metadata["execution_template"]


def test_pack_link_outside_folder_is_rejected(model, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (model / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidBundle, match="link to a file outside"):
        pack(model, tmp_path / "m.xyb")


def test_pack_removes_leftovers_of_killed_processes_only(model, tmp_path):
    leftover, running = tmp_path / ".packing-killed.xyb", tmp_path / ".packing-running.xyb"
    leftover.write_bytes(b"half")
    fd = create_locked(running)
    try:
        pack(model, tmp_path / "m.xyb")
        assert sorted(path.name for path in tmp_path.glob("*.xyb")) == [running.name, "m.xyb"]
    finally:
        os.close(fd)
    pack(model, tmp_path / "m.xyb")
    assert [path.name for path in tmp_path.glob("*.xyb")] == ["m.xyb"]


def test_pack_file_system_without_locks_is_no_error(model, tmp_path, monkeypatch):
    attempts = []

    def flock(fd, operation):
        attempts.append(fd)
        assert len(attempts) < 3, "it retries forever"
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    pack(model, tmp_path / "m.xyb")
    assert [path.name for path in tmp_path.glob("*.xyb")] == ["m.xyb"]
