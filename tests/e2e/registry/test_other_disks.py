"""Bundles outside the registry's folder, and model folders that are links to another disk."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from svc.bundles.digest import sha256_file

from .conftest import make_bundle
from .test_health import put


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another disk than the registry."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("needs /dev/shm on another disk than the temporary files")
    folder = Path(tempfile.mkdtemp(prefix="svc-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def index_entry(model_id, path):
    """Return the entry of another tool for its own bundle."""
    key = {"model_id": model_id, "version": "1", "target": "any"}
    return key | {"path": str(path), "size_bytes": path.stat().st_size, "sha256": sha256_file(path)}


def test_verify_repair_bundles_outside_root_keeps_files_of_their_owner(machine, other_disk, tmp_path):
    one = machine()
    one.run("registry", "add", make_bundle(tmp_path / "z.xyb", "z", "1"))
    paths = {"broken": other_disk / "broken.xyb", "near": tmp_path / "near.xyb", "rebuilt": other_disk / "rebuilt.xyb"}
    index = json.loads((one.root / "index.json").read_bytes())
    for model_id, path in paths.items():
        index[f"{model_id}/1/any"] = index_entry(model_id, make_bundle(path, model_id, "1"))
    (one.root / "index.json").write_text(json.dumps(index))
    assert len(json.loads(one.run("registry", "ls", "--json").stdout)) == 4
    paths["broken"].write_bytes(b"no bundle")
    for model_id in ("near", "rebuilt"):
        make_bundle(paths[model_id], model_id, "1", data=b"other weights")
    added = one.root / "y/1/any/y.xyb"
    added.parent.mkdir(parents=True)
    make_bundle(added, "y", "1")
    contents = {path: path.read_bytes() for path in paths.values()}
    found = json.loads(one.run("registry", "verify", "--repair", "--json", check=1).stdout)
    states = {finding["key"].partition("/")[0]: finding["state"] for finding in found}
    assert states == {"broken": "unlisted", "near": "mended", "rebuilt": "mended", "y": "added", "z": "ok"}
    assert one.run("registry", "gc").stdout == ""
    assert {path: path.read_bytes() for path in paths.values()} == contents
    assert list(json.loads((one.root / "index.json").read_bytes())) == [
        f"{name}/1/any" for name in ("near", "rebuilt", "y", "z")
    ]
    assert {line.split()[0] for line in one.run("registry", "verify").stdout.splitlines()} == {"ok"}
    one.run("registry", "pull", "rebuilt@1")
    assert (one.root / "rebuilt/1/any/content/w.bin").read_bytes() == b"other weights"


def test_registry_model_folder_on_other_disk_explains_failure_and_repairs(machine, other_disk, tmp_path):
    one = machine(SVC_REGISTRY_KEYS="k1")
    one.run("registry", "add", make_bundle(tmp_path / "a.xyb", "a", "1"))
    shutil.move(one.root / "a", other_disk / "a")
    (one.root / "a").symlink_to(other_disk / "a")
    (one.root / "m").symlink_to(other_disk)
    bundle = make_bundle(tmp_path / "m.xyb")
    server = one.serve()
    status, body = put(server, "/bundles/m/1.0/any/m.xyb", bundle.read_bytes())
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "a link to another disk" in body["error"]["message"]
    assert str(one.root) not in body["error"]["message"]
    assert not (other_disk / "1.0").exists()
    for command in (("add", bundle), ("pull", "a@1")):
        assert "set SVC_REGISTRY_ROOT" in one.run("registry", *command, check=1).stderr
    (one.root / "a/1/any/a.xyb").write_bytes(b"damaged")
    assert one.run("registry", "verify", "--repair").stdout.startswith("moved aside a/1/any")
    server.process.terminate()
    assert b"Traceback" not in server.process.communicate(timeout=20)[1]
